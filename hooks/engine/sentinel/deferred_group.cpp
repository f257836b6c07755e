// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/sentinel/deferred_group.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace nanhunt::hooks {

TensorView device_view(const engine::Tensor& tensor) {
  TensorView view = tensor.view();
  view.data = tensor.storage()->data() + static_cast<std::size_t>(tensor.storage_offset()) * dtype_size(tensor.dtype());
  return view;
}

std::size_t DeferredGroup::add(const engine::Tensor& tensor) {
  tensors_.push_back(tensor);
  stats_.emplace_back();
  return stats_.size() - 1;
}

void DeferredGroup::ask(kernels::DeviceReadings& readings) noexcept {
  requests_ = true;
  try {
    std::vector<TensorView> views;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const engine::Tensor& tensor = tensors_[i];
      if (!is_floating(tensor.dtype())) {
        stats_[i].emplace().numel = tensor.numel();
      } else if (tensor.device().is_cpu()) {
        stats_[i] = compute_stats(tensor.view(), StatsLevel::kSums);
      } else {
        places_.push_back(i);
        views.push_back(device_view(tensor));
      }
    }
    found_.resize(views.size());
    if (!views.empty()) ticket_ = readings.enqueue(views);
    done_ = views.empty();
  } catch (...) {
    done_ = true;  // no memory: what is not known is not known
  }
  tensors_.clear();
}

void DeferredGroup::take(kernels::ReadingsState state) {
  if (state == kernels::ReadingsState::kPending) return;
  done_ = true;
  if (state == kernels::ReadingsState::kLost) return;
  for (std::size_t i = 0; i < places_.size(); ++i) stats_[places_[i]] = std::move(found_[i]);
}

bool DeferredGroup::poll(kernels::DeviceReadings& readings) noexcept {
  if (!done_ && requests_) take(readings.poll(ticket_, found_));
  return done_;
}

bool DeferredGroup::wait(kernels::DeviceReadings& readings) noexcept {
  if (!done_ && requests_) take(readings.wait(ticket_, found_));
  return done_;
}

void DeferredGroup::give_up(kernels::DeviceReadings& readings) noexcept {
  if (!done_ && requests_) readings.drop(ticket_);
  done_ = true;
}

bool DeferredGroup::incomplete() const {
  return done_ && std::any_of(stats_.begin(), stats_.end(), [](const auto& stats) { return !stats.has_value(); });
}

double norm_of(const TensorStats& stats) {
  if (stats.nan > 0) return std::numeric_limits<double>::quiet_NaN();
  if (stats.inf() > 0) return std::numeric_limits<double>::infinity();
  return std::sqrt(stats.sum_sq);
}

std::uint64_t fingerprint(const TensorStats& stats) {
  std::uint64_t hash = 0x9e3779b97f4a7c15u;
  const auto mix = [&](std::uint64_t word) {
    hash = (hash ^ word) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  };
  for (const std::int64_t count : {stats.numel, stats.first_nonfinite, stats.nan, stats.pos_inf, stats.neg_inf,
                                   stats.zero, stats.subnormal}) {
    mix(static_cast<std::uint64_t>(count));
  }
  for (const double number : {stats.amax, stats.amin_nonzero, stats.min, stats.max, stats.sum, stats.sum_sq}) {
    mix(std::bit_cast<std::uint64_t>(number));
  }
  return hash;
}

}  // namespace nanhunt::hooks
