// SPDX-License-Identifier: Apache-2.0
// Where does a zero (in a denominator, under a logarithm ...) come from? Walks back through the slice.
#pragma once

#include "src/analyze/graph/birth.h"
#include "src/analyze/stream/names.h"

namespace nanhunt::analyze {

enum class ZeroCause : std::uint8_t {
  kExact,      // it was 0 in exact arithmetic, or nothing says otherwise
  kGuardLost,  // a constant that should have kept it from 0 is itself 0 in the format it was stored in
  kFlushed,    // products, quotients or casts that were too small for the format
};

struct ZeroOrigin {
  ZeroCause cause = ZeroCause::kExact;
  const OpSnapshot* op = nullptr;  // that made the zero (kGuardLost, kFlushed)
  DType stored = DType::kF32;      // format of its result
  double guard = 0;                // kGuardLost: the constant
  std::int64_t flushed = 0;        // kFlushed: elements
  std::int64_t numel = 0;          // of that op's result
};

// `arg` is an input of the origin op that has zeros.
ZeroOrigin find_zero_origin(const OriginContext& context, const ArgSnapshot& arg, Names& names);

// Is `value` a constant that a result of this op cannot fall below for arguments >= 0? Then its number.
struct Guard {
  double value = 0;
  bool there = false;
};
Guard guard_of(const OpSnapshot& op, const OpInfo& info, const Names& names);

// A limit that numbers were clamped to and that rounds to a singular one in the format stored: max = 1 - 1e-8 is 1 in
// fp32.
struct RoundedBound {
  const OpSnapshot* op = nullptr;  // that clamps; nullptr: there is none
  StringId name = 0;               // of the limit
  double bound = 0, stored = 0;
  DType format = DType::kF32;
};
// `pole` holds the singular number `at`: walks back over copies and sums with a number to what clamped it.
RoundedBound find_rounded_bound(const OriginContext& context, const ArgSnapshot& pole, double at, Names& names);

DType dtype_of(const ArgSnapshot& arg, const Names& names, DType otherwise);

}  // namespace nanhunt::analyze
