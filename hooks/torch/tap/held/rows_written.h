// SPDX-License-Identifier: Apache-2.0
// The rows of a large tensor that an op wrote, where it wrote a few of them: the others hold what they held before.
#pragma once

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <string_view>
#include <vector>

#include "hooks/torch/tap/hush.h"
#include "hooks/torch/tap/plan.h"

namespace nanhunt::tap {

inline constexpr std::int64_t kLarge = std::int64_t{1} << 16;  // elements; fewer are read as fast as they are looked up
inline constexpr std::int64_t kFewRows = 4;                    // of so many one

// The part of a large tensor that an op wrote.
struct PartWritten {
  at::Tensor index;      // numbers of rows, or of an element each; undefined: it wrote much, or nobody can say what
  std::int64_t dim = 0;  // that they count in
  bool of_elements = false;
};

inline PartWritten part_written(const Plan& plan, const std::vector<c10::IValue>& args, const at::Tensor& t) {
  if (args.size() < 2 || !args[0].isTensor() || !args[0].toTensor().is_same(t)) return {};
  const std::string_view op = plan.op;
  const bool along = args.size() > 2 && args[1].isInt() && args[2].isTensor();
  PartWritten part;
  if (along && (op == "aten::index_add_" || op == "aten::index_copy_" || op == "aten::index_fill_")) {
    part = {args[2].toTensor(), args[1].toInt()};
  } else if (along && (op == "aten::scatter_" || op == "aten::scatter_add_" || op == "aten::scatter_reduce_")) {
    part = {args[2].toTensor(), args[1].toInt(), true};
  } else if (op == "aten::index_put_" || op == "aten::_index_put_impl_") {
    if (args[1].isList() && args[1].toListRef().size() == 1 && args[1].toListRef()[0].isTensor())
      part.index = args[1].toListRef()[0].toTensor();
  } else if (op == "aten::add_" && args[1].isTensor() && args[1].toTensor().layout() == c10::kSparse &&
             args[1].toTensor().sparse_dim() == 1) {
    part.index = args[1].toTensor()._indices()[0];
  }
  const at::Tensor& index = part.index;
  if (!index.defined() || !index.device().is_cpu()) return {};
  if (index.scalar_type() != at::kLong && (part.of_elements || index.scalar_type() != at::kInt)) return {};
  return index.numel() * kFewRows > (part.of_elements ? t.numel() : t.size(part.dim)) ? PartWritten{} : part;
}

inline bool writes_few_rows(const Plan& plan, const std::vector<c10::IValue>& args, const at::Tensor& t) {
  if (t.numel() < kLarge) return false;
  try {
    const Unheard unheard;
    return part_written(plan, args, t).index.defined();
  } catch (const std::exception&) {
    return false;
  }
}

// A copy of that part; nullopt: it wrote much, or nobody can say what.
inline std::optional<at::Tensor> rows_written(const Plan& plan, const std::vector<c10::IValue>& args, const at::Tensor& t) {
  if (t.numel() < kLarge) return std::nullopt;
  try {
    const Unheard unheard;
    PartWritten part = part_written(plan, args, t);
    at::Tensor& index = part.index;
    if (!index.defined()) return std::nullopt;
    if (part.of_elements) return at::gather(t.detach(), part.dim, index);
    if (index.dim() != 1) index = index.flatten();
    if (plan.op != "aten::add_" && index.scalar_type() == at::kLong)
      index = at::remainder(index, t.size(part.dim));  // from the end
    return at::index_select(t.detach(), part.dim, index);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace nanhunt::tap
