// SPDX-License-Identifier: Apache-2.0
// Records the replay of a step, and keeps what it is compared by.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hooks/engine/op_adapter.h"
#include "hooks/engine/read_group.h"
#include "src/hunt/replay_comparison.h"

namespace nanhunt::hooks {

// What a validation gave, in the words of a comparison.
inline std::string validated_name(std::string_view path, std::uint32_t micro_batch) {
  return "the validation's " + std::string(path) + " of micro-batch " + std::to_string(micro_batch);
}

class ReplayRecord final : public OpAdapter {
 public:
  // Facts are read as those of the step are: with `readings` (borrowed) on the device, else by the host.
  ReplayRecord(Recorder& recorder, ReplayTrigger trigger, bool several_losses,
               kernels::DeviceReadings* readings = nullptr);

  // Called when everything is as the step began, before the row that begins the replay.
  void before_begin(std::function<void()> call) { before_begin_ = std::move(call); }

  void on_step_begin(std::uint32_t step) noexcept override;
  void on_mark(TensorRole kind, std::string_view path, const engine::Tensor& tensor) noexcept override;

  bool began() const { return began_; }
  // May wait for the device. What was lost on the way is not among them.
  std::vector<hunt::StepFact> facts();

 private:
  using Key = std::pair<TensorRole, std::string>;

  ReplayTrigger trigger_;
  bool several_, began_ = false;
  kernels::DeviceReadings* readings_;
  std::function<void()> before_begin_;
  std::map<Key, ReadGroup> facts_;
};

}  // namespace nanhunt::hooks
