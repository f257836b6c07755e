// SPDX-License-Identifier: Apache-2.0
// Counts the elements that an optimizer's op meant to change and left as they were, because the change was less than
// half of what separates two numbers of the format. The old contents are gone by then; what they were follows from the
// new ones: x is certainly unchanged where the same change leaves x as it is and takes neither neighbour of x to x.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/element_evidence.h"
#include "nanhunt/event.h"

namespace nanhunt::record {

// Names under which the recorder adds the counts to the op's scalars (src/trace/FORMAT.md).
inline constexpr std::string_view kUpdatesScalar = "nanhunt.updates";
inline constexpr std::string_view kLostUpdatesScalar = "nanhunt.lost_updates";
inline constexpr std::string_view kLostShareScalar = "nanhunt.lost_update_share";

struct LostUpdates {
  std::int64_t updates = 0;  // elements whose change is not 0 and finite
  std::int64_t lost = 0;     // of them certainly unchanged: at least so many
  double share = 0;          // of the sum of all changes' sizes: that of the lost ones
};

// Of the first output, where that is written in place in fp16 or bf16 in phase optimizer, update or data by add_, sub_,
// addcdiv_, mul_ or lerp_ by a number, or a fused SGD, Adam or AdamW; in phase update a sum as well, which may be copied
// into an average. nullopt: another op, or operands that were not read, have gaps or broadcast. Of a fused op the change
// is computed from the state as stored, and is known to 2 %.
std::optional<LostUpdates> count_lost_updates(const OpEvent& event);
// Of an op whose output and operands the host cannot read: what there is to count for whoever can. The views are the
// event's; nullptr: not used.
struct DeferredUpdate {
  kernels::UpdateFormula formula;
  const TensorView *self = nullptr, *a = nullptr, *b = nullptr;
};
std::optional<DeferredUpdate> deferred_update(const OpEvent& event);

}  // namespace nanhunt::record
