// SPDX-License-Identifier: Apache-2.0
// What a tensor or number is for, by its name in the checkpoint.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string_view>

namespace nanhunt::checkpoint {

std::string_view last_part(std::string_view name);  // behind the last "." or ":"

// "loss_history" has "loss" and "history"; "edge_bias" has no "edges".
bool has_whole_word(std::string_view name, std::initializer_list<std::string_view> words);
bool has_text(std::string_view name, std::initializer_list<std::string_view> texts);

bool is_callback_state(std::string_view name);   // what Lightning keeps under "callbacks."
bool is_optimizer_state(std::string_view name);  // below "state.", or a moment
// The same, and certainly of an optimizer: a trainer has a "state." too.
bool is_surely_optimizer_state(std::string_view name);
bool is_mask_name(std::string_view name);
// What training updates, and what the model multiplies with.
bool is_trained_name(std::string_view name, std::size_t rank);
bool is_loss_name(std::string_view name);
bool is_range_name(std::string_view name);  // edges of bins

}  // namespace nanhunt::checkpoint
