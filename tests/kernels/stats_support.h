// SPDX-License-Identifier: Apache-2.0
// Tensors for the tests of tensor_stats.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cpu/tensor_stats_block.h"
#include "nanhunt/tensor_stats.h"

namespace nanhunt::testing_support {

inline constexpr DType kFloats[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kE4M3FN, DType::kE5M2};
inline constexpr StatsLevel kLevels[] = {StatsLevel::kFinite, StatsLevel::kCounts, StatsLevel::kSums,
                                         StatsLevel::kWhatIf, StatsLevel::kHistogram};

// A contiguous tensor that owns its bytes, `misalignment` bytes past an aligned address.
class OwnedTensor {
 public:
  OwnedTensor(DType dtype, std::size_t count, std::size_t misalignment = 0)
      : dtype_(dtype), misalignment_(misalignment), bytes_(misalignment + count * dtype_size(dtype)) {
    sizes_ = {static_cast<std::int64_t>(count)};
    strides_ = {1};
  }
  OwnedTensor(DType dtype, std::initializer_list<double> values) : OwnedTensor(dtype, values.size()) {
    std::size_t i = 0;
    for (const double value : values) set(i++, value);
  }

  void set(std::size_t i, double value) { store_from_f64(dtype_, at(i), value); }
  void set_code(std::size_t i, std::uint64_t code) { std::memcpy(at(i), &code, dtype_size(dtype_)); }
  double get(std::size_t i) { return load_as_f64(dtype_, at(i)); }
  unsigned char* at(std::size_t i) { return bytes_.data() + misalignment_ + i * dtype_size(dtype_); }
  std::size_t count() const { return static_cast<std::size_t>(sizes_[0]); }

  TensorView view() { return {bytes_.empty() ? &nothing_ : at(0), dtype_, sizes_, strides_}; }

 private:
  DType dtype_;
  std::size_t misalignment_;
  std::vector<unsigned char> bytes_;
  std::vector<std::int64_t> sizes_, strides_;
  unsigned char nothing_ = 0;
};

inline std::string describe(DType dtype, kernels::Simd simd, StatsLevel level) {
  return std::string(dtype_name(dtype)) + " on " + std::string(kernels::simd_name(simd)) + " at level " +
         std::to_string(static_cast<int>(level));
}

// The paths this CPU can run.
inline std::vector<kernels::Simd> supported_paths() {
  std::vector<kernels::Simd> paths;
  for (const kernels::Simd simd : kernels::kAllSimd) {
    if (kernels::simd_supported(simd)) paths.push_back(simd);
  }
  return paths;
}

}  // namespace nanhunt::testing_support
