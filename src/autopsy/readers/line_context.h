// SPDX-License-Identifier: Apache-2.0
// Line context: what a line of text says beside its numbers. Which process wrote it, whether it speaks of evaluation,
// whether it states something or only mentions it.
#pragma once

#include <string>
#include <string_view>

namespace nanhunt::autopsy {

// The rank that a launcher or a logger put before the line ("[rank3]: ", "Rank 3: "), which is taken off it; "" for
// none.
std::string take_rank(std::string_view& line);

// "[val] epoch 1 ...", "Valid: loss=...", "Epoch(val) [1]", "Test set: Average loss: ...".
bool speaks_of_evaluation(std::string_view line);

// "if you see loss: nan, ...", "training stops when loss=nan": no result of this run.
bool is_conditional(std::string_view line);
// "Loss is nan, skipping this batch", "NaN or Inf found in input tensor.", "RuntimeError: ... returned nan values".
bool states_bad_number(std::string_view line);

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
// Whether a word stands in `text` on its own, and is no part of a path: "nan" in "loss is nan", not in "/data/nan/x".
bool has_word(std::string_view text, std::string_view word);

}  // namespace nanhunt::autopsy
