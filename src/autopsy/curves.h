// SPDX-License-Identifier: Apache-2.0
// Curves: of each quantity the series that says most, and the questions that patterns ask of one.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "src/autopsy/evidence.h"

namespace nanhunt::autopsy {

inline constexpr std::size_t kNoPoint = static_cast<std::size_t>(-1);

struct Growth {
  double ratio = 1;           // of the last values to the level before
  double level = kUnknown;    // median of the first half
  double highest = kUnknown;  // of the last three
  std::size_t rises = 0;      // record highs on the way
};

struct Curve {
  const Series* series = nullptr;
  std::size_t first_bad = kNoPoint;

  bool there() const { return series != nullptr; }
  bool bad() const { return first_bad != kNoPoint; }
  const Point& point(std::size_t i) const { return series->points[i]; }
  std::size_t size() const { return there() ? series->points.size() : 0; }
  // Finite points before `end` that come after the last restart before it.
  std::vector<double> good_before(std::size_t end) const;
  Growth growth_before(std::size_t end) const;
  // The last restart at or before a point; nothing where the series has none by then.
  std::optional<std::size_t> restart_before(std::size_t point) const;
  // The last point at or before a position, or kNoPoint. Only as the file goes: for series without restarts it is
  // exact.
  std::size_t last_at(double position) const;
};

struct Curves {
  const Evidence* evidence = nullptr;
  Curve loss, eval_loss, grad_norm, learning_rate, scale, skipped;

  // Falls of the loss scale in the order in which they came, from whatever said so.
  std::vector<double> scales;    // each scale that was seen, in order; NaN where only a skipped step was
  std::vector<double> scale_at;  // its position, or NaN
  std::size_t scale_source = 0;
  Unit scale_unit = Unit::kStep;

  bool comparable(const Curve& a, const Curve& b) const;  // both are there and count the same unit
  // The gradient norm was bad where the loss was still finite.
  bool gradient_first() const;
  // Where the loss of a source stood when it had logged so many.
  std::optional<double> position_before(std::size_t source, std::size_t entries) const;
  // The whole loss, where the one that went bad is only a part of it, or stands beside it.
  const Series* loss_that_stayed_finite() const;
  bool has_fp16() const;
  std::string setting(std::string_view key) const;  // "" where none is known
  bool any_bad() const;
};

Curves choose_curves(const Evidence& evidence);

}  // namespace nanhunt::autopsy
