// SPDX-License-Identifier: Apache-2.0
// Log files made in memory, byte for byte as the programs write them, and curves for the patterns.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/autopsy/judge.h"

namespace nanhunt::autopsy_testing {

std::string varint(std::uint64_t value);
std::string bytes_field(std::uint32_t number, std::string_view bytes);
std::string varint_field(std::uint32_t number, std::uint64_t value);
std::string float_field(std::uint32_t number, float value);

std::string tfrecord(std::string_view data);
// One event with one simple_value, framed.
std::string scalar_event(std::string_view tag, std::int64_t step, float value);
// W&B's framing around records, fragmented at blocks.
std::string wandb_file(const std::vector<std::string>& records);
std::string wandb_history(std::int64_t step, const std::vector<std::pair<std::string, std::string>>& items);

autopsy::Evidence evidence_of(std::string_view name, std::string_view bytes);

// Evidence with one curve per name, a value for each step from 0 on.
autopsy::Evidence curves_of(const std::vector<std::pair<std::string, std::vector<double>>>& curves);
// The patterns of the guesses in their order, with '!' behind those that are likely.
std::vector<std::string> guesses_of(const autopsy::Evidence& evidence);

const autopsy::Series* find_series(const autopsy::Evidence& evidence, std::string_view name);

}  // namespace nanhunt::autopsy_testing
