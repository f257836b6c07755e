// SPDX-License-Identifier: Apache-2.0
// What happened in a run, told by the engine itself and not by anything that judges: where the planted op went bad, and
// what came of the training. With two of them, of a pair, harm is decided.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/campaign/fault.h"

namespace nanhunt::campaign {

class Witness : public engine::Observer {
 public:
  // `target` may be null: then only marks are looked at.
  Witness(const Rig& rig, const Target* target);
  void on_op(const engine::OpCall& call) noexcept override;
  void on_mark(TensorRole kind, std::string_view path, const engine::Tensor& tensor) noexcept override;
  void on_step_begin(std::uint32_t step) noexcept override { step_ = step; }

  const std::optional<Place>& planted() const { return planted_; }    // the target op, gone bad
  const std::optional<Place>& intruder() const { return intruder_; }  // another op of forward, loss or optimizer before
  std::optional<std::uint32_t> first_bad_step() const { return first_bad_step_; }  // of a loss, gradient, parameter ...

 private:
  bool matches(const engine::OpCall& call) const;
  const Target* target_;
  std::optional<std::string> module_;  // of the target, when it is known
  std::uint32_t step_ = 0;
  std::optional<Place> planted_, intruder_;
  std::optional<std::uint32_t> first_bad_step_;
};

// What training came to.
struct RunLog {
  std::vector<double> losses;
  std::map<std::string, engine::Tensor> start, end;  // parameters
  std::map<std::string, engine::Tensor> rest;        // state and buffers at the end
  std::map<std::string, double> growth;  // of each layer's weights, from the smallest loss to the last finite step
};
RunLog train(Rig& rig);

// Farther from the clean run's end than this share of the way that the clean run went: diverged.
inline constexpr double kDiverged = 0.25;

struct Harm {
  bool harmful = false;
  std::string why;
};
Harm compare(const RunLog& faulty, const RunLog& clean);

}  // namespace nanhunt::campaign
