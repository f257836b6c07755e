// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "tests/campaign/faults/faults.h"

namespace nanhunt::campaign {

std::vector<Fault> all_faults() {
  std::vector<Fault> out = arithmetic_faults();
  for (auto* more : {memory_faults, training_faults}) {
    for (Fault& fault : more()) out.push_back(std::move(fault));
  }
  return out;
}

std::pair<double, double> range_of(const engine::Tensor& x) {
  double low = HUGE_VAL, high = -HUGE_VAL;
  for (const double v : x.to_vector()) {
    if (!std::isfinite(v)) continue;
    low = std::min(low, v);
    high = std::max(high, v);
  }
  return low <= high ? std::pair(low, high) : std::pair(0.0, 0.0);
}

double amax_of(const engine::Tensor& x) {
  const auto [low, high] = range_of(x);
  return std::max({std::fabs(low), std::fabs(high), 1e-6});
}

void set_element(engine::Tensor tensor, std::int64_t index, double value) {
  auto* first = static_cast<std::byte*>(tensor.raw());
  store_from_f64(tensor.dtype(), first + static_cast<std::size_t>(index) * dtype_size(tensor.dtype()), value);
}

}  // namespace nanhunt::campaign
