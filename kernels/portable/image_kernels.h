// SPDX-License-Identifier: Apache-2.0
// What slides windows over images: columns of a convolution, pooling, and their gradients; each result on its own
// (lanes.h), its terms in the order in which the CPU engine adds them. Images have no gaps.
#pragma once

#include <cstdint>

#include "kernels/portable/arrays.h"
#include "kernels/portable/constants.h"
#include "kernels/portable/host_device.h"
#include "kernels/portable/lanes.h"
#include "kernels/device_ops.h"

namespace nanhunt::kernels::cuda {

// Takes the last coordinates off a position one by one; 32-bit division where it will do.
class Coordinates {
 public:
  NANHUNT_HOST_DEVICE Coordinates(std::int64_t position, std::int64_t count)
      : rest_(position), is_small_(count <= INT32_MAX) {}
  NANHUNT_HOST_DEVICE std::int64_t next(std::int64_t size) {
    if (is_small_) {
      const auto rest = static_cast<std::uint32_t>(rest_), width = static_cast<std::uint32_t>(size);
      rest_ = rest / width;
      return rest % width;
    }
    const std::int64_t last = rest_ % size;
    rest_ /= size;
    return last;
  }
  NANHUNT_HOST_DEVICE std::int64_t rest() const { return rest_; }

 private:
  std::int64_t rest_;
  bool is_small_;
};

NANHUNT_HOST_DEVICE inline std::int64_t in_elements(const WindowSizes& w) {
  return w.images * w.channels * w.height * w.width;
}
NANHUNT_HOST_DEVICE inline std::int64_t out_elements(const WindowSizes& w) {
  return w.images * w.channels * w.out_height * w.out_width;
}

// An element of a plane, and which plane it is.
struct Pixel {
  std::int64_t plane, line, column;
};
NANHUNT_HOST_DEVICE inline Pixel in_pixel(const WindowSizes& w, std::int64_t element) {
  Coordinates at(element, in_elements(w));
  const std::int64_t column = at.next(w.width), line = at.next(w.height);
  return {at.rest(), line, column};
}
NANHUNT_HOST_DEVICE inline Pixel out_pixel(const WindowSizes& w, std::int64_t element) {
  Coordinates at(element, out_elements(w));
  const std::int64_t column = at.next(w.out_width), line = at.next(w.out_height);
  return {at.rest(), line, column};
}

// f(element of the input) for all that window `out` sees, row by row.
template <class F>
NANHUNT_HOST_DEVICE inline void for_window(const WindowSizes& w, const Pixel& out, const F& f) {
  const std::int64_t top = out.line * w.stride - w.padding, left = out.column * w.stride - w.padding;
  for (std::int64_t kh = 0; kh < w.kernel_height; ++kh) {
    const std::int64_t line = top + kh;
    if (line < 0 || line >= w.height) continue;
    for (std::int64_t kw = 0; kw < w.kernel_width; ++kw) {
      const std::int64_t column = left + kw;
      if (column < 0 || column >= w.width) continue;
      f((out.plane * w.height + line) * w.width + column);
    }
  }
}

// Which window (along one side) has its place `place` at input index `at`; -1 if none has.
NANHUNT_HOST_DEVICE inline std::int64_t window_at(std::int64_t at, std::int64_t place, std::int64_t stride,
                                                  std::int64_t padding, std::int64_t windows) {
  const std::int64_t start = at + padding - place;
  if (start < 0 || start % stride != 0) return -1;
  return start / stride < windows ? start / stride : -1;
}
// f(line of a window, its column, place in it) for all windows that see `in`, place after place.
template <class F>
NANHUNT_HOST_DEVICE inline void for_places(const WindowSizes& w, const Pixel& in, const F& f) {
  for (std::int64_t kh = 0; kh < w.kernel_height; ++kh) {
    const std::int64_t line = window_at(in.line, kh, w.stride, w.padding, w.out_height);
    if (line < 0) continue;
    for (std::int64_t kw = 0; kw < w.kernel_width; ++kw) {
      const std::int64_t column = window_at(in.column, kw, w.stride, w.padding, w.out_width);
      if (column >= 0) f(line, column, kh * w.kernel_width + kw);
    }
  }
}

template <class Word>
struct UnfoldKernel {
  UnfoldCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const {
    return out_elements(call.windows) * call.windows.kernel_height * call.windows.kernel_width;
  }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t i) const {
    const WindowSizes& w = call.windows;
    Coordinates at(i, count());
    const std::int64_t ow = at.next(w.out_width), oh = at.next(w.out_height), image = at.next(w.images);
    const std::int64_t kw = at.next(w.kernel_width), kh = at.next(w.kernel_height), channel = at.rest();
    const std::int64_t line = oh * w.stride - w.padding + kh, column = ow * w.stride - w.padding + kw;
    const bool is_there = line >= 0 && line < w.height && column >= 0 && column < w.width;
    const std::int64_t from = ((image * w.channels + channel) * w.height + line) * w.width + column;
    static_cast<Word*>(call.columns)[i] = is_there ? static_cast<const Word*>(call.images)[from] : Word{0};
  }
};

template <class T>
struct FoldKernel {
  FoldCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return in_elements(call.windows); }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t i) const {
    const WindowSizes& w = call.windows;
    const Pixel pixel = in_pixel(w, i);
    const std::int64_t image = pixel.plane / w.channels, channel = pixel.plane % w.channels;
    const std::int64_t first_row = channel * w.kernel_height * w.kernel_width;
    T sum{0};
    for_places(w, pixel, [&](std::int64_t line, std::int64_t column, std::int64_t place) {
      sum += load_flat<T>(call.columns,
                          (((first_row + place) * w.images + image) * w.out_height + line) * w.out_width + column);
    });
    store_flat(call.images, i, sum);
  }
};

template <class T>
struct ChannelBiasKernel {
  ChannelBiasCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.images * call.channels * call.plane; }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t i) const {
    Coordinates at(i, count());
    const std::int64_t p = at.next(call.plane), channel = at.next(call.channels), image = at.rest();
    const T bias = call.bias.data == nullptr ? T{0} : load_flat<T>(call.bias, channel);
    store_flat(call.out, i, load_flat<T>(call.products, (channel * call.images + image) * call.plane + p) + bias);
  }
};

// A row is a channel.
template <class T>
struct ChannelSumKernel {
  ChannelSumCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.channels; }

  template <class Lanes>
  NANHUNT_HOST_DEVICE void operator()(const Lanes& lanes, std::int64_t channel) const {
    BlockSums<T> sums;
    for (std::int64_t first = 0; first < call.images; first += call.group) {
      const std::int64_t images = lesser(call.group, call.images - first);
      sums.add(lanes.template sum<T>(images * call.plane, [&](std::int64_t i) {
        const std::int64_t image = first + i / call.plane;
        return load_flat<T>(call.grad, (image * call.channels + channel) * call.plane + i % call.plane);
      }));
    }
    lanes.each(1, [&](std::int64_t) { store_flat(call.out, channel, sums.total()); });
  }
};

template <class T>
struct MaxPoolKernel {
  MaxPoolCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return out_elements(call.windows); }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t i) const {
    const WindowSizes& w = call.windows;
    const Pixel pixel = out_pixel(w, i);
    T largest = -kInfinity<T>;
    std::int64_t chosen = -1;
    for_window(w, pixel, [&](std::int64_t in) {
      const T x = load_flat<T>(call.in, in);
      if (x > largest || !(x == x) || chosen < 0) {
        largest = x;
        chosen = in;
      }
    });
    store_flat(call.out, i, largest);
    call.indices[i] = chosen - pixel.plane * w.height * w.width;
  }
};

template <class T>
struct MaxPoolGradientKernel {
  MaxPoolGradientCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return in_elements(call.windows); }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t i) const {
    const WindowSizes& w = call.windows;
    const Pixel pixel = in_pixel(w, i);
    const std::int64_t here = pixel.line * w.width + pixel.column;
    const Range lines = windows_over(pixel.line, w.kernel_height, w.out_height);
    const Range columns = windows_over(pixel.column, w.kernel_width, w.out_width);
    T sum{0};
    for (std::int64_t oh = lines.begin; oh < lines.end; ++oh) {
      for (std::int64_t ow = columns.begin; ow < columns.end; ++ow) {
        const std::int64_t at = (pixel.plane * w.out_height + oh) * w.out_width + ow;
        if (call.indices[at] == here) sum += load_flat<T>(call.grad, at);
      }
    }
    store_flat(call.out, i, sum);
  }

 private:
  struct Range {
    std::int64_t begin, end;
  };
  // Along one side.
  NANHUNT_HOST_DEVICE Range windows_over(std::int64_t at, std::int64_t kernel, std::int64_t windows) const {
    const std::int64_t stride = call.windows.stride,
                       before = at + call.windows.padding - kernel;  // the last that ends too early
    return {before < 0 ? 0 : before / stride + 1, lesser((at + call.windows.padding) / stride + 1, windows)};
  }
};

template <class T>
struct AvgPoolKernel {
  AvgPoolCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return out_elements(call.windows); }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t i) const {
    const WindowSizes& w = call.windows;
    T sum{0};
    for_window(w, out_pixel(w, i), [&](std::int64_t in) { sum += load_flat<T>(call.in, in); });
    store_flat(call.out, i, sum / static_cast<T>(w.kernel_height * w.kernel_width));
  }
};

template <class T>
struct AvgPoolGradientKernel {
  AvgPoolGradientCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return in_elements(call.windows); }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t i) const {
    const WindowSizes& w = call.windows;
    const Pixel pixel = in_pixel(w, i);
    const T size = static_cast<T>(w.kernel_height * w.kernel_width);
    T sum{0};
    for_places(w, pixel, [&](std::int64_t line, std::int64_t column, std::int64_t) {
      sum += load_flat<T>(call.grad, (pixel.plane * w.out_height + line) * w.out_width + column) / size;
    });
    store_flat(call.out, i, sum);
  }
};

template <class T>
struct UpsampleGradientKernel {
  UpsampleGradientCall call;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.count; }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t i) const {
    Coordinates at(i, call.count);
    const std::int64_t column = at.next(call.width), line = at.rest();
    T sum{0};
    for (std::int64_t k = 0; k < call.scale; ++k) {
      const std::int64_t start = ((line * call.scale + k) * call.width + column) * call.scale;
      for (std::int64_t j = 0; j < call.scale; ++j) sum += load_flat<T>(call.grad, start + j);
    }
    store_flat(call.out, i, sum);
  }
};

}  // namespace nanhunt::kernels::cuda
