// SPDX-License-Identifier: Apache-2.0
// What an origin op and the few ops before it looked like, copied while the records are still at hand.
#pragma once

#include <memory>
#include <string_view>

#include "src/analyze/graph/birth.h"
#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {

// The result of a decomposition beside the sign of a determinant.
inline constexpr std::string_view kLogOfDeterminant = "logabsdet";

ArgSnapshot snapshot(const Value* value, const OpArg& arg);
OpSnapshot snapshot(const RecentOp& op, ValueTable& values, const OpRing& ring);

// Of a NaN that PyTorch writes as the answer of logdet: what gave the sign of the determinant. nullptr: it is no such.
const RecentOp* gave_sign(const OpInView& op, const Names& names, ValueTable& values, const OpRing& ring);

// Walks back from the arguments that can make the op fail (all of them where the op table names none), nearest first,
// at most kMaxSlice ops.
std::unique_ptr<OriginContext> capture(const OpInView& op, Names& names, ValueTable& values, const OpRing& ring);

}  // namespace nanhunt::analyze
