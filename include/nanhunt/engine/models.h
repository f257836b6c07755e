// SPDX-License-Identifier: Apache-2.0
// Small ready-made models.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "nanhunt/engine/module.h"
#include "nanhunt/engine/modules.h"

namespace nanhunt::engine {

struct MlpOptions {
  std::vector<std::int64_t> sizes = {64, 64, 32, 10};  // input, hidden ..., output
  DType dtype = DType::kF32;
  std::uint64_t seed = 1;  // of the initial weights; the same numbers, rounded once, whatever the dtype
};

// fc1, relu1, fc2, relu2, ..., fcN.
class Mlp : public Sequential {
 public:
  explicit Mlp(const MlpOptions& options = {});
};

}  // namespace nanhunt::engine
