// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/op_table.h"

#include <algorithm>

#include "src/core/op_name.h"

namespace nanhunt::analyze {
namespace {

constexpr OpInfo kUnknownOp = {};
// The gradient of a listed op: products and sums over broadcast dimensions, unless the table says more.
constexpr OpInfo kPlainBackward = {"*_backward", kArithmetic | kAccumulates, Pole::kNone,
                                   {},           ZeroRule::kStop,            Bound::kGradient};

std::string_view normalised(std::string_view op) {
  op = plain_op_name(op);
  if (op.size() > 1 && op.ends_with('_')) op.remove_suffix(1);
  return op;
}

const OpInfo* find(std::string_view name) {
  const std::span<const OpInfo> rows = op_rows();
  const auto at = std::lower_bound(rows.begin(), rows.end(), name,
                                   [](const OpInfo& info, std::string_view wanted) { return info.name < wanted; });
  return at != rows.end() && at->name == name ? &*at : nullptr;
}

}  // namespace

const OpInfo& op_info(std::string_view op) {
  std::string_view name = normalised(op);
  if (const OpInfo* info = find(name)) return *info;
  // An op over a list of tensors does to each what the plain one does.
  constexpr std::string_view kForeach = "_foreach_";
  if (name.starts_with(kForeach)) {
    name.remove_prefix(kForeach.size());
    if (const OpInfo* info = find(name)) return *info;
  }
  const std::string_view forward = forward_op_name(name);
  return !forward.empty() && find(forward) != nullptr ? kPlainBackward : kUnknownOp;
}

bool is_bilinear(const OpInfo& info) {
  return info.bound == Bound::kMatmul || info.bound == Bound::kProduct || info.name == "convolution" ||
         info.name == "linear" || info.name == "baddbmm";
}

std::string forward_op(std::string_view op) {
  const std::string_view name = normalised(op);
  const OpInfo* info = find(name);
  return std::string(info != nullptr && !info->forward.empty() ? info->forward : forward_op_name(name));
}

DType eps_dtype(const OpInfo& info, DType compute) {
  const bool narrow = is_floating(compute) && dtype_size(compute) < 4;
  return info.eps == EpsForm::kOpMath && narrow ? DType::kF32 : compute;
}

}  // namespace nanhunt::analyze
