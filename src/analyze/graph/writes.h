// SPDX-License-Identifier: Apache-2.0
// What an op writes, as far as its records show: on purpose, in place, unread, new.
#pragma once

#include <span>

#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {

bool writes_infinity_on_purpose(const OpInView& op);
bool writes_in_place(const OpInView& op);
bool reads_written_unread(const OpInView& op);
void note_written_unread(const OpInView& op);
bool gives_number(const OpInView& op, const Value& value, const LayoutRecord* layout);
bool sums_only_masks(const OpInView& op);
bool makes_new_infinities(const OpInView& op, std::span<const Value* const> bad);

}  // namespace nanhunt::analyze
