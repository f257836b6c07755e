// SPDX-License-Identifier: Apache-2.0
// Memory that an op gave out without writing it (`empty`): what of it no op has written since.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "hooks/torch/tap/describe.h"
#include "hooks/torch/tap/held/finite.h"
#include "hooks/torch/tap/places.h"
#include "hooks/torch/tap/plan.h"

namespace nanhunt::tap {

class Unwritten {
 public:
  // `from` and `to`: bytes.
  Unwritten(Plan& giver, Place place, std::int64_t step, std::size_t from, std::size_t to)
      : giver(&giver), place(place), step(step), gaps_{{static_cast<std::int64_t>(from), static_cast<std::int64_t>(to)}} {}

  Plan* giver;
  Place place;        // of that op
  std::int64_t step;  // in which it was told last that nothing has written it

  // All that a tensor shows was written. False: nothing else is left, or what that is is no longer known.
  bool write(const at::Tensor& t) {
    const bool known = each_piece(t, [&](std::int64_t from, std::int64_t to) {
      std::vector<Piece> left;
      for (const auto& [begin, end] : gaps_) {
        if (begin < std::min(end, from)) left.emplace_back(begin, std::min(end, from));
        if (std::max(begin, to) < end) left.emplace_back(std::max(begin, to), end);
      }
      gaps_ = std::move(left);
    });
    return known && !gaps_.empty() && gaps_.size() <= kMostPieces;
  }

  // Whether what a tensor shows of it holds NaN or an infinity, among numbers that nobody has meant: where most are of a
  // usual magnitude, somebody wrote them whom PyTorch does not know, as NumPy does.
  bool is_bad_in(const at::Tensor& t) const {
    const auto format = finite::format_of(t.scalar_type());
    const auto* const memory = static_cast<const char*>(t.storage().data());
    if (!format || memory == nullptr || !t.device().is_cpu() || !Describer::holds(t)) return false;
    const auto size = static_cast<std::int64_t>(format->bytes);
    std::int64_t bad = 0, usual = 0, all = 0;
    const bool known = each_piece(t, [&](std::int64_t from, std::int64_t to) {
      for (const auto& [begin, end] : gaps_) {
        const std::int64_t last = std::min(end, to);
        for (std::int64_t at = (std::max(begin, from) + size - 1) / size * size; at + size <= last && all < kMostNumbers; at += size, ++all) {
          std::uint64_t bits = 0;
          std::memcpy(&bits, memory + at, static_cast<std::size_t>(size));
          const std::uint64_t exponent = bits & format->exponent, unit = format->exponent & -format->exponent;
          const std::uint64_t one = (format->exponent / unit >> 1) * unit;  // exponent of 1
          bad += exponent == format->exponent;
          usual += exponent + kUsual * unit >= one && exponent <= one + kUsual * unit && exponent != format->exponent;
        }
      }
    });
    return known && bad > 0 && 2 * usual <= all;
  }

 private:
  using Piece = std::pair<std::int64_t, std::int64_t>;  // bytes, from and to
  static constexpr std::size_t kMostPieces = 16;
  static constexpr std::int64_t kMostNumbers = 1 << 20;
  static constexpr std::uint64_t kUsual = 20;  // powers of 2 from 1

  // Of a tensor, as it lies in its memory. False: they are too many.
  template <typename Take>
  static bool each_piece(const at::Tensor& t, Take&& take) {
    if (t.numel() == 0) return true;
    std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride and size
    for (std::int64_t d = 0; d < t.dim(); ++d)
      if (t.size(d) != 1) dims.emplace_back(t.stride(d), t.size(d));
    std::sort(dims.begin(), dims.end());
    std::int64_t together = 1;
    std::size_t outer = 0;
    while (outer < dims.size() && dims[outer].first == together) together *= dims[outer++].second;
    const std::int64_t pieces = t.numel() / together, item = static_cast<std::int64_t>(t.itemsize());
    if (pieces > static_cast<std::int64_t>(kMostPieces)) return false;
    for (std::int64_t i = 0; i < pieces; ++i) {
      std::int64_t at = t.storage_offset(), rest = i;
      for (std::size_t d = outer; d < dims.size(); ++d) {
        at += rest % dims[d].second * dims[d].first;
        rest /= dims[d].second;
      }
      take(at * item, (at + together) * item);
    }
    return true;
  }

  std::vector<Piece> gaps_;
};

}  // namespace nanhunt::tap
