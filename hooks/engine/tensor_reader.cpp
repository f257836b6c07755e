// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/tensor_reader.h"

#include <string>
#include <utility>

#include "src/engine/backend.h"

namespace nanhunt::hooks {
namespace {

// Every tensor that an op names takes a result: a step of a large model some ten thousand.
constexpr kernels::ReadingsOptions kReadings = {
    .tensors = 1 << 17, .tickets = 1 << 15, .references = 1 << 17, .arena_words = 1 << 19};

}  // namespace

TensorView device_view(const engine::Tensor& tensor) {
  TensorView view = tensor.view();
  view.data = tensor.storage()->data() + static_cast<std::size_t>(tensor.storage_offset()) * dtype_size(tensor.dtype());
  return view;
}

bool TensorReader::can_read(const engine::Tensor& tensor) {
  if (tensor.device().is_cpu()) return false;
  if (!std::exchange(opened_, true)) {
    device_ = tensor.device();
    std::string why;
    auto readings = kernels::DeviceReadings::open(engine::backend_of(device_), kReadings, why);
    if (readings == nullptr) {
      recorder_.on_note({0, "statistics on the device, so contents were copied: " + why, 1});
    } else {
      reader_.add(std::move(readings), kReadings.references);
    }
  }
  return reader_.streams() != 0 && tensor.device() == device_;
}

void TensorReader::value(const engine::Tensor& tensor, ValueView& value, Use use) {
  value.tensor.data = device_view(tensor).data;
  reader_.value(0, value, use);
}

template <typename F>
void TensorReader::guard(F&& body) noexcept {
  try {
    body();
  } catch (...) {
    failed_ = true;
  }
}

void TensorReader::take() noexcept {
  guard([&] { reader_.take(recorder_); });
}

void TensorReader::take(OpEvent& event) noexcept {
  guard([&] { reader_.take(event, recorder_); });
}

void TensorReader::launch() noexcept {
  if (!failed_) guard([&] { reader_.launch(recorder_); });
  if (std::exchange(failed_, false)) reader_.begin_call(recorder_);
}

void TensorReader::end_step() noexcept {
  guard([&] { reader_.end_step(recorder_); });
  failed_ = false;  // reported with a later step, or given up
}

void TensorReader::finish() noexcept {
  guard([&] { reader_.settle(recorder_); });
}

}  // namespace nanhunt::hooks
