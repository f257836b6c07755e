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

// A copy of those rows; nullopt: it wrote many, or nobody can say which.
inline std::optional<at::Tensor> rows_written(const Plan& plan, const std::vector<c10::IValue>& args, const at::Tensor& t) {
  if (t.numel() < kLarge || args.size() < 2 || !args[0].isTensor() || !args[0].toTensor().is_same(t)) return std::nullopt;
  const std::string_view op = plan.op;
  std::int64_t dim = 0;
  at::Tensor rows;
  try {
    const Unheard unheard;
    if ((op == "aten::index_add_" || op == "aten::index_copy_" || op == "aten::index_fill_") && args.size() > 2 &&
        args[1].isInt() && args[2].isTensor()) {
      dim = args[1].toInt();
      rows = args[2].toTensor();
    } else if (op == "aten::index_put_" || op == "aten::_index_put_impl_") {
      if (!args[1].isList() || args[1].toListRef().size() != 1 || !args[1].toListRef()[0].isTensor()) return std::nullopt;
      rows = args[1].toListRef()[0].toTensor();
    } else if (op == "aten::add_" && args[1].isTensor() && args[1].toTensor().layout() == c10::kSparse &&
               args[1].toTensor().sparse_dim() == 1) {
      rows = args[1].toTensor()._indices()[0];
    }
    if (!rows.defined() || !rows.device().is_cpu() || (rows.scalar_type() != at::kLong && rows.scalar_type() != at::kInt))
      return std::nullopt;
    if (rows.numel() * kFewRows > t.size(dim)) return std::nullopt;
    if (rows.dim() != 1) rows = rows.flatten();
    if (op != "aten::add_" && rows.scalar_type() == at::kLong) rows = at::remainder(rows, t.size(dim));  // from the end
    return at::index_select(t.detach(), dim, rows);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace nanhunt::tap
