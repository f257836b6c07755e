// SPDX-License-Identifier: Apache-2.0
// A variable that has another value while this lives, also when something throws.
#pragma once

#include <utility>

namespace nanhunt {

template <typename T>
class [[nodiscard]] ScopedValue {
 public:
  ScopedValue(T& variable, T value) : variable_(variable), outer_(std::exchange(variable, std::move(value))) {}
  ~ScopedValue() { variable_ = std::move(outer_); }
  ScopedValue(const ScopedValue&) = delete;
  ScopedValue& operator=(const ScopedValue&) = delete;

 private:
  T& variable_;
  T outer_;
};

}  // namespace nanhunt
