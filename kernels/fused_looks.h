// SPDX-License-Identifier: Apache-2.0
// Of which outputs the launch that made them left statistics (kernels/portable/fused_map.h): what the GPU's backend and the
// emulated device remember of their launches. Contract: kernels/README.md, statistics fused into elementwise kernels.
#pragma once

#include <cstdint>
#include <optional>

#include "nanhunt/dtype.h"

namespace nanhunt::kernels {

// Not for several threads at once. Addresses are compared, never read.
class FusedLooks {
 public:
  static constexpr std::uint32_t kSlots = 16;  // outputs between two looks; one more, and all are read as ever

  // One for each who wants it.
  void arm() { ++armed_; }
  void disarm() {
    --armed_;
    forget();
  }
  bool is_armed() const { return armed_ != 0; }

  // The slot of a launch that makes this memory; none where nobody wants it, or where all are taken.
  std::optional<std::uint32_t> take(const void* data, std::uint64_t bytes, DType dtype) {
    overwrite(data, bytes);
    if (armed_ == 0) return std::nullopt;
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
      if (made_[slot].bytes != 0) continue;
      made_[slot] = {reinterpret_cast<std::uintptr_t>(data), bytes, dtype};
      return slot;
    }
    return std::nullopt;
  }
  // Something else may come to lie there.
  void overwrite(const void* data, std::uint64_t bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    for (Made& made : made_) {
      if (begin < made.data + made.bytes && made.data < begin + bytes) made = {};
    }
  }
  // After a launch that may write anywhere, and after each look, whose slots are then free.
  void forget() {
    for (Made& made : made_) made = {};
  }
  std::optional<std::uint32_t> find(const void* data, std::uint64_t bytes, DType dtype) const {
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
      const Made& made = made_[slot];
      const bool is_it = made.data == reinterpret_cast<std::uintptr_t>(data) && made.bytes == bytes;
      if (bytes != 0 && is_it && made.dtype == dtype) return slot;
    }
    return std::nullopt;
  }

 private:
  struct Made {
    std::uintptr_t data = 0;
    std::uint64_t bytes = 0;  // 0: the slot is free
    DType dtype = DType::kF32;
  };

  std::uint32_t armed_ = 0;
  Made made_[kSlots];
};

}  // namespace nanhunt::kernels
