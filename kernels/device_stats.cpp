// SPDX-License-Identifier: Apache-2.0
// The host's half of statistics on a device: how a view is walked, and what a record says.
#include "kernels/device_stats.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "kernels/cpu/tensor_stats_block.h"

namespace nanhunt::kernels {

static_assert(kDetailThresholds == kWhatIfThresholds);

Result<DeviceStatsView> plan_device_view(const TensorView& tensor, std::int64_t& repeats) {
  if (tensor.sizes.size() != tensor.strides.size()) {
    return Status(StatusCode::kUsage, "[device statistics] expected as many strides as sizes, got " +
                                          std::to_string(tensor.strides.size()) + " strides and " +
                                          std::to_string(tensor.sizes.size()) + " sizes");
  }
  const auto size = static_cast<std::int64_t>(dtype_size(tensor.dtype));
  DeviceStatsView view;
  view.data = reinterpret_cast<std::uint64_t>(tensor.data);
  view.dtype = tensor.dtype;
  view.count = 1;
  repeats = 1;

  std::vector<DeviceStatsView::Dim> dims;  // outermost first
  std::int64_t logical_stride = 1;
  for (std::size_t i = tensor.sizes.size(); i-- > 0;) {
    const std::int64_t length = tensor.sizes[i];
    std::int64_t stride = tensor.strides[i] * size;
    if (length < 0) {
      return Status(StatusCode::kUsage, "[device statistics] expected sizes >= 0, got " + std::to_string(length));
    }
    if (length == 0) {
      view = DeviceStatsView{};
      view.dtype = tensor.dtype;
      view.count = 0;
      repeats = 0;
      return view;
    }
    if (stride == 0) {
      repeats *= length;
    } else {
      view.count *= static_cast<std::uint64_t>(length);
      std::int64_t step = logical_stride;
      if (stride < 0 && length > 1) {  // walked from its other end
        view.data += static_cast<std::uint64_t>((length - 1) * stride);
        view.logical_base += (length - 1) * logical_stride;
        stride = -stride;
        step = -step;
      }
      if (length > 1) dims.insert(dims.begin(), {static_cast<std::uint64_t>(length), stride, step});
    }
    logical_stride *= length;
  }
  if (tensor.data == nullptr) {
    return Status(StatusCode::kUsage, "[device statistics] expected contents, got a view without data");
  }
  std::stable_sort(dims.begin(), dims.end(), [](const DeviceStatsView::Dim& a, const DeviceStatsView::Dim& b) {
    return a.stride_bytes > b.stride_bytes;
  });

  // Neighbours join where memory and logical order both run on.
  std::vector<DeviceStatsView::Dim> joined;
  for (const DeviceStatsView::Dim& dim : dims) {
    const auto length = static_cast<std::int64_t>(dim.size);
    if (!joined.empty() && joined.back().stride_bytes == length * dim.stride_bytes &&
        joined.back().logical_stride == length * dim.logical_stride) {
      joined.back() = {joined.back().size * dim.size, dim.stride_bytes, dim.logical_stride};
    } else {
      joined.push_back(dim);
    }
  }
  view.gapless = true;
  std::int64_t expected = size;
  for (std::size_t i = joined.size(); i-- > 0;) {
    view.gapless = view.gapless && joined[i].stride_bytes == expected;
    expected *= static_cast<std::int64_t>(joined[i].size);
  }
  const bool plain =
      view.logical_base == 0 && (joined.empty() || (joined.size() == 1 && joined[0].logical_stride == 1));
  if (view.gapless && plain) return view;
  if (joined.size() > static_cast<std::size_t>(kMaxStatsDims)) {
    return Status(StatusCode::kUnsupported, "[device statistics] expected at most " + std::to_string(kMaxStatsDims) +
                                                " dimensions that do not join in memory, got " +
                                                std::to_string(joined.size()) + "; take a contiguous copy");
  }
  view.dims = static_cast<std::uint8_t>(joined.size());
  std::copy(joined.begin(), joined.end(), view.dim);
  return view;
}

namespace {

TensorStats stats_of_integers(const DeviceStatsRecord& record, std::int64_t repeats) {
  TensorStats stats;
  stats.level = record.level;
  stats.numel = static_cast<std::int64_t>(record.count) * repeats;
  if (record.level == StatsLevel::kFinite || stats.numel == 0) return stats;
  const std::int64_t smallest = ~record.largest_negative;
  const auto magnitude = [](std::int64_t x) {
    return x < 0 ? ~static_cast<std::uint64_t>(x) + 1 : static_cast<std::uint64_t>(x);
  };
  stats.zero = static_cast<std::int64_t>(record.zero) * repeats;
  stats.min = static_cast<double>(smallest);
  stats.max = static_cast<double>(record.largest);
  stats.amax = static_cast<double>(std::max(magnitude(smallest), magnitude(record.largest)));
  if (stats.has_nonzero()) stats.amin_nonzero = static_cast<double>(record.least_nonzero);
  if (record.level >= StatsLevel::kSums) {
    stats.sum = record.sum * static_cast<double>(repeats);
    stats.sum_sq = record.sum_sq * static_cast<double>(repeats);
  }
  return stats;
}

}  // namespace

TensorStats stats_of_record(const DeviceStatsRecord& record, const std::uint64_t* details, std::int64_t repeats) {
  if (!is_floating(record.dtype)) return stats_of_integers(record, repeats);
  const FormatCodes& f = format_codes(record.dtype);
  Totals totals;
  totals.nan = static_cast<std::int64_t>(record.nan);
  totals.pos_inf = static_cast<std::int64_t>(record.pos_inf);
  totals.neg_inf = static_cast<std::int64_t>(record.neg_inf);
  totals.zero = static_cast<std::int64_t>(record.zero);
  totals.subnormal = static_cast<std::int64_t>(record.subnormal);
  totals.max_positive = record.largest;
  totals.max_negative = record.largest_negative;
  totals.min_nonzero = record.least_nonzero;
  totals.sum = record.sum;
  totals.sum_sq = record.sum_sq;
  std::vector<std::int64_t> binades;
  if (details != nullptr && record.level >= StatsLevel::kWhatIf) {
    std::copy(details, details + kWhatIfThresholds, totals.below);
    if (record.level >= StatsLevel::kHistogram) {
      const std::uint64_t* first = details + kWhatIfThresholds;
      binades.assign(first, first + f.binades());
      totals.binades = binades.data();
    }
  }
  const StatsLevel level = details == nullptr ? std::min(record.level, StatsLevel::kSums) : record.level;
  TensorStats stats;
  if (level == StatsLevel::kFinite) {
    stats.numel = static_cast<std::int64_t>(record.count) * repeats;
  } else {
    stats = finish_totals(f, static_cast<std::int64_t>(record.count), repeats, level, totals,
                          totals.sum * static_cast<double>(repeats));
  }
  stats.level = level;
  stats.any_nonfinite = record.first != kNoIndex;
  stats.first_nonfinite = stats.any_nonfinite ? static_cast<std::int64_t>(record.first) : -1;
  return stats;
}

}  // namespace nanhunt::kernels
