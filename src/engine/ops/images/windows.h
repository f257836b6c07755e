// SPDX-License-Identifier: Apache-2.0
// Square windows that slide over images (N, C, H, W), as convolution and pooling use them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/engine/ops/op.h"

namespace nanhunt::engine {

struct Windows {
  std::int64_t images = 0, channels = 0;        // N, C
  std::int64_t height = 0, width = 0;           // of the input
  std::int64_t kernel_height = 0, kernel_width = 0;
  std::int64_t stride = 1, padding = 0;
  std::int64_t out_height = 0, out_width = 0;

  std::int64_t plane() const { return height * width; }
  std::int64_t out_plane() const { return out_height * out_width; }
  std::int64_t taps() const { return kernel_height * kernel_width; }
};

// Checks sizes that fit an (N, C, H, W) input: a window must fit at least once.
inline Windows make_windows(std::string_view op, const Tensor& input, std::string_view slot, std::int64_t kernel_height,
                            std::int64_t kernel_width, std::int64_t stride, std::int64_t padding) {
  expect_floating(op, input, slot);
  expect_dim(op, input, slot, 4);
  if (kernel_height < 1 || kernel_width < 1) {
    fail(op, "a window of 1 or more", describe(Shape{kernel_height, kernel_width}));
  }
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // sizes computed from these stay far below 2^63
  if (stride < 1 || stride > kMost) fail(op, "a stride of 1 or more", std::to_string(stride));
  if (padding < 0 || padding > kMost) fail(op, "a padding of 0 or more", std::to_string(padding));
  Windows w{.images = input.size(0), .channels = input.size(1), .height = input.size(2), .width = input.size(3),
            .kernel_height = kernel_height, .kernel_width = kernel_width, .stride = stride, .padding = padding};
  const std::int64_t room_down = w.height + 2 * padding - kernel_height;
  const std::int64_t room_across = w.width + 2 * padding - kernel_width;
  if (room_down < 0 || room_across < 0) {
    fail(op, "an image at least as large as the window " + describe(Shape{kernel_height, kernel_width}),
         describe(input) + " with padding " + std::to_string(padding));
  }
  w.out_height = room_down / stride + 1;
  w.out_width = room_across / stride + 1;
  return w;
}

// How many images' columns fit into `bytes`, at least one; a value has `value_size` of them.
inline std::int64_t images_at_a_time(const Windows& w, std::size_t value_size, std::int64_t bytes) {
  const std::int64_t one = w.channels * w.taps() * w.out_plane() * static_cast<std::int64_t>(value_size);
  return std::clamp<std::int64_t>(bytes / std::max<std::int64_t>(one, 1), 1, std::max<std::int64_t>(w.images, 1));
}

// Positions p of [0, count) whose input index p * stride + shift lies in [0, limit).
struct Range {
  std::int64_t begin, end;
};
inline Range inside(std::int64_t shift, std::int64_t stride, std::int64_t limit, std::int64_t count) {
  const std::int64_t begin = shift >= 0 ? 0 : (-shift + stride - 1) / stride;
  const std::int64_t end = shift >= limit ? 0 : (limit - 1 - shift) / stride + 1;
  return {std::min(begin, count), std::clamp(end, std::min(begin, count), count)};
}

// One place of the window (tap: line * kernel_width + column): which outputs see the image there.
class Tap {
 public:
  Tap(const Windows& w, std::int64_t tap)
      : w_(w),
        down_(tap / w.kernel_width - w.padding),
        across_(tap % w.kernel_width - w.padding),
        lines_(inside(down_, w.stride, w.height, w.out_height)),
        positions_(inside(across_, w.stride, w.width, w.out_width)) {}
  std::int64_t shift() const { return down_ * w_.width + across_; }  // of the image against the output at stride 1
  // Calls fn(input position, output position), both within one plane.
  template <typename F>
  void for_seen(F fn) const {
    for (std::int64_t oh = lines_.begin; oh < lines_.end; ++oh) {
      const std::int64_t in = oh * w_.stride * w_.width + shift(), out = oh * w_.out_width;
      for (std::int64_t ow = positions_.begin; ow < positions_.end; ++ow) fn(in + ow * w_.stride, out + ow);
    }
  }

 private:
  const Windows& w_;
  std::int64_t down_, across_;
  Range lines_, positions_;
};

}  // namespace nanhunt::engine
