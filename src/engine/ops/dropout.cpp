// SPDX-License-Identifier: Apache-2.0
// native_dropout: every element is dropped with probability p, the others are scaled by 1 / (1 - p). A dropped element
// is multiplied by 0, as eager kernels do: a dropped infinity becomes NaN.
#include <fmt/format.h>

#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/random.h"
#include "src/engine/ops/loops/elementwise.h"

namespace nanhunt::engine {
namespace {

// One word of the stream per element, in row-major order.
Tensor draw_mask(const Shape& sizes, double p, RandomStream& random, const Device& device) {
  Tensor mask = Tensor::empty(sizes, DType::kBool, device);
  const auto dropped = static_cast<std::uint64_t>(p * 0x1p32);  // words below it
  if (!device.is_cpu()) {
    device_dropout_mask(mask, random, dropped);
    return mask;
  }
  auto* kept = mask.data<std::uint8_t>();
  for (std::int64_t i = 0, n = mask.numel(); i < n; ++i) kept[i] = random.next_u32() >= dropped ? 1 : 0;
  return mask;
}

}  // namespace

Tensor dropout(const Tensor& input, double p, RandomStream& random) {
  expect_floating("native_dropout", input, "input");
  if (!(p >= 0 && p <= 1)) fail("native_dropout", "p in [0, 1]", fmt::format("{}", p));
  const double scale = p == 1 ? 0 : 1 / (1 - p);
  const Tensor mask = draw_mask(input.sizes(), p, random, input.device());
  const formulas::DropoutScale apply{scale};
  return finish(
      "native_dropout", op_math(input.dtype()), map(input.sizes(), input.dtype(), apply, input, mask),
      {{"input", &input}}, {{"p", p}, {"scale", scale}}, {{"mask", &mask, ArgRole::kMask}},
      [apply](const Tensor& g, const Node& node) -> std::vector<Tensor> {
        return {map_gradient(node.edges[0], g.sizes(), node.dtype, apply, g, node.saved[0].tensor)};
      },
      {{"mask", &mask}});
}

}  // namespace nanhunt::engine
