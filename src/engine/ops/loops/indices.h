// SPDX-License-Identifier: Apache-2.0
// int64 arguments that choose: class targets and embedding rows.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "nanhunt/engine/tensor.h"

namespace nanhunt::engine {

// Row-major copy; throws unless int64.
std::vector<std::int64_t> read_indices(std::string_view op, const Tensor& tensor, std::string_view slot);
// Throws unless 0 <= value < limit, naming the position.
void expect_index(std::string_view op, std::string_view slot, std::size_t position, std::int64_t value,
                  std::int64_t limit);

}  // namespace nanhunt::engine
