// SPDX-License-Identifier: Apache-2.0
#include "src/record/op_table.h"

#include <algorithm>
#include <array>

#include "src/core/op_name.h"

namespace nanhunt::record {
namespace {

struct Row {
  std::string_view op;
  OpTraits traits;
};

constexpr FlushRule kNo = FlushRule::kNotMeasured;
constexpr ElementMap kEach = ElementMap::kElementwise;
constexpr ElementMap kSame = ElementMap::kSameShape;
constexpr ElementMap kNoMap = ElementMap::kNone;
constexpr bool kIgnoresOld = true;

// Sorted by name. exp, softmax and sigmoid are not measured: their tails vanish by design.
constexpr std::array kRows = {
    Row{"_log_softmax", {kNo, kSame}},
    Row{"_softmax", {kNo, kSame}},
    Row{"_to_copy", {FlushRule::kCopy, kEach}},
    Row{"abs", {kNo, kEach}},
    Row{"add", {kNo, kEach}},
    Row{"add_", {kNo, kEach}},
    Row{"addcdiv", {kNo, kEach}},
    Row{"addcdiv_", {kNo, kEach}},
    Row{"addcmul_", {FlushRule::kSquareAdd, kEach}},
    Row{"bernoulli_", {kNo, kNoMap, kIgnoresOld}},
    Row{"clamp", {kNo, kEach}},
    Row{"clamp_min", {kNo, kEach}},
    Row{"clone", {kNo, kEach}},
    Row{"copy_", {FlushRule::kCopy, kEach, kIgnoresOld}},
    Row{"div", {FlushRule::kQuotient, kEach}},
    Row{"div_", {FlushRule::kQuotient, kEach}},
    Row{"eq", {kNo, kEach}},
    Row{"exp", {kNo, kEach}},
    Row{"expm1", {kNo, kEach}},
    Row{"fill_", {kNo, kEach, kIgnoresOld}},
    Row{"gelu", {kNo, kEach}},
    Row{"gt", {kNo, kEach}},
    Row{"lerp_", {kNo, kEach}},
    Row{"log", {kNo, kEach}},
    Row{"log1p", {kNo, kEach}},
    Row{"log_softmax", {kNo, kSame}},
    Row{"masked_fill", {kNo, kEach}},
    Row{"masked_fill_", {kNo, kEach}},
    Row{"mean", {kNo, kSame}},
    Row{"mul", {FlushRule::kProduct, kEach}},
    Row{"mul_", {FlushRule::kProduct, kEach}},
    Row{"neg", {kNo, kEach}},
    Row{"norm", {kNo, kSame}},
    Row{"normal_", {kNo, kNoMap, kIgnoresOld}},
    Row{"pow", {FlushRule::kPower, kEach}},
    Row{"reciprocal", {kNo, kEach}},
    Row{"relu", {kNo, kEach}},
    Row{"rsqrt", {kNo, kEach}},
    Row{"sigmoid", {kNo, kEach}},
    Row{"silu", {kNo, kEach}},
    Row{"softmax", {kNo, kSame}},
    Row{"sqrt", {kNo, kEach}},
    Row{"sqrt_", {kNo, kEach}},
    Row{"sub", {kNo, kEach}},
    Row{"sub_", {kNo, kEach}},
    Row{"sum", {kNo, kSame}},
    Row{"tanh", {kNo, kEach}},
    Row{"uniform_", {kNo, kNoMap, kIgnoresOld}},
    Row{"where", {kNo, kEach}},
    Row{"zero_", {kNo, kNoMap, kIgnoresOld}},
};
static_assert(std::is_sorted(kRows.begin(), kRows.end(), [](const Row& a, const Row& b) { return a.op < b.op; }));

}  // namespace

OpTraits op_traits(std::string_view op) {
  op = element_op_name(op);
  const std::string_view forward = forward_op_name(op);
  const bool backward = !forward.empty();
  if (backward) op = forward;
  const auto it = std::lower_bound(kRows.begin(), kRows.end(), op,
                                   [](const Row& row, std::string_view name) { return row.op < name; });
  if (it == kRows.end() || it->op != op) return {};
  OpTraits traits = it->traits;
  if (backward) traits.flush = FlushRule::kNotMeasured;
  return traits;
}

}  // namespace nanhunt::record
