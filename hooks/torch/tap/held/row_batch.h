// SPDX-License-Identifier: Apache-2.0
// Rows of ops on devices on their way to the recorder: what many of them show is read by one launch. It is kept until
// then, and read before an op writes over it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hooks/torch/tap/recording.h"
#include "hooks/torch/tap/rows/words.h"

namespace nanhunt::tap {

class RowBatch {
 public:
  static constexpr const char* kGone = "tensors of a device whose memory was changed before it was read";

  explicit RowBatch(const Recording& to) : to_(to) {}

  bool is_empty() const { return rows_ == 0; }
  // An op's row goes to the end of words(), then this is called with how many words there were before, and how many
  Words& words() { return words_; }
  // tensors it was given and has made.
  void end_row(std::size_t at, std::size_t tensors) {
    ++rows_;
    for (std::size_t quad = at + kOpHeader; tensors > 0; --tensors, quad += kValueWords) {
      if (words_[quad] == 0 || words_[quad] == NANHUNT_WAS_FINITE) continue;
      shown_.push_back(quad);
      if (stream_of(quad) == 0) rows_ = kMostRows;  // of the host: it is not kept
    }
  }
  // One of them.
  void keep(const at::Tensor& t) {
    if (!t.defined() || !t.has_storage() || t.device().is_cpu()) return;
    const c10::Storage& storage = t.storage();
    if (!kept_.try_emplace(storage.unsafeGetStorageImpl(), Kept{storage, storage.data(), storage.nbytes()}).second) return;
    bytes_ += storage.nbytes();
    // Whoever else gave the memory may want a lock to take it back.
    const c10::Allocator* const allocator = storage.allocator();
    if (allocator == nullptr || storage.data_ptr().get_deleter() != allocator->raw_deleter()) bytes_ = kMostBytes + 1;
  }
  bool is_full() const { return rows_ >= kMostRows || bytes_ > kMostBytes; }
  bool shows(const at::Tensor& t) const {
    return !kept_.empty() && t.has_storage() && kept_.contains(t.storage().unsafeGetStorageImpl());
  }

  // `written`: what is about to be written over, on `stream`, as in a layout's word: a read on another stream would not
  // come before that. False: the recorder has refused some.
  bool flush(Notes& notes, const at::Tensor* written = nullptr, std::int64_t stream = 0) {
    if (is_empty()) return true;
    for (const auto& [impl, kept] : kept_)
      if (impl->data() != kept.data || impl->nbytes() != kept.bytes) forget_contents(kept, 0, notes);
    if (written != nullptr && shows(*written))
      forget_contents(kept_.at(written->storage().unsafeGetStorageImpl()), stream >> 32, notes);
    const bool taken = to_.rows(to_.self, words_.data(), words_.size()) == NANHUNT_OK;
    drop();
    return taken;
  }
  void drop() {
    words_.clear();
    shown_.clear();
    kept_.clear();
    rows_ = bytes_ = 0;
  }

 private:
  struct Kept {
    c10::Storage storage;
    const void* data;
    std::size_t bytes;
  };
  static constexpr std::size_t kMostRows = 64;
  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;  // of memory that lives longer for it

  std::int64_t stream_of(std::size_t quad) const { return words_[quad + 3] >> 32; }
  // Of this memory, but for what is read on `stream`.
  void forget_contents(const Kept& kept, std::int64_t stream, Notes& notes) {
    const auto begin = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(kept.data));
    for (const std::size_t quad : shown_) {
      const std::int64_t at = words_[quad];
      if (at < begin || at >= begin + static_cast<std::int64_t>(kept.bytes) || stream_of(quad) == stream) continue;
      words_[quad] = 0;
      words_[quad + 3] &= 0xffffffff;
      ++notes[kGone];
    }
  }

  const Recording& to_;
  Words words_;
  std::vector<std::size_t> shown_;  // tensors whose contents are there, among the words
  std::unordered_map<const c10::StorageImpl*, Kept> kept_;
  std::size_t rows_ = 0, bytes_ = 0;
};

}  // namespace nanhunt::tap
