// SPDX-License-Identifier: Apache-2.0
// Images to columns and back. Columns of some images: one row per channel and place in the window, one column per image
// and output position; what hangs over the edge of the image is 0.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "src/engine/ops/loops/dense.h"
#include "src/engine/ops/images/windows.h"

namespace nanhunt::engine {

template <typename T>
class Unfolder {
 public:
  // For at most `most` images at a time.
  Unfolder(const Windows& windows, std::int64_t most)
      : w_(windows),
        margin_(w_.padding * w_.width + w_.padding),
        same_size_(w_.stride == 1 && w_.out_height == w_.height && w_.out_width == w_.width),
        room_(same_size_ ? 2 * margin_ + most * w_.channels * w_.plane() : 0) {
    if (!same_size_) return;
    for (std::int64_t kh = 0; kh < w_.kernel_height; ++kh) {
      for (std::int64_t kw = 0; kw < w_.kernel_width; ++kw) add_mask(kh - w_.padding, kw - w_.padding);
    }
  }

  void unfold(const T* images, std::int64_t count, T* columns) {
    if (same_size_) {
      std::fill_n(room_.data(), margin_, T{0});
      std::copy_n(images, size(count), room_.data() + margin_);
      std::fill_n(room_.data() + margin_ + size(count), margin_, T{0});
      for_taps(count, [&](std::int64_t place, const Tap& tap, std::int64_t image, std::int64_t column) {
        const T* __restrict from = room_.data() + margin_ + image + tap.shift();
        const Bits* __restrict mask = masks_.data() + place * w_.plane();
        T* __restrict to = columns + column;
        for (std::int64_t p = 0; p < w_.plane(); ++p) to[p] = masked(from[p], mask[p]);
      });
      return;
    }
    for_taps(count, [&](std::int64_t, const Tap& tap, std::int64_t image, std::int64_t column) {
      std::fill_n(columns + column, w_.out_plane(), T{0});
      tap.for_seen([&](std::int64_t in, std::int64_t out) { columns[column + out] = images[image + in]; });
    });
  }

  // images = the sum of all column elements that were read from each place.
  void fold(const T* columns, std::int64_t count, T* images) {
    if (same_size_) {
      std::fill_n(room_.data(), 2 * margin_ + size(count), T{0});
      for_taps(count, [&](std::int64_t place, const Tap& tap, std::int64_t image, std::int64_t column) {
        const T* __restrict from = columns + column;
        const Bits* __restrict mask = masks_.data() + place * w_.plane();
        T* __restrict to = room_.data() + margin_ + image + tap.shift();
        for (std::int64_t p = 0; p < w_.plane(); ++p) to[p] += masked(from[p], mask[p]);
      });
      std::copy_n(room_.data() + margin_, size(count), images);
      return;
    }
    std::fill_n(images, size(count), T{0});
    for_taps(count, [&](std::int64_t, const Tap& tap, std::int64_t image, std::int64_t column) {
      tap.for_seen([&](std::int64_t in, std::int64_t out) { images[image + in] += columns[column + out]; });
    });
  }

 private:
  using Bits = BitsOf<T>;

  static T masked(T value, Bits mask) { return std::bit_cast<T>(std::bit_cast<Bits>(value) & mask); }
  std::int64_t size(std::int64_t count) const { return count * w_.channels * w_.plane(); }

  // Where image and output have one size, a place in the window is a shift of the whole image, wrong at the edges: the
  // mask keeps what came from inside. Selecting bits instead of branching lets whole images go through vector units.
  void add_mask(std::int64_t down, std::int64_t across) {
    for (std::int64_t h = 0; h < w_.height; ++h) {
      for (std::int64_t v = 0; v < w_.width; ++v) {
        const bool is_inside = h + down >= 0 && h + down < w_.height && v + across >= 0 && v + across < w_.width;
        masks_.push_back(is_inside ? ~Bits{0} : Bits{0});
      }
    }
  }

  // Calls fn(place in the window, the same as a Tap, start of the image's plane, start of its part of the columns).
  template <typename F>
  void for_taps(std::int64_t count, F fn) const {
    std::int64_t column = 0;
    for (std::int64_t c = 0; c < w_.channels; ++c) {
      for (std::int64_t place = 0; place < w_.taps(); ++place) {
        const Tap tap(w_, place);
        for (std::int64_t i = 0; i < count; ++i, column += w_.out_plane()) {
          fn(place, tap, (i * w_.channels + c) * w_.plane(), column);
        }
      }
    }
  }

  Windows w_;
  std::int64_t margin_;
  bool same_size_;
  Scratch<T> room_;          // images with a margin on both ends, which shifts may touch
  std::vector<Bits> masks_;  // per place in the window
};

}  // namespace nanhunt::engine
