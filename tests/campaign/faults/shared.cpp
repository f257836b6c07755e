// SPDX-License-Identifier: Apache-2.0
// What families share, and the list of them.
#include <algorithm>
#include <cmath>

#include "tests/campaign/fault.h"
#include "tests/campaign/faults/families.h"

namespace nanhunt::campaign {

std::span<const Family* const> all_families() {
  static const Family* const kAll[] = {
      &kActivationOverflow, &kWeightOverflow, &kDomain,       &kZeroDenominator, &kRemovedEps,   &kAdamEps,
      &kMaskedRow,          &kHiddenBranch,   &kSwallowedInf, &kBadData,         &kBadStart,     &kBadLater,
      &kStaticScale,        &kScalerMisuse,   &kCollapse,     &kHighLr,          &kGradUnderflow,
      &kBitFlip,            &kLostUpdates,
  };
  return kAll;
}

const Family* find_family(std::string_view name) {
  for (const Family* family : all_families()) {
    if (family->name == name) return family;
  }
  return nullptr;
}

std::pair<double, double> range_of(const engine::Tensor& x) {
  const std::vector<double> values = x.to_vector();
  double low = HUGE_VAL, high = -HUGE_VAL;
  for (const double v : values) {
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

std::uint32_t draw_step(Draw& draw, const Settings& settings) { return draw.between(1, settings.steps - 6); }

void limit_under_scaler(const Settings& settings, Plan& plan) {
  if (settings.scaler && settings.dynamic_scale) plan.last_step = plan.first_step + 2;
}

std::function<std::optional<std::string>(const Rig&)> at_site(int site) {
  return [site](const Rig& rig) -> std::optional<std::string> { return rig.site_path(site); };
}

}  // namespace nanhunt::campaign
