// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/replay/origin_watch.h"

#include <algorithm>
#include <string>

#include "hooks/engine/replay/engine_ops.h"
#include "src/core/op_name.h"

namespace nanhunt::hooks {
namespace {

bool same_place(const hunt::OpPosition& a, std::uint32_t micro_batch, const engine::OpCall& call) {
  return a.micro_batch == micro_batch && a.phase == call.phase && a.module == call.module &&
         a.op == plain_op_name(call.op);
}

}  // namespace

OriginWatch::OriginWatch(const hunt::OriginPlan& plan) : plan_(plan), captured_(plan.ops.size()) {
  const auto add_place = [&](hunt::OpPosition at) {
    at.nth = 0;
    const bool known =
        std::any_of(counts_.begin(), counts_.end(), [&](const auto& entry) { return entry.first == at; });
    if (!known) counts_.emplace_back(std::move(at), 0);
  };
  for (const hunt::PlannedOp& op : plan_.ops) {
    add_place(op.at);
    for (const hunt::PlannedValue& input : op.inputs)
      needs_start_ = needs_start_ || input.role == ArgRole::kOverwritten;
  }
  for (const auto& [at, output] : plan_.held) add_place(at);
}

void OriginWatch::hold(const std::vector<engine::NamedTensor>& tensors) {
  for (const engine::NamedTensor& entry : tensors) {
    const auto& [path, tensor] = entry;
    if (may_overwrite(entry))
      held_.insert_or_assign({tensor.storage()->generation(), tensor.version()}, array_of(tensor));
  }
}

// Copies of a whole model would be too many.
bool OriginWatch::may_overwrite(const engine::NamedTensor& entry) const {
  for (const hunt::PlannedOp& op : plan_.ops) {
    const std::string& module = op.at.module;
    const bool other_parameter =
        op.at.phase == Phase::kOptimizer && entry.path != module && !entry.path.starts_with(module + ".");
    if (other_parameter) continue;
    for (const hunt::PlannedValue& input : op.inputs) {
      if (input.role == ArgRole::kOverwritten && input.dtype == entry.tensor.dtype() &&
          input.sizes == entry.tensor.sizes())
        return true;
    }
  }
  return false;
}

void OriginWatch::on_step_begin(std::uint32_t step) noexcept {
  active_ = step == plan_.step;
  micro_batch_ = 0;
}

void OriginWatch::on_micro_batch(std::uint32_t micro_batch, std::span<const std::int64_t> /*sample_ids*/) noexcept {
  micro_batch_ = micro_batch;
}

void OriginWatch::on_op(const engine::OpCall& call) noexcept {
  if (!active_) return;
  try {
    take_op(call);
  } catch (...) {  // no memory: the op counts as not met again
  }
}

void OriginWatch::take_op(const engine::OpCall& call) {
  const auto place = std::find_if(counts_.begin(), counts_.end(),
                                  [&](const auto& entry) { return same_place(entry.first, micro_batch_, call); });
  if (place == counts_.end()) return;
  const std::uint32_t nth = place->second++;
  for (std::size_t i = 0; i < plan_.ops.size(); ++i) {
    if (plan_.ops[i].at.nth == nth && same_place(plan_.ops[i].at, micro_batch_, call)) capture(i, call);
  }
  for (const auto& [at, output] : plan_.held) {
    if (at.nth != nth || !same_place(at, micro_batch_, call) || output >= call.outputs.size()) continue;
    const engine::OpArgument& made = call.outputs[output];
    if (made.tensor == nullptr || !made.tensor->defined() || made.tensor->version() != made.version) continue;
    held_.insert_or_assign({made.tensor->storage()->generation(), made.version}, array_of(*made.tensor));
  }
}

void OriginWatch::capture(std::size_t index, const engine::OpCall& call) {
  const hunt::PlannedOp& planned = plan_.ops[index];
  hunt::CapturedOp op;
  // Undefined arguments are not recorded, so they are not in the plan either.
  std::vector<const engine::OpArgument*> inputs, outputs;
  const auto gather = [](std::span<const engine::OpArgument> from, std::vector<const engine::OpArgument*>& to) {
    for (const engine::OpArgument& argument : from) {
      if (argument.tensor != nullptr && argument.tensor->defined()) to.push_back(&argument);
    }
  };
  gather(call.inputs, inputs);
  gather(call.outputs, outputs);
  if (inputs.size() != planned.inputs.size() || outputs.size() != planned.outputs.size()) return;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i]->slot != planned.inputs[i].slot) return;
    op.inputs.push_back(contents_of(*inputs[i]));
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const bool wanted = index == 0 && i == plan_.bad_output;
    op.outputs.push_back(wanted ? contents_of(*outputs[i]) : std::nullopt);
  }
  op.seen = true;
  captured_[index] = std::move(op);
}

std::optional<hunt::Array> OriginWatch::contents_of(const engine::OpArgument& argument) const {
  const engine::Tensor& tensor = *argument.tensor;
  if (argument.role != ArgRole::kOverwritten && tensor.version() == argument.version) return array_of(tensor);
  const auto held = held_.find({tensor.storage()->generation(), argument.version});
  if (held == held_.end() || held->second.sizes != tensor.sizes() || held->second.dtype != tensor.dtype())
    return std::nullopt;
  // Another view of the same storage may have been held.
  return held->second.order == array_of(tensor).order ? std::optional(held->second) : std::nullopt;
}

}  // namespace nanhunt::hooks
