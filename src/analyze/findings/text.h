// SPDX-License-Identifier: Apache-2.0
// Words and numbers of findings. Names stay raw: reporters escape them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nanhunt/analyzer.h"
#include "src/analyze/graph/chain.h"

namespace nanhunt::analyze {

std::string number(double value);                            // "65504", "1e-8", "5.96e-8", "NaN", "-Inf"
std::string scale_text(double scale);                         // a loss scale, exact where it is whole: "16777216"
std::string count_of(std::int64_t count, const char* noun);  // "1 NaN", "3 elements"
std::string percent(double share);                           // "83%", "0.4%"
std::string join(const std::vector<std::string>& items, std::size_t limit, const char* last = " and ");
std::string coords_text(const std::vector<std::int64_t>& coords);
// Row-major coordinates; empty when the shape is not known or does not hold the index.
std::vector<std::int64_t> coords_of(std::int64_t flat_index, const std::vector<std::int64_t>& shape);

}  // namespace nanhunt::analyze
