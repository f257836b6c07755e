// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/reading.h"

#include <cmath>
#include <limits>

#include "nanhunt/tensor_stats.h"
#include "src/hunt/checksum.h"

namespace nanhunt::hooks {

std::uint64_t checksum_of(const engine::Tensor& tensor) {
  if (!tensor.is_contiguous()) return checksum_of(tensor.clone());
  return hunt::compute_checksum(tensor.raw(), static_cast<std::size_t>(tensor.numel()) * dtype_size(tensor.dtype()));
}

bool is_finite(const engine::Tensor& tensor) {
  return !is_floating(tensor.dtype()) || !compute_stats(tensor.view(), StatsLevel::kFinite).any_nonfinite;
}

Reading read_norm(const engine::Tensor& tensor) {
  const TensorStats stats = compute_stats(tensor.view(), StatsLevel::kSums);
  Reading reading{.known = true, .has_norm = true, .version = tensor.version()};
  reading.finite = stats.nonfinite() == 0;
  reading.amax = stats.amax;
  reading.norm = stats.nan > 0     ? std::numeric_limits<double>::quiet_NaN()
                 : stats.inf() > 0 ? std::numeric_limits<double>::infinity()
                                   : std::sqrt(stats.sum_sq);
  return reading;
}

Reading read_contents(const engine::Tensor& tensor) {
  Reading reading{.known = true, .version = tensor.version()};
  reading.checksum = checksum_of(tensor);
  reading.finite = is_finite(tensor);
  return reading;
}

Reading read_all(const engine::Tensor& tensor) {
  Reading reading = read_norm(tensor);
  reading.checksum = checksum_of(tensor);
  return reading;
}

}  // namespace nanhunt::hooks
