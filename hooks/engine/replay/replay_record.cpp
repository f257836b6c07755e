// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/replay/replay_record.h"

namespace nanhunt::hooks {

ReplayRecord::ReplayRecord(Recorder& recorder, ReplayTrigger trigger, bool several_losses,
                           kernels::DeviceReadings* readings)
    : OpAdapter(recorder, /*whole_run=*/false), trigger_(trigger), several_(several_losses), readings_(readings) {}

void ReplayRecord::on_step_begin(std::uint32_t step) noexcept {
  began_ = true;
  try {
    if (before_begin_) before_begin_();
  } catch (...) {  // no memory: what changed unseen is not told
  }
  ReplayEvent event;
  event.step = step;
  event.trigger = trigger_;
  recorder_.on_replay(event);
  OpAdapter::on_step_begin(step);
}

void ReplayRecord::on_mark(TensorRole kind, std::string_view path, const engine::Tensor& tensor) noexcept {
  OpAdapter::on_mark(kind, path, tensor);
  if (!tensor.defined() || (!is_sink(kind) && kind != TensorRole::kOutput)) return;
  try {
    std::string name(path);
    if (kind == TensorRole::kLoss) {
      name = several_ ? "the loss of micro-batch " + std::to_string(micro_batch_) : "the loss";
    }
    if (kind == TensorRole::kOutput) name = validated_name(path, micro_batch_);
    // The last of its name counts.
    ReadGroup& fact = facts_[{kind, std::move(name)}];
    fact.give_up();
    fact = {};
    fact.add(tensor, Wanted::kContents);
    fact.ask(readings_);
  } catch (...) {  // no memory: it counts as not come about
  }
}

std::vector<hunt::StepFact> ReplayRecord::facts() {
  std::vector<hunt::StepFact> all;
  for (auto& [key, fact] : facts_) {
    fact.wait();
    if (!fact.empty() && fact[0].known) all.push_back({key.first, key.second, fact[0].finite, fact[0].checksum});
  }
  return all;
}

}  // namespace nanhunt::hooks
