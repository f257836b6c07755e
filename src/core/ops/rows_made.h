// SPDX-License-Identifier: Apache-2.0
// Ops whose output holds no arithmetic: constants, random numbers, memory, comparisons, indices.
#pragma once

#include "src/core/ops/row.h"

namespace nanhunt::ops {

// clang-format off
// Indices, sizes, and what else holds no floating-point result.
constexpr Row kIndices = Row(0);
// Yes or no of each element.
constexpr Row kComparing = Row(kElementwise);
// Random numbers over whatever was there.
constexpr Row kRandom = Row(kElementwise | kOverwritesAll);
// The same in the shape of another tensor.
constexpr Row kRandomLike = Row(kElementwise | kOverwritesAll | kReadsShape);
// A constant.
constexpr Row kConstants = Row(kWritesConstant);
// The same in the shape of another tensor.
constexpr Row kConstantsLike = Row(kWritesConstant | kReadsShape);

constexpr Row kMadeRows[] = {
    op("compiled_graph", kCompiled),
    op("triton::*", kLaunched),

    op("all", kIndices),
    op("any", kIndices),
    op("arange", kIndices),
    op("argmax", kIndices),
    op("argmin", kIndices),
    op("argsort", kIndices),
    op("bincount", kIndices),
    op("bucketize", kIndices),
    op("count_nonzero", kIndices),
    op("histc", kIndices),
    op("linspace", kIndices),
    op("logspace", kIndices),
    op("nonzero", kIndices),
    op("numel", kIndices),
    op("one_hot", kIndices),
    op("range", kIndices),
    op("resize", kIndices),
    op("searchsorted", kIndices),

    op("bitwise_and", kComparing),
    op("bitwise_not", kComparing),
    op("bitwise_or", kComparing),
    op("bitwise_xor", kComparing),
    op("eq", kComparing).meets(kByElement),
    op("ge", kComparing),
    op("gt", kComparing).meets(kByElement),
    op("isfinite", kComparing),
    op("isinf", kComparing),
    op("isnan", kComparing),
    op("le", kComparing),
    op("logical_and", kComparing),
    op("logical_not", kComparing),
    op("logical_or", kComparing),
    op("logical_xor", kComparing),
    op("lt", kComparing),
    op("ne", kComparing),
    op("signbit", kComparing),

    op("bernoulli", kRandom),
    op("cauchy", kRandom),
    op("exponential", kRandom),
    op("geometric", kRandom),
    op("log_normal", kRandom),
    op("multinomial", kRandom),
    op("normal", kRandom),
    op("rand", kRandom),
    op("randint", kRandom),
    op("randn", kRandom),
    op("random", kRandom),
    op("randperm", kRandom),
    op("uniform", kRandom),

    op("rand_like", kRandomLike),
    op("randint_like", kRandomLike),
    op("randn_like", kRandomLike),

    op("eye", kConstants),
    op("ones", kConstants),
    op("zeros", kConstants),
    op("zeros_out", kConstants),

    op("new_ones", kConstantsLike),
    op("new_zeros", kConstantsLike),
    op("ones_like", kConstantsLike),
    op("zeros_like", kConstantsLike),

    // Each by itself.
    op("constant_pad_nd", kKeepsMask | kSelects | kWritesConstant).bound(Bound::kCopy),
    op("empty", kMakesGarbage),
    op("empty_like", kReadsShape | kMakesGarbage),
    op("empty_strided", kMakesGarbage),
    op("fill", kElementwise | kKeepsMask | kOverwritesAll | kWritesConstant)
        .zero(ZeroRule::kConstant)
        .meets(kByElement),
    op("full", kElementwise | kOverwritesAll | kWritesConstant).zero(ZeroRule::kConstant),
    op("full_like", kElementwise | kWritesConstant | kReadsShape).zero(ZeroRule::kConstant),
    op("index_fill", kKeepsMask | kSelects | kWritesConstant).bound(Bound::kCopy),
    op("masked_fill", kElementwise | kKeepsMask | kSelects | kWritesConstant | kMasks).meets(kByElement).also(kNumpy),
    op("new_empty", kReadsShape | kMakesGarbage),
    op("new_empty_strided", kReadsShape | kMakesGarbage),
    op("new_full", kElementwise | kWritesConstant | kReadsShape).zero(ZeroRule::kConstant),
    op("scalar_tensor", kWritesConstant).zero(ZeroRule::kConstant),
    op("scatter", kKeepsMask | kSelects | kWritesConstant).bound(Bound::kCopy),
    op("zero", kElementwise | kOverwritesAll | kWritesConstant),
};
// clang-format on

}  // namespace nanhunt::ops
