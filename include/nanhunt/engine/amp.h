// SPDX-License-Identifier: Apache-2.0
// Mixed precision as torch.amp does it. The engine's CPU device stands in for CUDA: its op lists, fp16 by default.
#pragma once

#include "nanhunt/dtype.h"

namespace nanhunt::engine {

struct AutocastOptions {
  bool enabled = true;
  DType dtype = DType::kF16;  // or kBF16
  bool cache = true;          // casts of fp32 parameters are made once per outermost region
};

// An autocast region of this thread, from construction to destruction. Regions nest, the innermost one rules, and a
// disabled one inside an enabled one switches casting off. While it is enabled, out-of-place ops on the lists (the
// table in src/engine/amp/policy.cpp) cast their floating arguments other than fp64; each cast is observed as a
// "_to_copy" in the module that uses it. Wrap forward and loss, not backward.
//
// The cache keeps the cast of a parameter until the outermost region ends, so its gradient arrives through one
// "_to_copy_backward". Two hazards are those of torch.amp, on purpose: a cast made under NoGradGuard has no way back to
// its parameter, and one reused later in the region with gradients on drops that parameter's gradient silently; and a
// parameter written inside the region goes on being used as it was. clear_autocast_cache() helps against both.
class [[nodiscard]] Autocast {
 public:
  explicit Autocast(const AutocastOptions& options = {});
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  AutocastOptions previous_;
};

bool autocast_enabled();  // false also inside an op that was cast
DType autocast_dtype();
bool autocast_cache_enabled();
void clear_autocast_cache();

}  // namespace nanhunt::engine
