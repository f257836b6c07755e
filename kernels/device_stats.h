// SPDX-License-Identifier: Apache-2.0
// Statistics of tensors in device memory, left there as records: nothing here allocates, waits or copies after
// creation, so calls can be captured in a CUDA graph. kernels/cuda has it; kernels/no_cuda says that this build has
// not. Contract: kernels/CONTRACTS.md, tensor_stats on the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/portable/host_device.h"
#include "nanhunt/status.h"
#include "nanhunt/tensor_stats.h"
#include "nanhunt/tensor_view.h"

namespace nanhunt::kernels {

// A cudaStream_t.
using DeviceStream = void*;

inline constexpr std::uint64_t kNoIndex = ~std::uint64_t{0};

// What one launch leaves of one tensor, as codes of its dtype. Magnitudes are codes without
// the sign bit. Integers: `largest` is the largest value, `largest_negative` the complement (~) of the smallest one,
// `least_nonzero` the smallest |x|, not 0.
struct DeviceStatsRecord {
  std::uint64_t count = 0;         // elements walked
  std::uint64_t first = kNoIndex;  // logical index of the first element that is not finite
  std::uint64_t nan = 0, pos_inf = 0, neg_inf = 0, zero = 0, subnormal = 0;
  std::int64_t largest = -1;           // magnitude of the largest element with the sign bit clear; -1: none
  std::int64_t largest_negative = -1;  // magnitude of the largest element with the sign bit set; -1: none
  std::uint64_t least_nonzero = kNoIndex;
  double sum = 0, sum_sq = 0;
  std::uint32_t tag = 0;  // the caller's
  DType dtype = DType::kF32;
  StatsLevel level = StatsLevel::kFinite;
  std::uint16_t unused = 0;
};
static_assert(sizeof(DeviceStatsRecord) == 12 * 8 + 8);

// Beside the record of a histogram: counts below the thresholds, then binades, as the CPU's
// Totals.
inline constexpr std::size_t kDetailThresholds = 12;
inline constexpr std::size_t kDetailWords = kDetailThresholds + 2100;  // fp64 has 2098 binades

// A tensor without gaps in row-major order, any alignment.
struct DeviceTensor {
  const void* data = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::kF32;
  std::uint32_t tag = 0;
};

// A view as kernels walk it: dimensions in the order of memory (largest stride first, reversed ones turned round),
// those of size 1 and stride 0 left out, neighbours joined. Broadcasts are walked once; `repeats` says how often each
// counts.
inline constexpr int kMaxStatsDims = 16;
struct DeviceStatsView {
  struct Dim {
    std::uint64_t size = 1;
    std::int64_t stride_bytes = 0;
    std::int64_t logical_stride = 0;  // of the whole view, row-major; negative where the walk was turned round
  };
  std::uint64_t data = 0;  // address of the first element walked
  std::uint64_t count = 0;
  std::int64_t logical_base = 0;  // logical index of the first element walked
  DType dtype = DType::kF32;
  std::uint8_t dims = 0;  // 0: logical index and place in the walk are the same
  bool gapless = true;    // element i of the walk lies at data + i * size
  Dim dim[kMaxStatsDims];
};
// Any address is taken as it is, so that a view of the CPU can be planned too (tests). Fails where there are more than
// kMaxStatsDims dimensions that do not join, or where sizes and strides disagree.
Result<DeviceStatsView> plan_device_view(const TensorView& tensor, std::int64_t& repeats);

// The statistics that a record stands for. `details`: what the launch left beside that of a histogram, else nullptr.
TensorStats stats_of_record(const DeviceStatsRecord& record, const std::uint64_t* details = nullptr,
                            std::int64_t repeats = 1);

// How tensors are cut up: work items, one block of threads each. Depends on the bytes of the tensor alone, so sums do
// not depend on the device, on the launch or on what else is in it.
inline constexpr std::uint64_t kItemMinBytes = std::uint64_t{64} << 10;
inline constexpr std::uint64_t kItemMaxBytes = std::uint64_t{8} << 20;
inline constexpr std::uint64_t kItemsWanted = 2048;
NANHUNT_HOST_DEVICE constexpr std::uint64_t stats_item_bytes(std::uint64_t bytes) {
  constexpr std::uint64_t kStep = std::uint64_t{16} << 10;  // 256 threads, four vectors each
  const std::uint64_t even = (bytes + kItemsWanted - 1) / kItemsWanted;
  const std::uint64_t rounded = (even + kStep - 1) / kStep * kStep;
  return rounded < kItemMinBytes ? kItemMinBytes : rounded > kItemMaxBytes ? kItemMaxBytes : rounded;
}
NANHUNT_HOST_DEVICE constexpr std::uint64_t stats_items(std::uint64_t bytes) {
  const std::uint64_t item = stats_item_bytes(bytes);
  return bytes == 0 ? 1 : (bytes + item - 1) / item;
}

// What a launch carries by value with any driver, and the tensors that fit into it.
inline constexpr std::size_t kParameterBytes = 4096;
inline constexpr std::size_t kTensorsInParameters = 150;

struct DeviceStatsOptions {
  int device = 0;
  std::uint64_t max_items = std::uint64_t{1} << 17;  // of one launch; 96 bytes each
  std::size_t max_tensors = kTensorsInParameters;    // of one launch
  bool histograms = false;                           // enqueue_histograms(): 17 KB for each of max_tensors
  // Asks the driver whose memory a tensor is, a question for each: a kernel that reads what its device cannot takes the
  // whole process's CUDA with it. false: the caller knows.
  bool check_memory = true;
};

// Where a launch leaves its results. All of it is memory of the device (or mapped), for as many tensors as are
// launched.
struct DeviceStatsTarget {
  DeviceStatsRecord* records = nullptr;  // nullptr: none
  // A tensor whose tag is not 0 is read where the word of its tag is not 0 when the kernel runs, and else leaves
  // nothing. nullptr: all are read.
  const std::uint32_t* gates = nullptr;
  // by tag: what is not finite in it (kInfBits, kNanBits of origin_histograms.h)
  std::uint32_t* known = nullptr;
};

// The memory that launches share. Launches that use one Workspace must not overlap: one stream, or ordered by events.
class DeviceStats {
 public:
  // Allocates, and waits for the device once.
  static Result<std::unique_ptr<DeviceStats>> create(const DeviceStatsOptions& options);
  virtual ~DeviceStats() = default;

  // One launch: any view.
  virtual Status enqueue(const DeviceStatsView& view, std::uint32_t tag, const DeviceStatsTarget& target,
                         DeviceStream stream) = 0;
  // One launch for up to kTensorsInParameters tensors, dtypes may be mixed.
  virtual Status enqueue(std::span<const DeviceTensor> tensors, const DeviceStatsTarget& target,
                         DeviceStream stream) = 0;

  // Histograms of at most 8 views, one launch (DeviceStatsOptions::histograms). View number i, from 1, is read where
  // gates[i] is not 0: a record and its details then go to the arena from word gates[i] - 1 on, which may be mapped
  // memory of the host.
  virtual Status enqueue_histograms(std::span<const DeviceStatsView> views, const std::uint32_t* gates,
                                    std::uint64_t* arena, DeviceStream stream) = 0;
};

}  // namespace nanhunt::kernels
