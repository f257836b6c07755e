// SPDX-License-Identifier: Apache-2.0
// Single numbers: those of Python, and what a tensor of one element on the host holds. And which of them the program
// made that are not finite.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "hooks/torch/tap/plan.h"

namespace nanhunt::tap {

// A Python number, be it wrapped into a tensor.
inline bool number_of(const c10::IValue& value, double& number) {
  if (value.isDouble()) {
    number = value.toDouble();
  } else if (value.isInt()) {
    number = static_cast<double>(value.toInt());
  } else if (value.isBool()) {
    number = value.toBool() ? 1 : 0;
  } else if (value.isTensor() && value.toTensor().defined() &&
             value.toTensor().unsafeGetTensorImpl()->is_wrapped_number()) {
    const at::Tensor& t = value.toTensor();
    const void* data = t.const_data_ptr();
    switch (t.scalar_type()) {
      case at::kDouble:
        number = *static_cast<const double*>(data);
        break;
      case at::kLong:
        number = static_cast<double>(*static_cast<const std::int64_t*>(data));
        break;
      case at::kBool:
        number = *static_cast<const bool*>(data) ? 1 : 0;
        break;
      default:
        return false;
    }
  } else {
    return false;
  }
  return true;
}

inline bool is_wrapped(const at::Tensor& t) { return t.unsafeGetTensorImpl()->is_wrapped_number(); }

inline bool is_given(const c10::IValue& value) {
  if (value.isNone()) return false;
  return !value.isBool() || value.toBool();
}

inline bool equal(const c10::IValue& a, const c10::IValue& b) {
  double x = 0, y = 0;
  if (number_of(a, x) && number_of(b, y)) return x == y;
  if (a.isNone() || b.isNone()) return a.isNone() && b.isNone();
  if (a.isTensor() || b.isTensor()) return false;
  return a == b;
}

// As Python's modes are not given it: keywords that are defaults, and defaults at the end of what is positional.
inline bool is_default(const Plan& plan, const std::vector<c10::IValue>& args, const Arg& arg) {
  const auto same = [&](const Arg& one) {
    return one.fallback != nullptr && equal(args[static_cast<std::size_t>(one.index)], *one.fallback);
  };
  if (!same(arg)) return false;
  if (arg.keyword) return true;
  for (std::size_t i = static_cast<std::size_t>(arg.index) + 1; i < plan.args.size() && !plan.args[i].keyword; ++i)
    if (!same(plan.args[i])) return false;
  return true;
}

// What a floating tensor of one element holds, where the host has it.
inline std::optional<double> one_number(const at::Tensor& t) {
  if (!t.defined() || !t.device().is_cpu() || !t.has_storage() || t.key_set().has(c10::DispatchKey::Python) ||
      t.numel() != 1)
    return std::nullopt;
  const void* data = t.const_data_ptr();
  if (data == nullptr) return std::nullopt;
  switch (t.scalar_type()) {
    case at::kFloat:
      return *static_cast<const float*>(data);
    case at::kDouble:
      return *static_cast<const double*>(data);
    case at::kHalf:
      return static_cast<float>(*static_cast<const c10::Half*>(data));
    case at::kBFloat16:
      return static_cast<float>(*static_cast<const c10::BFloat16*>(data));
    default:
      return std::nullopt;
  }
}

// A number that is not finite, of an op whose result is one: a loss, a metric. Computed, that is: what selects, copies
// or fills hands on what was there (a mask, the best loss before the first).
class BadNumber {
 public:
  // Before the op runs.
  explicit BadNumber(c10::ArrayRef<c10::IValue> args) {
    for (const c10::IValue& value : args) {
      computes_ = computes_ || value.isTensor() || value.isTensorList();
      if (!value.isTensor() || !value.toTensor().defined() || is_wrapped(value.toTensor())) continue;
      const std::optional<double> number = one_number(value.toTensor());
      was_nan_ = was_nan_ || (number && std::isnan(*number));
      was_infinite_ = was_infinite_ || (number && std::isinf(*number));
    }
  }

  // After it. `only_nan`: infinities are none.
  bool is_made(const Plan& plan, const c10::Stack& stack, bool only_nan = false) const {
    if (was_nan_ || !computes_ || plan.returns == 0 || plan.garbage || plan.collective || plan.skip) return false;
    const std::optional<double> number = result(plan, stack);
    if (!number || std::isfinite(*number) || hands_on(plan, kCopies)) return false;
    return std::isnan(*number) || (!only_nan && !was_infinite_ && !hands_on(plan, kSelects));
  }

 private:
  static std::optional<double> result(const Plan& plan, const c10::Stack& stack) {
    const c10::IValue& value = *(stack.end() - static_cast<std::ptrdiff_t>(plan.returns));
    return value.isTensor() ? one_number(value.toTensor()) : std::nullopt;
  }
  static constexpr std::string_view kCopies[] = {"copy", "_to_copy", "clone", "fill", "full", "full_like", "new_full"};
  static constexpr std::string_view kSelects[] = {
      "max",          "min",         "amax",   "amin",      "aminmax",     "maximum",       "minimum",
      "fmax",         "fmin",        "clamp",  "clamp_min", "clamp_max",   "where",         "index",
      "index_select", "index_put",   "gather", "take",      "masked_fill", "masked_select", "masked_scatter",
      "select_copy",  "slice_copy",  "sort",   "topk",      "kthvalue",    "median",        "nanmedian",
      "quantile",     "nanquantile", "cat",    "stack",     "logsumexp"};

  template <std::size_t N>
  static bool hands_on(const Plan& plan, const std::string_view (&names)[N]) {
    std::string_view name = plan.op;
    name.remove_prefix(name.find("::") + 2);
    return plans::among(plans::without_underscores(name), names);
  }

  bool was_nan_ = false, was_infinite_ = false, computes_ = false;
};

}  // namespace nanhunt::tap
