// SPDX-License-Identifier: Apache-2.0
// What an op did to badness: appear, transform, propagate, disappear or unknown.
#pragma once

#include <span>
#include <vector>

#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {

struct Flow {
  Lifecycle lifecycle = Lifecycle::kUnknown;
  std::vector<const Value*> bad;      // inputs whose badness can have gone into the output
  std::vector<const Value*> tainted;  // unread inputs that may have carried some
  bool watched = true;                // every input that matters was read
};

// Does this input's content go into the output? Masks and indices select, and some in-place ops ignore what they
// replace.
bool mixes(const OpInfo& info, ArgRole role);

// Of an op between ranks: does this rank give the others this input? In place, it gives what is then written over.
bool is_share(const OpInView& op, std::size_t input);

// An input that this call leaves unread, whatever else the op reads: memory that an op shapes or replaces whole, the
// place for its result ("out"), and a summand that is multiplied by beta = 0 (addmm, baddbmm).
bool leaves_unread(const OpInView& op, std::size_t input, const Names& names);

// For an op with an output whose bad kinds are `out_kinds` (not 0).
Flow classify(const OpInView& op, std::uint8_t out_kinds, const Names& names);

}  // namespace nanhunt::analyze
