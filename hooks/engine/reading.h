// SPDX-License-Identifier: Apache-2.0
// What the sentinel learns from reading a tensor.
#pragma once

#include <cstdint>

#include "nanhunt/engine/tensor.h"
#include "nanhunt/tensor_stats.h"

namespace nanhunt::hooks {

struct Reading {
  bool known = false;
  // Equal for equal contents of equal shape that were read in one way; other contents have another but for rare chances.
  std::uint64_t checksum = 0;
  bool finite = true;
  bool nan = false;  // an element is
  // Over finite elements; norm is NaN where an element was NaN, infinite where one was infinite.
  double norm = 0, amax = 0;
};

// What of it is needed. A device reads all of it at once; the host takes a pass for the checksum and one for the rest.
enum class Wanted : std::uint8_t { kFinite, kChecksum, kNorm, kContents, kAll };  // kContents: checksum, finite and nan

std::uint64_t checksum_of(const engine::Tensor& tensor);
bool is_finite(const engine::Tensor& tensor);  // always true of integers
// On the host, copied there if need be. What is not wanted keeps its default.
Reading read(const engine::Tensor& tensor, Wanted wanted);
// Of statistics at level kSums.
Reading reading_of(const TensorStats& stats);

}  // namespace nanhunt::hooks
