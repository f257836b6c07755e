// SPDX-License-Identifier: Apache-2.0
#include "reports/views/layer_planes.h"

#include <algorithm>
#include <cmath>

namespace nanhunt::reports {
namespace {

constexpr int kHeadroomSteps = 4;  // per binade
constexpr int kShareSteps = 12;    // per binade
constexpr int kLeastShareBinade = -20;

// NaN means that nothing was seen.
float worse(float a, float b, bool smaller_is_worse) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  return smaller_is_worse ? std::min(a, b) : std::max(a, b);
}

std::uint32_t columns_that_fit(std::uint32_t columns, std::size_t rows, std::size_t max_cells, std::uint32_t& merged) {
  merged = 1;
  std::uint32_t left = columns;
  while (left > 1 && rows * left > max_cells) {
    merged *= 2;
    left = (columns + merged - 1) / merged;
  }
  return left;
}

}  // namespace

std::uint8_t headroom_byte(float headroom) {
  if (std::isnan(headroom)) return 0;
  const float steps = std::floor(std::clamp(headroom, 0.0F, 63.5F) * kHeadroomSteps);
  return static_cast<std::uint8_t>(1 + static_cast<int>(steps));
}

std::uint8_t underflow_byte(float share) {
  if (std::isnan(share)) return 0;
  if (!(share > 0)) return 1;
  int exponent = 0;
  const float mantissa = std::frexp(std::min(share, 1.0F), &exponent);  // in [1/2, 1)
  const int k = static_cast<int>((mantissa - 0.5F) * (2 * kShareSteps));
  const int level = (exponent - kLeastShareBinade) * kShareSteps + k;
  return static_cast<std::uint8_t>(2 + std::max(level, 0));
}

LayerPlanes make_layer_planes(const Analysis& analysis, std::size_t max_rows, std::size_t max_cells) {
  const LayerMap& map = analysis.layer_map;
  LayerPlanes planes;
  const std::size_t cells = analysis.layers.size() * map.columns;
  if (cells == 0 || map.headroom.size() != cells || map.underflow.size() != cells || map.nonfinite.size() != cells) {
    return planes;
  }
  planes.rows = std::min(analysis.layers.size(), max_rows);
  std::uint32_t merged = 1;
  planes.columns = columns_that_fit(map.columns, planes.rows, max_cells, merged);
  planes.first_step = map.first_step;
  planes.steps_per_column = map.steps_per_column * merged;
  const std::size_t kept = planes.rows * planes.columns;
  planes.headroom.reserve(kept);
  planes.underflow.reserve(kept);
  planes.nonfinite.assign((kept + 7) / 8, 0);
  for (std::size_t row = 0; row < planes.rows; ++row) {
    for (std::uint32_t column = 0; column < planes.columns; ++column) {
      const std::size_t begin = row * map.columns + column * merged;
      const std::size_t end = std::min(begin + merged, (row + 1) * map.columns);
      float headroom = NAN, underflow = NAN;
      bool bad = false;
      for (std::size_t i = begin; i < end; ++i) {
        headroom = worse(headroom, map.headroom[i], /*smaller_is_worse=*/true);
        underflow = worse(underflow, map.underflow[i], /*smaller_is_worse=*/false);
        bad = bad || map.nonfinite[i] != 0;
      }
      const std::size_t cell = planes.headroom.size();
      if (bad) planes.nonfinite[cell / 8] = static_cast<std::uint8_t>(planes.nonfinite[cell / 8] | (1U << (cell % 8)));
      planes.headroom.push_back(headroom_byte(headroom));
      planes.underflow.push_back(underflow_byte(underflow));
    }
  }
  return planes;
}

bool tells(const LayerPlanes& planes) {
  constexpr std::uint8_t kNear = 1 + 4 * 32;  // binades; beyond it there is no danger in any format
  std::size_t watched = 0;
  bool near = false;
  for (std::uint32_t column = 0; column < planes.columns; ++column) {
    bool seen = false;
    for (std::size_t row = 0; row < planes.rows; ++row) {
      const std::size_t cell = row * planes.columns + column;
      seen = seen || planes.headroom[cell] != 0 || planes.underflow[cell] != 0;
      near = near || (planes.headroom[cell] != 0 && planes.headroom[cell] < kNear) || planes.underflow[cell] > 1;
    }
    watched += seen ? 1 : 0;
  }
  return near && watched * 2 > planes.columns;
}

std::string base64(const std::vector<std::uint8_t>& bytes) {
  static constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t held = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = std::uint32_t{bytes[i]} << 16U;
    if (held > 1) group |= std::uint32_t{bytes[i + 1]} << 8U;
    if (held > 2) group |= bytes[i + 2];
    for (std::size_t digit = 0; digit < 4; ++digit) {
      out += digit <= held ? kAlphabet[(group >> (18 - 6 * digit)) & 63U] : '=';
    }
  }
  return out;
}

}  // namespace nanhunt::reports
