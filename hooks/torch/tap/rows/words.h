// SPDX-License-Identifier: Apache-2.0
// What rows are made of: words of tensors, and the tensors of an op's arguments.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

#include "hooks/torch/tap/describe.h"

namespace nanhunt::tap {

using Words = std::vector<std::int64_t>;
using Key = std::vector<std::int32_t>;

inline void put(Words& words, const Quad& quad) { words.insert(words.end(), {quad.data, quad.word, quad.offset, quad.layout}); }

// Tensors in nested lists, in order.
template <typename F>
void each_tensor(const c10::IValue& value, F&& take) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) take(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) each_tensor(item, take);
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) each_tensor(item, take);
  }
}

template <typename F>
void each_tensor(c10::ArrayRef<c10::IValue> values, F&& take) {
  for (const c10::IValue& value : values) each_tensor(value, take);
}

}  // namespace nanhunt::tap
