// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/op_adapter.h"

#include <limits>
#include <numeric>

#include "hooks/engine/host_contents.h"
#include "hooks/engine/tensor_reader.h"

namespace nanhunt::hooks {

ValueView view_of(const engine::Tensor& tensor, std::uint32_t version, bool has_contents) {
  ValueView value;
  value.tensor = tensor.view();
  if (!has_contents) {
    value.tensor.data = nullptr;
  } else if (!tensor.device().is_cpu()) {
    try {
      value.tensor = host_view(tensor);
    } catch (...) {  // no memory, or the device is lost: then its contents are not seen
    }
  }
  value.storage = tensor.storage()->generation();
  value.version = version;
  value.offset = tensor.storage_offset();
  return value;
}

void OpAdapter::on_op(const engine::OpCall& call) noexcept {
  const ScopedHostContents contents;
  if (reader_ != nullptr) reader_->begin();
  try {
    gather(call);
  } catch (...) {
    return;  // no memory for three short lists: the op goes unseen, its results show up as made unseen
  }
  OpEvent event;
  event.step = step_;
  event.micro_batch = micro_batch_;
  event.phase = call.phase;
  event.module = call.module;
  event.op = call.op;
  event.compute_dtype = call.compute_dtype;
  event.inputs = inputs_;
  event.outputs = outputs_;
  event.scalars = call.scalars;
  if (reader_ != nullptr) reader_->take(event);
  recorder_.on_op(event);
  if (reader_ != nullptr) reader_->launch();
}

// The number of the op that comes next is known; its share is read now, for the call writes over it.
void OpAdapter::on_collective(const engine::CollectiveCall& call) noexcept {
  const ScopedHostContents contents;
  if (reader_ != nullptr) reader_->begin();
  try {
    ValueView share;
    name(*call.share, call.share->version(), true, share);
    std::vector<std::uint32_t> ranks(call.ranks);
    std::iota(ranks.begin(), ranks.end(), 0u);
    if (reader_ != nullptr) reader_->take();
    CollectiveEvent event;
    if (numbers_ != nullptr) event.seq = numbers_->next_seq();
    event.step = step_;
    event.group = "ranks";
    event.call = call.call;
    event.kind = call.kind;
    event.reduction = call.reduction;
    event.peer = call.root;
    event.ranks = ranks;
    event.shares = {&share, 1};
    recorder_.on_collective(event);
    if (reader_ != nullptr) reader_->launch();
  } catch (...) {  // no memory
  }
}

// `value` stays where it is until the event is taken.
void OpAdapter::name(const engine::Tensor& tensor, std::uint32_t version, bool has_contents, ValueView& value) {
  const bool on_device = has_contents && reader_ != nullptr && reader_->can_read(tensor);
  value = view_of(tensor, version, has_contents && !on_device);
  if (on_device) reader_->value(tensor, value, TensorReader::Use::kRead);
}

void OpAdapter::on_storage_released(std::uint64_t generation) noexcept {
  if (reader_ != nullptr) reader_->release(generation);
  recorder_.on_storage_released(generation);
}

void OpAdapter::check(std::span<const engine::Tensor> tensors) noexcept {
  if (reader_ != nullptr) reader_->begin();
  checked_.clear();
  try {
    checked_.reserve(tensors.size());
    for (const engine::Tensor& tensor : tensors) {
      if (!tensor.defined()) continue;
      if (reader_ == nullptr || !reader_->can_read(tensor)) {
        const ScopedHostContents contents;
        recorder_.check_contents(step_, view_of(tensor, tensor.version()));
        continue;
      }
      checked_.push_back(view_of(tensor, tensor.version(), /*has_contents=*/false));
      reader_->value(tensor, checked_.back(), TensorReader::Use::kKnown);
    }
  } catch (...) {  // no memory for a list: what is not in it is not checked
  }
  if (reader_ == nullptr) return;
  reader_->take();
  for (const ValueView& value : checked_) {
    if (value.late != 0) recorder_.check_contents(step_, value);
  }
  reader_->launch();
}

void OpAdapter::on_step_begin(std::uint32_t step) noexcept {
  step_ = step;
  micro_batch_ = 0;
}

void OpAdapter::on_micro_batch(std::uint32_t micro_batch, std::span<const std::int64_t> sample_ids) noexcept {
  micro_batch_ = micro_batch;
  recorder_.on_batch({step_, micro_batch, sample_ids});
}

void OpAdapter::on_mark(TensorRole kind, std::string_view path, const engine::Tensor& tensor) noexcept {
  if (!tensor.defined()) return;
  const ScopedHostContents contents;
  if (reader_ != nullptr) reader_->begin();
  try {
    ValueView value;
    name(tensor, tensor.version(), true, value);
    if (reader_ != nullptr) reader_->take();
    recorder_.on_mark({step_, micro_batch_, kind, path, value});
    if (reader_ != nullptr) reader_->launch();
  } catch (...) {  // no memory
  }
}

void OpAdapter::on_scaler(const ScalerEvent& event) noexcept {
  ScalerEvent placed = event;
  placed.step = step_;
  placed.micro_batch = micro_batch_;
  recorder_.on_scaler(placed);
}

void OpAdapter::on_step_end(std::uint32_t step, double loss, double lr, double scale, bool skipped) noexcept {
  end_step({step, skipped, loss, lr, scale});
}

void OpAdapter::on_step_given_up(std::uint32_t step, StepEnding ending, std::string_view message) noexcept {
  StepEvent event{.step = step, .ending = ending, .message = message};
  event.lr = event.scale = std::numeric_limits<double>::quiet_NaN();
  end_step(event);
}

void OpAdapter::end_step(const StepEvent& event) noexcept {
  if (reader_ != nullptr) reader_->end_step();
  recorder_.on_step_end(event);
  step_ = event.step + 1;  // what happens between two steps belongs to the coming one
  micro_batch_ = 0;
}

void OpAdapter::gather(const engine::OpCall& call) {
  inputs_.clear();
  outputs_.clear();
  inputs_.reserve(call.inputs.size());  // values stay where they are
  outputs_.reserve(call.outputs.size());
  for (const engine::OpArgument& in : call.inputs) {
    if (in.tensor == nullptr || !in.tensor->defined()) continue;
    // Contents are gone when the op wrote over them, or anything else did since.
    const bool has_contents = in.role != ArgRole::kOverwritten && in.tensor->version() == in.version;
    OpInput& its = inputs_.emplace_back(OpInput{in.slot, {}, in.role});
    name(*in.tensor, in.version, has_contents, its.value);
    if (in.role == ArgRole::kOverwritten && reader_ != nullptr && reader_->can_read(*in.tensor)) {
      reader_->value(*in.tensor, its.value, TensorReader::Use::kOld);
    }
  }
  for (const engine::OpArgument& out : call.outputs) {
    if (out.tensor == nullptr || !out.tensor->defined()) continue;
    OpOutput& its = outputs_.emplace_back(OpOutput{out.slot, {}});
    name(*out.tensor, out.version, out.tensor->version() == out.version, its.value);
  }
}

}  // namespace nanhunt::hooks
