// SPDX-License-Identifier: Apache-2.0
// Statistics of every tensor of a checkpoint. Files are read once, in order, by two threads; memory does not grow with
// them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "nanhunt/tensor_stats.h"
#include "src/checkpoint/checkpoint.h"

namespace nanhunt::checkpoint {

struct TensorResult {
  bool judged = false;              // `stats` are those of all its elements
  bool damaged = false;             // its bytes could not be read
  std::string problem;              // why it was not judged; empty for integers that need not be
  TensorStats stats;                // StatsLevel::kCounts
  std::vector<std::int64_t> first;  // index of the first element, in the order of the bytes, that is not finite
};

using ReportProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;  // bytes

// Views of one storage are each read, but a hostile file may not have a small storage read without end.
std::uint64_t most_bytes_to_read(const Checkpoint& checkpoint);

// As many as the checkpoint has tensors.
std::vector<TensorResult> compute_statistics(const Checkpoint& checkpoint, const ReportProgress& progress = {});

struct ZeroCount {
  std::int64_t zeros = 0;  // elements that are 0 in one tensor and not in the other
  bool known = false;      // both could be read side by side
};
// Elements that are 0 in `tensor` where `other` is not 0 and finite.
ZeroCount count_zero_where_other_is_not(const Checkpoint& checkpoint, const Tensor& tensor, const Tensor& other);

// Whether -Inf stands in all places above the diagonal of the last two dimensions, and in no other. Reads the tensor
// again, where that takes no more than `bytes`, and takes what it read from them.
bool neg_inf_is_above_diagonal(const Checkpoint& checkpoint, const Tensor& tensor, std::uint64_t& bytes);

}  // namespace nanhunt::checkpoint
