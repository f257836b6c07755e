// SPDX-License-Identifier: Apache-2.0
// Watches a run that is trained again for the ops of a plan, and keeps what they read and wrote.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/module.h"
#include "src/hunt/counterfactual.h"

namespace nanhunt::hooks {

class OriginWatch final : public engine::Observer {
 public:
  explicit OriginWatch(const hunt::OriginPlan& plan);  // borrowed

  // Before the step of the plan: contents that its ops may overwrite, by shape, format and the optimizer's parameter.
  void hold(const std::vector<engine::NamedTensor>& tensors);
  bool needs_start() const { return needs_start_; }
  std::vector<hunt::CapturedOp> take() { return std::move(captured_); }

  void on_step_begin(std::uint32_t step) noexcept override;
  void on_micro_batch(std::uint32_t micro_batch, std::span<const std::int64_t> sample_ids) noexcept override;
  void on_op(const engine::OpCall& call) noexcept override;

 private:
  using Contents = std::pair<std::uint64_t, std::uint32_t>;  // storage generation, version

  bool may_overwrite(const engine::NamedTensor& entry) const;
  void take_op(const engine::OpCall& call);
  void capture(std::size_t index, const engine::OpCall& call);
  std::optional<hunt::Array> contents_of(const engine::OpArgument& argument) const;

  const hunt::OriginPlan& plan_;
  bool needs_start_ = false, active_ = false;
  std::uint32_t micro_batch_ = 0;
  std::vector<std::pair<hunt::OpPosition, std::uint32_t>> counts_;  // places of the plan, with ops met there so far
  std::map<Contents, hunt::Array> held_;
  std::vector<hunt::CapturedOp> captured_;
};

}  // namespace nanhunt::hooks
