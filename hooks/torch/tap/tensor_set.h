// SPDX-License-Identifier: Apache-2.0
// Tensors that Python names once and asks about in each step: an optimizer's, a model's. They are not kept alive.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "hooks/torch/tap/describe.h"

namespace nanhunt::tap {

struct TensorSet {
  std::vector<WeakTensor> tensors;
  std::vector<std::int64_t> texts;  // numbers of their names; none: they have none
};
using SharedTensorSet = std::shared_ptr<const TensorSet>;

// Each that is still there, and the number of its name.
template <typename F>
void each_alive(const TensorSet& set, F&& take) {
  for (std::size_t i = 0; i < set.tensors.size(); ++i)
    if (auto alive = set.tensors[i].lock()) take(at::Tensor(std::move(alive)), i < set.texts.size() ? set.texts[i] : 0);
}

}  // namespace nanhunt::tap
