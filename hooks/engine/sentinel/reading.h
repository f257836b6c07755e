// SPDX-License-Identifier: Apache-2.0
// What the sentinel learns from reading a tensor.
#pragma once

#include <cstdint>

#include "nanhunt/engine/tensor.h"

namespace nanhunt::hooks {

struct Reading {
  bool known = false, has_norm = false;
  std::uint32_t version = 0;   // when it was read
  std::uint64_t checksum = 0;  // of the contents
  bool finite = true;
  bool nan = false;  // an element is
  // Over finite elements; norm is NaN where an element was NaN, infinite where one was infinite.
  double norm = 0, amax = 0;
};

std::uint64_t checksum_of(const engine::Tensor& tensor);
bool is_finite(const engine::Tensor& tensor);  // always true of integers
Reading read_norm(const engine::Tensor& tensor);      // all but the checksum, in one pass
Reading read_contents(const engine::Tensor& tensor);  // checksum and finiteness
Reading read_all(const engine::Tensor& tensor);

}  // namespace nanhunt::hooks
