// SPDX-License-Identifier: Apache-2.0
#include "reports/views/magnitudes.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "reports/views/equation.h"
#include "reports/views/numbers.h"

namespace nanhunt::reports {
namespace {

constexpr std::array<DType, 5> kFormats = {DType::kF16, DType::kBF16, DType::kF32, DType::kE4M3FN, DType::kE5M2};
// No finite double lies outside; what claims to is damage.
constexpr int kLeast = -1075, kBeyond = 1025;
// The picture always reaches from the edge of fp16 to the edge of fp16, so that one and the same run looks the same.
constexpr int kShowFrom = -26, kShowTo = 18;

int binade(double x) {
  int exponent = 0;
  std::frexp(x, &exponent);  // x = m * 2^exponent, m in [1/2, 1)
  return exponent - 1;
}

FormatRange range_of(DType dtype) {
  const FormatLimits& limits = format_limits(dtype);
  return {std::string(dtype_name(dtype)), binade(limits.min_subnormal), binade(limits.min_normal),
          binade(limits.max_finite) + 1};
}

bool add_tensor(const TensorSummary& tensor, std::vector<MagnitudeRow>& rows) {
  const TensorStats& s = tensor.stats;
  if (!tensor.has_stats || s.level < StatsLevel::kCounts || !is_floating(tensor.dtype)) return false;
  MagnitudeRow row;
  row.label = clip(tensor.role, kNameLimit) + " " + clip(tensor.name.empty() ? tensor.slot : tensor.name, kNameLimit);
  row.dtype = dtype_name(tensor.dtype);
  if (s.zero > 0) row.zeros = format_signed_count(s.zero);
  if (s.nonfinite() > 0) row.nonfinite = format_signed_count(s.nonfinite());
  if (s.level >= StatsLevel::kHistogram && !s.histogram.empty()) {
    std::size_t first = 0, last = s.histogram.size();
    while (first < last && s.histogram[first] == 0) ++first;
    while (last > first && s.histogram[last - 1] == 0) --last;
    row.bins.assign(s.histogram.begin() + static_cast<std::ptrdiff_t>(first),
                    s.histogram.begin() + static_cast<std::ptrdiff_t>(last));
    row.least = s.histogram_min_exponent + static_cast<int>(first);
    row.beyond = row.least + static_cast<int>(row.bins.size());
  } else if (s.has_nonzero() && s.amin_nonzero > 0 && std::isfinite(s.amax)) {
    row.least = binade(s.amin_nonzero);
    row.beyond = binade(s.amax) + 1;
  }
  const bool sane = row.least >= kLeast && row.beyond <= kBeyond && row.beyond >= row.least;
  if (!sane || (row.beyond == row.least && row.zeros.empty() && row.nonfinite.empty())) return false;
  rows.push_back(std::move(row));
  return true;
}

}  // namespace

MagnitudeView view_magnitudes(const Finding& finding) {
  MagnitudeView view;
  for (const TensorSummary& input : finding.inputs) {
    if (view.rows.size() + 1 == kMaxMagnitudes) break;
    if (add_tensor(input, view.rows) && input.name.empty())
      view.rows.back().label = part_of_quotient(finding.place.op.value_or(""), input.slot, view.rows.back().label);
  }
  const std::optional<TensorSummary>& result = finding.output ? finding.output : finding.tensor;
  if (result) add_tensor(*result, view.rows);
  if (view.rows.empty()) return view;
  view.from = kShowFrom;
  view.to = kShowTo;
  for (const MagnitudeRow& row : view.rows) {
    if (row.beyond == row.least) continue;
    view.from = std::min(view.from, row.least - 1);
    view.to = std::max(view.to, row.beyond + 1);
  }
  for (const DType dtype : kFormats) view.formats.push_back(range_of(dtype));
  return view;
}

}  // namespace nanhunt::reports
