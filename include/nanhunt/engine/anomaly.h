// SPDX-License-Identifier: Apache-2.0
// PyTorch's anomaly mode: backward stops at the first op that gives NaN.
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "nanhunt/event.h"

namespace nanhunt::engine {

// "Function 'SqrtBackward0' returned nan values in its 0th output."
class AnomalyError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// While one lives, on its thread: what a backward op gives is looked at once observers were told of it, and the first NaN
// throws AnomalyError. Infinities pass, so the function named is the one that made NaN of an infinity, not the one where the
// infinity arose. Waits for a device at every op. `enabled` false inside of another one switches it off.
class [[nodiscard]] DetectAnomaly {
 public:
  explicit DetectAnomaly(bool enabled = true);
  ~DetectAnomaly();
  DetectAnomaly(const DetectAnomaly&) = delete;
  DetectAnomaly& operator=(const DetectAnomaly&) = delete;

 private:
  bool previous_;
};
bool detects_anomaly();

// What PyTorch calls the backward of an op: "max_pool2d_with_indices" is "MaxPool2DWithIndicesBackward0".
std::string backward_function_name(std::string_view op, std::span<const OpScalar> scalars);

}  // namespace nanhunt::engine
