// SPDX-License-Identifier: Apache-2.0
// Strings and layouts by number. A new one leaves one row in the batch at hand; numbers start at 1 and never repeat.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory_resource>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "nanhunt/tensor_view.h"
#include "nanhunt/trace.h"

namespace nanhunt::record {

// A run that makes up names or shapes without end must not eat the memory: past this many, new ones get
// number 0 (empty string, unknown layout) and are counted.
inline constexpr std::size_t kMaxInterned = (std::size_t{1} << 20) - 1;  // the highest number FORMAT.md allows
inline constexpr std::size_t kMaxStringBytes = 4096;                     // longer names are cut
// ... and past so many bytes of them: each segment of a trace restates them all.
inline constexpr std::size_t kMaxInternedBytes = std::size_t{32} << 20;

class StringInterner {
 public:
  explicit StringInterner(std::size_t limit = kMaxInterned) : limit_(limit) {}
  // Adds a row to `batch` for a string not seen before. Strong exception guarantee.
  StringId intern(std::string_view text, RecordBatch& batch);
  std::uint64_t refused() const { return refused_; }
  std::size_t size() const { return texts_.size(); }  // numbers 1 ... size() have been given out
  // Stays where it is.
  std::string_view text(StringId id) const { return texts_[id - 1]; }

 private:
  std::size_t limit_;
  std::size_t bytes_ = 0;
  std::uint64_t refused_ = 0;
  std::pmr::monotonic_buffer_resource memory_{std::pmr::new_delete_resource()};  // as of ValueTable
  std::pmr::deque<std::pmr::string> texts_{&memory_};  // owns what the map's keys view; a deque never moves its elements
  std::pmr::unordered_map<std::string_view, StringId> ids_{&memory_};
};

struct KnownLayout {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> sizes, strides;
  bool dense = false;
  LayoutId next = 0;  // of the same hash
};

// Every element of one block of memory exactly once, in any order of dimensions.
bool shows_one_block(const TensorView& tensor);

class LayoutInterner {
 public:
  explicit LayoutInterner(std::size_t limit = kMaxInterned) : limit_(limit) {}
  LayoutId intern(const TensorView& tensor, RecordBatch& batch);
  std::uint64_t refused() const { return refused_; }
  // The layout shows every element of one block of memory exactly once, in any order of dimensions: two dense layouts
  // with equal offset and numel show the same elements. False for number 0.
  bool is_dense(LayoutId id) const { return id != 0 && layouts_[id - 1].dense; }
  std::size_t size() const { return layouts_.size(); }
  // Stays where it is.
  const KnownLayout& layout(LayoutId id) const { return layouts_[id - 1]; }

 private:
  std::size_t limit_;
  std::size_t bytes_ = 0;
  std::uint64_t refused_ = 0;
  std::deque<KnownLayout> layouts_;                      // number n is at n - 1
  std::unordered_map<std::uint64_t, LayoutId> by_hash_;  // head of the list of that hash
};

}  // namespace nanhunt::record
