// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/wording/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace nanhunt::analyze {

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Inf" : "-Inf";
  const bool whole = std::fabs(value) < 1e7 && value == std::floor(value);
  std::string text = whole ? fmt::format("{:.0f}", value) : fmt::format("{:.4g}", value);
  if (text == "-0") return "0";
  // 1.0000001 is not 1: acos knows the difference.
  if (!whole && std::fabs(value) < 10 && text.find_first_of(".e") == text.npos) text = fmt::format("{:.9g}", value);
  // 1e-08 reads as 1e-8.
  const std::size_t e = text.find('e');
  if (e == std::string::npos) return text;
  std::size_t digits = e + 1;
  if (text[digits] == '+') {
    text.erase(digits, 1);
  } else if (text[digits] == '-') {
    ++digits;
  }
  while (digits + 1 < text.size() && text[digits] == '0') text.erase(digits, 1);
  return text;
}

std::string scale_text(double scale) {
  const bool whole = std::fabs(scale) < 1e15 && scale == std::floor(scale);
  return whole ? fmt::format("{:.0f}", scale) : number(scale);
}

std::string count_of(std::int64_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string percent(double share) {
  const double value = share * 100;
  return value >= 10 ? fmt::format("{:.0f}%", value) : fmt::format("{:.2g}%", value);
}

std::string join(const std::vector<std::string>& items, std::size_t limit, const char* last) {
  std::string out;
  const std::size_t shown = std::min(items.size(), limit);
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) out += i + 1 == items.size() ? last : ", ";
    out += items[i];
  }
  if (shown < items.size()) out += fmt::format("{}{} more", last, items.size() - shown);
  return out;
}

std::string coords_text(const std::vector<std::int64_t>& coords) {
  return fmt::format("[{}]", fmt::join(coords, ", "));
}

std::vector<std::int64_t> coords_of(std::int64_t flat_index, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> coords(shape.size());
  if (flat_index < 0) return {};
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] <= 0) return {};
    coords[i] = flat_index % shape[i];
    flat_index /= shape[i];
  }
  return flat_index == 0 ? coords : std::vector<std::int64_t>{};
}

std::string bad_count_text(std::int64_t nan, std::int64_t pos_inf, std::int64_t neg_inf, std::int64_t numel) {
  std::vector<std::string> parts;
  if (nan > 0) parts.push_back(fmt::format("{} NaN", nan));
  if (pos_inf > 0) parts.push_back(fmt::format("{} Inf", pos_inf));
  if (neg_inf > 0) parts.push_back(fmt::format("{} -Inf", neg_inf));
  if (parts.empty()) return "not finite";
  return numel == 1 && parts.size() == 1 ? parts[0].substr(parts[0].find(' ') + 1)
                                         : fmt::format("{} of {}", join(parts, 3), numel);
}

std::string sink_text(TensorRole kind, const std::string& path) {
  switch (kind) {
    case TensorRole::kLoss:
      return "loss";
    case TensorRole::kBoundaryGradient:
      return path.empty() ? "what was made of the gradients" : "gradient of " + path;
    case TensorRole::kParameter:
      return "parameter " + path;
    case TensorRole::kState:
      return "optimizer state " + path;
    case TensorRole::kBuffer:
      return "buffer " + path;
    case TensorRole::kBatch:
      return "batch tensor " + path;
    case TensorRole::kLabel:
      return "labels " + path;
    case TensorRole::kOutput:
      return "what the step ended with";
  }
  return path;
}

}  // namespace nanhunt::analyze
