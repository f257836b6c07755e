// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/op_adapter.h"

#include "hooks/engine/device_reader.h"
#include "hooks/engine/host_contents.h"

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
  if (paused_) return;
  const ScopedHostContents contents;
  try {
    gather(call);
  } catch (...) {
    report_lost();
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
  if (reader_ == nullptr) return recorder_.on_op(event);
  try {
    event.late = reader_->read_evidence(call, event);
    reader_->take();
  } catch (...) {  // no memory: what is not launched is told as lost
  }
  recorder_.on_op(event);
  report_lost();
}

// No memory: the recorder gives up by itself what it is not told.
void OpAdapter::report_lost() noexcept {
  if (reader_ == nullptr) return;
  try {
    reader_->report_lost();
  } catch (...) {
    reader_->forget();
  }
}

void OpAdapter::finish() noexcept {
  if (reader_ == nullptr) return;
  try {
    reader_->finish();
  } catch (...) {
  }
}

ValueView OpAdapter::view(const engine::Tensor& tensor, std::uint32_t version, bool has_contents) {
  const bool late = has_contents && reader_ != nullptr && reader_->can_read(tensor);
  ValueView value = view_of(tensor, version, has_contents && !late);
  if (late) reader_->read(tensor, value);
  return value;
}

void OpAdapter::on_storage_released(std::uint64_t generation) noexcept {
  if (reader_ != nullptr) reader_->release(generation);
  recorder_.on_storage_released(generation);
}

void OpAdapter::check(std::span<const engine::Tensor> tensors) noexcept {
  for (const engine::Tensor& tensor : tensors) {
    if (!tensor.defined() || (reader_ != nullptr && reader_->can_read(tensor))) continue;
    const ScopedHostContents contents;
    recorder_.check_contents(step_, view_of(tensor, tensor.version()));
  }
  if (reader_ == nullptr) return;
  try {
    checked_.clear();
    for (const engine::Tensor& tensor : tensors) {
      if (!tensor.defined() || !reader_->can_read(tensor)) continue;
      ValueView value = view_of(tensor, tensor.version(), /*has_contents=*/false);
      if (!reader_->was_read(value)) continue;
      reader_->read(tensor, value);
      checked_.push_back(value);
    }
    reader_->take();
  } catch (...) {  // no memory: what is not launched is told as lost
  }
  for (const ValueView& value : checked_) recorder_.check_contents(step_, value);
  report_lost();
}

void OpAdapter::on_step_begin(std::uint32_t step) noexcept {
  step_ = step;
  micro_batch_ = 0;
}

void OpAdapter::on_micro_batch(std::uint32_t micro_batch, std::span<const std::int64_t> sample_ids) noexcept {
  micro_batch_ = micro_batch;
  if (whole_run_) recorder_.on_batch({step_, micro_batch, sample_ids});
}

void OpAdapter::on_mark(TensorRole kind, std::string_view path, const engine::Tensor& tensor) noexcept {
  if (paused_ || !tensor.defined()) return;
  const ScopedHostContents contents;
  try {
    const ValueView value = view(tensor, tensor.version(), true);
    if (reader_ != nullptr) reader_->take();
    recorder_.on_mark({step_, micro_batch_, kind, path, value});
  } catch (...) {  // no memory
  }
  report_lost();
}

void OpAdapter::on_scaler(const ScalerEvent& event) noexcept {
  if (!whole_run_) return;
  ScalerEvent placed = event;
  placed.step = step_;
  placed.micro_batch = micro_batch_;
  recorder_.on_scaler(placed);
}

void OpAdapter::on_step_end(std::uint32_t step, double loss, double lr, double scale, bool skipped) noexcept {
  try {
    if (reader_ != nullptr) reader_->end_step();
  } catch (...) {  // no memory: told with a later step, or given up
  }
  if (whole_run_) recorder_.on_step_end({step, skipped, loss, lr, scale});
  step_ = step + 1;  // what happens between two steps belongs to the coming one
  micro_batch_ = 0;
}

void OpAdapter::gather(const engine::OpCall& call) {
  inputs_.clear();
  outputs_.clear();
  for (const engine::OpArgument& in : call.inputs) {
    if (in.tensor == nullptr || !in.tensor->defined()) continue;
    // Contents are gone when the op wrote over them, or anything else did since.
    const bool has_contents = in.role != ArgRole::kOverwritten && in.tensor->version() == in.version;
    inputs_.push_back({in.slot, view(*in.tensor, in.version, has_contents), in.role});
    if (reader_ != nullptr && in.role == ArgRole::kOverwritten)
      reader_->overwritten(inputs_.size() - 1, inputs_.back().value);
  }
  for (const engine::OpArgument& out : call.outputs) {
    if (out.tensor == nullptr || !out.tensor->defined()) continue;
    outputs_.push_back({out.slot, view(*out.tensor, out.version, out.tensor->version() == out.version)});
  }
}

}  // namespace nanhunt::hooks
