// SPDX-License-Identifier: Apache-2.0
// Runs the device's tensor_stats kernel on the CPU, in emulated grids, and compares with the CPU's own statistics.
#pragma once

#include <algorithm>

#include "kernels/portable/tensor_stats_kernel.h"
#include "tests/kernels/stats_agree.h"
#include "tests/kernels/stats_support.h"
#include "tests/support/emulated_grid.h"

namespace nanhunt::testing_support {

using kernels::DeviceStatsRecord;
using kernels::DeviceStatsView;

// Those that there are kernels of.
inline constexpr StatsLevel kDeviceLevels[] = {StatsLevel::kSums, StatsLevel::kHistogram};

inline kernels::cuda::StatsTable table_of(const DeviceStatsView& view, std::uint32_t tag) {
  kernels::cuda::StatsTable table;
  table.view = view;
  table.tag = tag;
  return table;
}

// The memory of launches for up to `tensors` tensors and `items` work items, as DeviceStats has it.
class EmulatedStats {
 public:
  EmulatedStats(std::size_t tensors, std::size_t items)
      : partials_(items), tickets_(tensors), accumulators_(tensors * kernels::kDetailWords),
        records_(tensors), details_(tensors * kernels::kDetailWords) {}

  kernels::cuda::StatsMemory memory() {
    return {partials_.data(), tickets_.data(), accumulators_.data(), records_.data(), details_.data()};
  }

  template <class Table>
  void run(StatsLevel level, const Table& table, const std::vector<std::uint32_t>& order, bool backwards = false) {
    using kernels::cuda::TensorStatsKernel;
    const auto run_it = [&](const auto& kernel) { run_grid(kernel, order, kernels::cuda::kStatsThreads, backwards); };
    level == StatsLevel::kSums ? run_it(TensorStatsKernel<StatsLevel::kSums, Table>{memory(), table})
                               : run_it(TensorStatsKernel<StatsLevel::kHistogram, Table>{memory(), table});
  }

  // As a launch left it: nothing has to be cleared before the next one.
  bool is_clean() const {
    const auto zero = [](auto word) { return word == 0; };
    return std::all_of(tickets_.begin(), tickets_.end(), zero) &&
           std::all_of(accumulators_.begin(), accumulators_.end(), zero);
  }

  TensorStats stats(std::size_t i, std::int64_t repeats = 1) const {
    return stats_of_record(records_[i], details_.data() + i * kernels::kDetailWords, repeats);
  }
  const DeviceStatsRecord& record(std::size_t i) const { return records_[i]; }

 private:
  std::vector<kernels::cuda::StatsPartial> partials_;
  std::vector<std::uint32_t> tickets_;
  std::vector<std::uint64_t> accumulators_;
  std::vector<DeviceStatsRecord> records_;
  std::vector<std::uint64_t> details_;
};

inline std::uint32_t items_of(const DeviceStatsView& view) {
  return static_cast<std::uint32_t>(kernels::stats_items(view.count * dtype_size(view.dtype)));
}

inline TensorStats emulated_stats(const TensorView& tensor, StatsLevel level) {
  std::int64_t repeats = 1;
  const Result<DeviceStatsView> view = kernels::plan_device_view(tensor, repeats);
  EXPECT_TRUE(view.is_ok()) << view.status().message();
  if (!view) return {};
  const std::uint32_t items = items_of(*view);
  EmulatedStats stats(1, items);
  stats.run(level, table_of(*view, 7), in_order(items));
  EXPECT_TRUE(stats.is_clean());
  EXPECT_EQ(stats.record(0).tag, 7u);
  return stats.stats(0, repeats);
}

inline testing::AssertionResult agree(const TensorStats& got, const TensorStats& want) {
  const std::string difference = disagreement(got, want);
  return difference.empty() ? testing::AssertionSuccess() : testing::AssertionFailure() << difference;
}

inline testing::AssertionResult device_agrees(const TensorView& tensor, StatsLevel level) {
  return agree(emulated_stats(tensor, level), compute_stats(tensor, level));
}

}  // namespace nanhunt::testing_support
