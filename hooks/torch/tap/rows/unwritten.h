// SPDX-License-Identifier: Apache-2.0
// Memory that an op gave out without writing it (`empty`): what of it no op has written since.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "hooks/torch/tap/describe.h"
#include "hooks/torch/tap/held/finite.h"
#include "hooks/torch/tap/places.h"
#include "hooks/torch/tap/plan.h"

namespace nanhunt::tap {

class Unwritten {
 public:
  Unwritten(Plan& giver, Place place, std::int64_t step, std::size_t bytes)
      : giver(&giver), place(place), step(step), gaps_{{0, static_cast<std::int64_t>(bytes)}} {}

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

  // Whether what a tensor shows of it is not finite.
  bool is_bad_in(const at::Tensor& t) const {
    const auto format = finite::format_of(t.scalar_type());
    const auto* const memory = static_cast<const char*>(t.storage().data());
    if (!format || memory == nullptr || !t.device().is_cpu() || !Describer::holds(t)) return false;
    finite::detail::Scan scan;
    const bool known = each_piece(t, [&](std::int64_t from, std::int64_t to) {
      for (const auto& [begin, end] : gaps_) {
        const std::int64_t first = std::max(begin, from), last = std::min(end, to);
        if (first < last) scan.read(memory + first, static_cast<std::size_t>(last - first) / format->bytes, *format);
      }
    });
    return known && scan.bits != 0;
  }

 private:
  using Piece = std::pair<std::int64_t, std::int64_t>;  // bytes, from and to
  static constexpr std::size_t kMostPieces = 1024;

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
