// SPDX-License-Identifier: Apache-2.0
// What the families' files share: copies and saved numbers of a scaler that is nothing but numbers, and words for them.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>

#include "nanhunt/engine/loss_scaler.h"

namespace nanhunt::engine {

template <typename Number>
void load_number(const LossScaler::Saved& saved, std::string_view name, Number& number) {
  const auto at = std::find_if(saved.begin(), saved.end(), [&](const auto& entry) { return entry.first == name; });
  if (at == saved.end()) throw std::invalid_argument(fmt::format("the saved state of the scaler has no '{}'", name));
  number = static_cast<Number>(at->second);
}

// `Derived` has `double scale` or `float scale` and the others of its numbers as for_each_number(call) gives them:
// call("cur_iter", cur_iter_), "scale" first.
template <typename Derived>
class Family : public LossScaler {
 public:
  Saved saved() const override {
    Saved out;
    Derived copy = self();
    copy.for_each_number([&](const char* name, auto& n) { out.emplace_back(name, static_cast<double>(n)); });
    return out;
  }
  void load(const Saved& saved) override {
    self().for_each_number([&](const char* name, auto& number) { load_number(saved, name, number); });
  }

 private:
  Derived& self() { return static_cast<Derived&>(*this); }
  const Derived& self() const { return static_cast<const Derived&>(*this); }
};

// As Python's str(float): 32768.0, 0.5, 1e+16.
inline std::string python_text(double number) {
  if (std::isfinite(number) && number == std::floor(number) && std::abs(number) < 1e16) {
    return fmt::format("{:.1f}", number);
  }
  return fmt::format("{}", number);
}

}  // namespace nanhunt::engine
