// SPDX-License-Identifier: Apache-2.0
// gelu in both forms, silu, softplus, prelu. Formulas are those of eager PyTorch; fp32 takes gelu's erf and exp from
// kernels/cpu/vector_math.h.
#include "kernels/cpu/vector_math.h"
#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/ops/loops/elementwise.h"

namespace nanhunt::engine {
namespace {

// The formulas with whole chunks of fp32 at once.
struct ErfGelu : formulas::Gelu {
  void chunk(float* out, std::int64_t count, const float* x) const {
    kernels::gelu_f32(x, out, static_cast<std::size_t>(count));
  }
};
struct ErfGeluGradient : formulas::GeluGradient {
  void chunk(float* out, std::int64_t count, const float* g, const float* x) const {
    kernels::gelu_gradient_f32(g, x, out, static_cast<std::size_t>(count));
  }
};

template <typename F, typename Gradient>
Tensor activation(std::string_view op, const Tensor& self, F f, Gradient df, Scalars scalars = {}) {
  expect_floating(op, self, "self");
  return finish(op, op_math(self.dtype()), map(self.sizes(), self.dtype(), f, self), {{"self", &self}}, scalars,
                {{"self", &self}}, [df](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  return {map_gradient(node.edges[0], g.sizes(), node.dtype, df, g, node.saved[0].tensor)};
                });
}

}  // namespace

Tensor gelu(const Tensor& self, GeluForm form) {
  if (amp::intercepts("gelu")) return amp::run("gelu", [form](const Tensor& x) { return gelu(x, form); }, self);
  return form == GeluForm::kErf
             ? activation("gelu", self, ErfGelu{}, ErfGeluGradient{}, {{"approximate", 0}})
             : activation("gelu", self, formulas::TanhGelu{}, formulas::TanhGeluGradient{}, {{"approximate", 1}});
}

Tensor softplus(const Tensor& self, double beta, double threshold) {
  if (amp::intercepts("softplus")) {
    return amp::run("softplus", [=](const Tensor& x) { return softplus(x, beta, threshold); }, self);
  }
  return activation("softplus", self, formulas::Softplus{beta, threshold}, formulas::SoftplusGradient{beta, threshold},
                    {{"beta", beta}, {"threshold", threshold}});
}

Tensor prelu(const Tensor& self, const Tensor& weight) {
  if (amp::intercepts("prelu")) return amp::run("prelu", prelu, self, weight);
  expect_floating("prelu", self, "self");
  expect_dtype("prelu", weight, "weight", self.dtype());
  const std::int64_t channels = self.dim() > 1 ? self.size(1) : 1;
  Shape sizes(static_cast<std::size_t>(self.dim()), 1);
  if (self.dim() > 1) sizes[1] = weight.numel();
  if ((weight.numel() != 1 && weight.numel() != channels) || (weight.dim() > 1 && weight.sizes() != sizes)) {
    fail("prelu", "a weight of one element or " + std::to_string(channels), describe(weight));
  }
  const Tensor slope = weight.sizes() == sizes ? weight : reshape(weight, sizes);
  const DType dtype = self.dtype();
  return finish("_prelu_kernel", op_math(dtype), map(self.sizes(), dtype, formulas::Prelu{}, self, slope),
                {{"self", &self}, {"weight", &slope}}, {}, {{"self", &self}, {"weight", &slope}},
                [](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  const Tensor &x = node.saved[0].tensor, &w = node.saved[1].tensor;
                  return {map_gradient(node.edges[0], g.sizes(), node.dtype, formulas::PreluGradient{}, g, x, w),
                          map_gradient(node.edges[1], g.sizes(), node.dtype, formulas::PreluWeight{}, g, x)};
                });
}

Tensor silu(const Tensor& self) { return activation("silu", self, formulas::Silu{}, formulas::SiluGradient{}); }

}  // namespace nanhunt::engine
