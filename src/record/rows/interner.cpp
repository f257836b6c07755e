// SPDX-License-Identifier: Apache-2.0
#include "src/record/rows/interner.h"

#include <algorithm>
#include <utility>

namespace nanhunt::record {
namespace {

std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

bool equal(std::span<const std::int64_t> a, const std::vector<std::int64_t>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

}  // namespace

bool shows_one_block(const TensorView& tensor) {
  if (tensor.is_contiguous()) return true;
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // (stride, size)
  for (std::size_t d = 0; d < tensor.sizes.size(); ++d) {
    if (tensor.sizes[d] != 1) dims.emplace_back(tensor.strides[d], tensor.sizes[d]);
  }
  std::sort(dims.begin(), dims.end());
  std::int64_t expected = 1;
  for (const auto& [stride, size] : dims) {
    if (stride != expected) return false;
    expected *= size;
  }
  return true;
}

StringId StringInterner::intern(std::string_view text, RecordBatch& batch) {
  if (text.empty()) return 0;
  text = text.substr(0, kMaxStringBytes);
  if (auto it = ids_.find(text); it != ids_.end()) return it->second;
  const std::size_t bytes = text.size() + sizeof(std::string);
  if (texts_.size() >= limit_ || bytes_ + bytes > kMaxInternedBytes) {
    ++refused_;
    return 0;
  }
  const auto id = static_cast<StringId>(texts_.size() + 1);
  batch.strings.push_back({id, std::string(text)});
  try {
    texts_.emplace_back(text);
    try {
      ids_.emplace(texts_.back(), id);
    } catch (...) {
      texts_.pop_back();
      throw;
    }
  } catch (...) {
    batch.strings.pop_back();
    throw;
  }
  bytes_ += bytes;
  return id;
}

LayoutId LayoutInterner::intern(const TensorView& tensor, RecordBatch& batch) {
  std::uint64_t hash = static_cast<std::uint64_t>(tensor.dtype) + 1;
  for (std::int64_t s : tensor.sizes) hash = mix(hash, static_cast<std::uint64_t>(s));
  hash = mix(hash, ~std::uint64_t{0});
  for (std::int64_t s : tensor.strides) hash = mix(hash, static_cast<std::uint64_t>(s));

  const auto found = by_hash_.find(hash);
  const LayoutId head = found == by_hash_.end() ? 0 : found->second;
  for (LayoutId id = head; id != 0; id = layouts_[id - 1].next) {
    const KnownLayout& layout = layouts_[id - 1];
    if (layout.dtype == tensor.dtype && equal(tensor.sizes, layout.sizes) && equal(tensor.strides, layout.strides)) {
      return id;
    }
  }
  const std::size_t bytes = sizeof(KnownLayout) + (tensor.sizes.size() + tensor.strides.size()) * sizeof(std::int64_t);
  if (layouts_.size() >= limit_ || bytes_ + bytes > kMaxInternedBytes) {
    ++refused_;
    return 0;
  }
  const auto id = static_cast<LayoutId>(layouts_.size() + 1);
  KnownLayout layout{tensor.dtype,
                {tensor.sizes.begin(), tensor.sizes.end()},
                {tensor.strides.begin(), tensor.strides.end()},
                shows_one_block(tensor),
                head};
  batch.layouts.push_back({id, layout.dtype, layout.sizes, layout.strides});
  try {
    layouts_.push_back(std::move(layout));
    try {
      by_hash_[hash] = id;
    } catch (...) {
      layouts_.pop_back();
      throw;
    }
  } catch (...) {
    batch.layouts.pop_back();
    throw;
  }
  bytes_ += bytes;
  return id;
}

}  // namespace nanhunt::record
