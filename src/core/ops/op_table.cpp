// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>

#include "src/core/op_name.h"
#include "src/core/ops/op_info.h"
#include "src/core/ops/rows_elementwise.h"
#include "src/core/ops/rows_made.h"
#include "src/core/ops/rows_moves.h"
#include "src/core/ops/rows_products.h"
#include "src/core/ops/rows_sums.h"

namespace nanhunt {
namespace {

constexpr OpInfo kUnknownOp = {};
// The gradient of a listed op: products and sums over broadcast dimensions, unless the table says more.
constexpr OpInfo kPlainBackward = ops::op("*_backward", ops::kWeighting).info;

constexpr std::size_t kRowCount = std::size(ops::kElementwiseRows) + std::size(ops::kMadeRows) +
                                  std::size(ops::kMoveRows) + std::size(ops::kProductRows) + std::size(ops::kSumRows);

bool by_name(const OpInfo& a, const OpInfo& b) { return a.name < b.name; }

std::array<OpInfo, kRowCount> sorted_rows() {
  std::array<OpInfo, kRowCount> rows;
  auto next = rows.begin();
  const auto add = [&](std::span<const ops::Row> group) {
    next = std::ranges::transform(group, next, &ops::Row::info).out;
  };
  add(ops::kElementwiseRows);
  add(ops::kMadeRows);
  add(ops::kMoveRows);
  add(ops::kProductRows);
  add(ops::kSumRows);
  std::sort(rows.begin(), rows.end(), by_name);
  return rows;
}

// Of a namespace whose ops are all alike there is one row.
std::string_view row_name(std::string_view name) {
  return name.starts_with("triton::") ? "triton::*" : name;
}

const OpInfo* find(std::string_view name) {
  const std::span<const OpInfo> rows = op_rows();
  const auto at = std::ranges::lower_bound(rows, name, {}, &OpInfo::name);
  return at != rows.end() && at->name == name ? &*at : nullptr;
}

}  // namespace

std::span<const OpInfo> op_rows() {
  static const std::array<OpInfo, kRowCount> rows = sorted_rows();
  return rows;
}

std::string_view table_name(std::string_view op) {
  op = plain_op_name(op);
  if (op.size() > 1 && op.ends_with('_')) op.remove_suffix(1);
  return op;
}

const OpInfo& op_info(std::string_view op) {
  const std::string_view name = row_name(table_name(op));
  if (const OpInfo* info = find(name)) return *info;
  // An op over a list of tensors does to each what the plain one does.
  if (const OpInfo* info = find(element_op_name(name))) return *info;
  const std::string_view forward = forward_op_name(name);
  return !forward.empty() && find(forward) != nullptr ? kPlainBackward : kUnknownOp;
}

OpTraits op_traits(std::string_view op) {
  const std::string_view forward = forward_op_name(element_op_name(op));
  if (!forward.empty()) return {.elements = op_info(forward).elements};
  const OpInfo& info = op_info(op);
  return {info.flush, info.elements, info.has(kOverwritesAll)};
}

std::string forward_op(std::string_view op) {
  const std::string_view name = table_name(op);
  const OpInfo* info = find(name);
  return std::string(info != nullptr && !info->forward.empty() ? info->forward : forward_op_name(name));
}

DType eps_dtype(const OpInfo& info, DType compute, std::optional<DType> deviations) {
  const bool narrow = is_floating(compute) && dtype_size(compute) < 4;
  // Some kernels store deviations in 16 bits that they have computed in fp32, and some are told with the format of
  // their tensors: only where both say so was eps added there.
  return info.eps == EpsForm::kOpMath && narrow && deviations != compute ? DType::kF32 : compute;
}

bool holds_deviations(std::string_view slot) { return slot == "rstd" || slot == "save_invstd"; }

}  // namespace nanhunt
