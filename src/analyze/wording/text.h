// SPDX-License-Identifier: Apache-2.0
// Words and numbers of findings. Names stay raw: reporters escape them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nanhunt/analyzer.h"

namespace nanhunt::analyze {

std::string number(double value);                            // "65504", "1e-8", "5.96e-8", "NaN", "-Inf"
std::string scale_text(double scale);                         // a loss scale, exact where it is whole: "16777216"
std::string count_of(std::int64_t count, const char* noun);  // "1 NaN", "3 elements"
std::string percent(double share);                           // "83%", "0.4%"
std::string join(const std::vector<std::string>& items, std::size_t limit, const char* last = " and ");
std::string coords_text(const std::vector<std::int64_t>& coords);
// Row-major coordinates; empty when the shape is not known or does not hold the index.
std::vector<std::int64_t> coords_of(std::int64_t flat_index, const std::vector<std::int64_t>& shape);
// "64 NaN of 640", "12 Inf and 3 NaN of 640".
std::string bad_count_text(std::int64_t nan, std::int64_t pos_inf, std::int64_t neg_inf, std::int64_t numel);
// "parameter fc1.weight", "loss", "gradient of fc1.weight".
std::string sink_text(TensorRole kind, const std::string& path);

// The first and the last step that count for a finding: those with harm, where there were any.
inline std::uint32_t began(const Finding& f) { return f.bad_steps.count > 0 ? f.bad_steps.first : f.first_step; }
inline std::uint32_t ended(const Finding& f) { return f.bad_steps.count > 0 ? f.bad_steps.last : f.last_step; }

}  // namespace nanhunt::analyze
