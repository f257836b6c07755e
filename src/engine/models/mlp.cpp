// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/models.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {

Mlp::Mlp(const MlpOptions& options) {
  const auto& sizes = options.sizes;
  if (sizes.size() < 2) fail("mlp", "an input and an output size", describe(Shape(sizes)));
  RandomStream random(options.seed, /*stream=*/0);
  for (std::size_t layer = 1; layer < sizes.size(); ++layer) {
    const std::string number = std::to_string(layer);
    append("fc" + number, std::make_unique<Linear>(sizes[layer - 1], sizes[layer], random, options.dtype));
    if (layer + 1 < sizes.size()) append("relu" + number, std::make_unique<Relu>());
  }
}

}  // namespace nanhunt::engine
