// SPDX-License-Identifier: Apache-2.0
#include "src/core/ops/autocast/cast_policy.h"

#include <algorithm>

namespace nanhunt {
namespace {

// Whether `word` is one of those in `words`.
bool is_among(std::string_view word, std::string_view words) {
  while (!words.empty()) {
    const std::size_t end = std::min(words.find(' '), words.size());
    if (words.substr(0, end) == word) return true;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return false;
}

}  // namespace

std::span<const CastRow> cast_rows(CastList list) {
  switch (list) {
    case CastList::kTorchCuda:
      return torch_cuda_rows();
    case CastList::kTorchCpu:
      return torch_cpu_rows();
    case CastList::kApex:
      return apex_rows();
  }
  return {};
}

std::optional<CastPolicy> cast_policy(std::string_view op, CastList list) {
  const std::size_t dot = op.find('.');
  const std::string_view name = op.substr(0, dot);
  const std::span<const CastRow> rows = cast_rows(list);
  const auto row = std::ranges::lower_bound(rows, name, {}, &CastRow::op);
  if (row == rows.end() || row->op != name) return std::nullopt;
  if (dot != op.npos && !is_among(op.substr(dot + 1), row->overloads)) return std::nullopt;
  return row->policy;
}

}  // namespace nanhunt
