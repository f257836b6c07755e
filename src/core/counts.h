// SPDX-License-Identifier: Apache-2.0
// Counts and shapes as people write them. Independent of the locale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nanhunt {

std::string format_count(std::uint64_t n);  // "1,234,567"
std::string format_signed_count(std::int64_t n);
std::string format_dims(const std::vector<std::int64_t>& dims, std::size_t limit = 16);  // "[128, 64]"

}  // namespace nanhunt
