// SPDX-License-Identifier: Apache-2.0
#include "src/engine/ops/loops/indices.h"

#include <fmt/format.h>

#include "src/engine/ops/op.h"

namespace nanhunt::engine {

std::vector<std::int64_t> read_indices(std::string_view op, const Tensor& tensor, std::string_view slot) {
  expect_dtype(op, tensor, slot, DType::kI64);
  return tensor.to_indices();
}

void expect_index(std::string_view op, std::string_view slot, std::size_t position, std::int64_t value,
                  std::int64_t limit) {
  if (value >= 0 && value < limit) return;
  fail(op, fmt::format("{} from 0 to {}", slot, limit - 1), fmt::format("{} at position {}", value, position));
}

}  // namespace nanhunt::engine
