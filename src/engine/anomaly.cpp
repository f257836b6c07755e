// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/anomaly.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace nanhunt::engine {
namespace {

thread_local bool anomaly_mode = false;

// What PyTorch dispatches under another name than the engine's.
std::string_view dispatched(std::string_view op) {
  if (op == "narrow") return "slice";
  if (op == "norm") return "linalg_vector_norm";
  return op;
}

// Overloads are numbered in the order in which PyTorch declares them.
bool is_second_overload(std::string_view op, std::span<const OpScalar> scalars) {
  if (op == "clamp") return true;
  const bool has_dim = std::ranges::any_of(scalars, [](const OpScalar& scalar) { return scalar.name == "dim"; });
  return has_dim && (op == "mean" || op == "sum");
}

}  // namespace

DetectAnomaly::DetectAnomaly(bool enabled) : previous_(std::exchange(anomaly_mode, enabled)) {}
DetectAnomaly::~DetectAnomaly() { anomaly_mode = previous_; }
bool detects_anomaly() { return anomaly_mode; }

std::string backward_function_name(std::string_view op, std::span<const OpScalar> scalars) {
  std::string name;
  bool begins = true;  // a letter that follows none is a capital
  for (const char c : dispatched(op)) {
    const auto letter = static_cast<unsigned char>(c);
    if (c != '_') name += static_cast<char>(begins ? std::toupper(letter) : letter);
    begins = std::isalpha(letter) == 0;
  }
  return name + (is_second_overload(op, scalars) ? "Backward1" : "Backward0");
}

}  // namespace nanhunt::engine
