// SPDX-License-Identifier: Apache-2.0
// Any view as a sequence of blocks of consecutive elements in row-major logical order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/tensor_stats_block.h"
#include "nanhunt/tensor_view.h"

namespace nanhunt::kernels {

// Walks each stored element once: dimensions of stride 0 (broadcast) are left out, `repeats` says how many
// logical elements each walked one stands for. A broadcast view of 2^40 elements costs what its storage costs.
class TensorWalk {
 public:
  // Throws std::invalid_argument when sizes and strides disagree in number, a size is negative, or contents
  // are wanted and missing.
  explicit TensorWalk(const TensorView& tensor);

  std::int64_t count() const { return count_; }      // elements walked
  std::int64_t repeats() const { return repeats_; }  // 0: the view is empty

  // The flat row-major index, in the whole view, of the first logical element that walked element `i` is.
  std::int64_t logical_index(std::int64_t i) const;

  // Calls visit(const Block&, first_index) until it returns false.
  template <class Visit>
  void for_each_block(Visit visit) const {
    const std::size_t size = dtype_size(dtype_);
    const auto per_block = static_cast<std::int64_t>(kBlockBytes / size);
    std::vector<unsigned char> staging;
    if (!contiguous_ && count_ > 0)
      staging.resize(static_cast<std::size_t>(count_ < per_block ? count_ : per_block) * size);
    for (std::int64_t begin = 0; begin < count_; begin += per_block) {
      const std::int64_t left = count_ - begin;
      Block block;
      block.count = static_cast<std::size_t>(left < per_block ? left : per_block);
      if (contiguous_) {
        block.data = static_cast<const unsigned char*>(data_) + static_cast<std::size_t>(begin) * size;
        if (left >= 2 * per_block) block.next = static_cast<const unsigned char*>(block.data) + kBlockBytes;
      } else {
        gather(begin, block.count, staging.data());
        block.data = staging.data();
      }
      if (!visit(block, begin)) return;
    }
  }

 private:
  struct Dimension {
    std::int64_t size = 1;
    std::int64_t stride = 1;          // in elements, never 0
    std::int64_t logical_stride = 1;  // of the whole view, row-major
  };
  void gather(std::int64_t begin, std::size_t count, unsigned char* to) const;

  const void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  std::vector<Dimension> dimensions_;  // without sizes 1 and strides 0
  std::vector<Dimension> merged_;      // the same, neighbours joined where memory allows
  std::int64_t count_ = 1;
  std::int64_t repeats_ = 1;
  bool contiguous_ = true;
};

}  // namespace nanhunt::kernels
