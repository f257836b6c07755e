// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/reading.h"

#include "hooks/engine/host_contents.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/cpu/checksum.h"
#include "nanhunt/tensor_stats.h"

namespace nanhunt::hooks {
namespace {

// For small fp32 tensors: a plain loop over eight lanes is done before the wide vector units of compute_stats, which
// are faster by far on large ones, have come to speed. The sum is the same on every machine.
constexpr std::int64_t kSmall = 16384;

struct PlainNorm {
  double sum_sq = 0;
  float amax = 0;
  bool finite = true;
};

PlainNorm plain_norm(const float* values, std::int64_t count) {
  constexpr std::int64_t kLanes = 8;
  std::array<double, kLanes> sums{};
  std::array<std::uint32_t, kLanes> largest{};
  const auto add = [&](std::size_t lane, float value) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu;
    largest[lane] = std::max(largest[lane], magnitude);
    sums[lane] += static_cast<double>(value) * static_cast<double>(value);
  };
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) add(lane, values[i + static_cast<std::int64_t>(lane)]);
  }
  for (std::size_t lane = 0; i < count; ++i, ++lane) add(lane, values[i]);
  PlainNorm out;
  for (const double sum : sums) out.sum_sq += sum;
  const std::uint32_t most = *std::max_element(largest.begin(), largest.end());
  out.finite = most < 0x7F800000u;
  out.amax = std::bit_cast<float>(most);
  return out;
}

}  // namespace

std::uint64_t checksum_of(const engine::Tensor& tensor) {
  const ScopedHostContents contents;
  return kernels::checksum_elements(host_view(tensor));
}

bool is_finite(const engine::Tensor& tensor) {
  if (!is_floating(tensor.dtype())) return true;
  const ScopedHostContents contents;
  return !compute_stats(host_view(tensor), StatsLevel::kFinite).any_nonfinite;
}

namespace {

Reading read_norm(const engine::Tensor& tensor) {
  if (tensor.dtype() == DType::kF32 && tensor.numel() <= kSmall && tensor.is_contiguous() &&
      tensor.device().is_cpu()) {
    const PlainNorm plain = plain_norm(tensor.data<float>(), tensor.numel());
    if (plain.finite) {
      return {.known = true, .norm = std::sqrt(plain.sum_sq), .amax = static_cast<double>(plain.amax)};
    }
  }
  const ScopedHostContents contents;
  return reading_of(compute_stats(host_view(tensor), StatsLevel::kSums));
}

// Without the checksum.
Reading read_values(const engine::Tensor& tensor, Wanted wanted) {
  if (wanted == Wanted::kNorm || wanted == Wanted::kAll) return read_norm(tensor);
  Reading reading{.known = true};
  if (wanted == Wanted::kChecksum) return reading;
  reading.finite = is_finite(tensor);
  if (!reading.finite) reading.nan = compute_stats(host_view(tensor), StatsLevel::kSums).nan > 0;
  return reading;
}

// Of the numbers that were counted and summed.
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

}  // namespace

Reading read(const engine::Tensor& tensor, Wanted wanted) {
  const ScopedHostContents contents;
  Reading reading = read_values(tensor, wanted);
  const bool checked = wanted == Wanted::kChecksum || wanted == Wanted::kContents || wanted == Wanted::kAll;
  if (checked) reading.checksum = checksum_of(tensor);
  return reading;
}

Reading reading_of(const TensorStats& stats) {
  return {.known = true,
          .checksum = fingerprint(stats),
          .finite = stats.nonfinite() == 0,
          .nan = stats.nan > 0,
          .norm = stats.nan > 0     ? std::numeric_limits<double>::quiet_NaN()
                  : stats.inf() > 0 ? std::numeric_limits<double>::infinity()
                                    : std::sqrt(stats.sum_sq),
          .amax = stats.amax};
}

}  // namespace nanhunt::hooks
