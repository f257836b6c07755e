// SPDX-License-Identifier: Apache-2.0
// Two checkpoints, tensor by tensor: what became not finite, what changed and by how much, what only one of them has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/statistics.h"

namespace nanhunt::checkpoint {

struct TensorChange {
  std::string name;
  std::string dtype_a, dtype_b;
  std::vector<std::int64_t> sizes_a, sizes_b;
  bool compared = false;
  std::string problem;                     // why not
  std::int64_t elements = 0, changed = 0;  // by bit pattern; where formats differ, by value
  std::int64_t newly_nonfinite = 0, newly_finite = 0;
  double largest_change = 0;    // |b - a| over elements that are finite in both
  double largest_relative = 0;  // of those with a != 0: |b - a| / |a|
  double relative_norm = 0;     // |b - a| / |a| in L2; infinite where a is 0 and b is not

  bool shapes_differ() const { return sizes_a != sizes_b; }
  bool dtypes_differ() const { return dtype_a != dtype_b; }
};

struct Comparison {
  std::vector<TensorChange> tensors;  // of both, in the order of A
  std::vector<std::string> only_in_a, only_in_b;
  bool damaged = false;

  bool same() const;
};

Comparison compare(const Checkpoint& a, const Checkpoint& b, const ReportProgress& progress = {});

}  // namespace nanhunt::checkpoint
