// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/read_group.h"

#include <algorithm>

namespace nanhunt::hooks {

TensorView device_view(const engine::Tensor& tensor) {
  TensorView view = tensor.view();
  view.data = tensor.storage()->data() + static_cast<std::size_t>(tensor.storage_offset()) * dtype_size(tensor.dtype());
  return view;
}

void ReadGroup::add(const engine::Tensor& tensor, Wanted wanted) {
  tensors_.emplace_back(tensor, wanted);
  readings_.emplace_back();
}

void ReadGroup::ask(kernels::DeviceReadings* device) noexcept {
  try {
    std::vector<TensorView> views;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const auto& [tensor, wanted] = tensors_[i];
      if (device == nullptr) {
        readings_[i] = read(tensor, wanted);
      } else if (!is_floating(tensor.dtype())) {
        TensorStats none;
        none.numel = tensor.numel();
        readings_[i] = reading_of(none);
      } else if (tensor.device().is_cpu()) {
        readings_[i] = reading_of(compute_stats(tensor.view(), StatsLevel::kSums));
      } else {
        places_.push_back(i);
        views.push_back(device_view(tensor));
      }
    }
    found_.resize(views.size());
    if (!views.empty()) {
      ticket_ = device->enqueue(views);
      device_ = device;
    }
  } catch (...) {  // no memory: what is not known is not known
  }
  tensors_.clear();
}

void ReadGroup::take(kernels::ReadingsState state) {
  if (state == kernels::ReadingsState::kPending) return;
  device_ = nullptr;
  if (state == kernels::ReadingsState::kLost) return;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (found_[i]) readings_[places_[i]] = reading_of(*found_[i]);
  }
}

bool ReadGroup::poll() noexcept {
  if (device_ != nullptr) take(device_->poll(ticket_, found_));
  return device_ == nullptr;
}

bool ReadGroup::wait() noexcept {
  if (device_ != nullptr) take(device_->wait(ticket_, found_));
  return device_ == nullptr;
}

void ReadGroup::give_up() noexcept {
  if (device_ != nullptr) device_->drop(ticket_);
  device_ = nullptr;
}

bool ReadGroup::incomplete() const {
  return std::any_of(readings_.begin(), readings_.end(), [](const Reading& reading) { return !reading.known; });
}

}  // namespace nanhunt::hooks
