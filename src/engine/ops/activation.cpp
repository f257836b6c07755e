// SPDX-License-Identifier: Apache-2.0
// gelu in both forms, silu. Formulas are those of eager PyTorch; fp32 takes erf and exp from kernels/cpu/vector_math.h.
#include <cmath>
#include <numbers>

#include "kernels/cpu/vector_math.h"
#include "nanhunt/engine/ops.h"
#include "src/engine/ops/elementwise.h"

namespace nanhunt::engine {
namespace {

constexpr double kHalfRoot = 0.5 * std::numbers::sqrt2;                            // 1 / sqrt(2)
constexpr double kRootTwoOverPi = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;  // sqrt(2 / pi)
constexpr double kCubic = 0.044715;

struct ErfGelu {
  template <typename T>
  T operator()(T x) const {
    return x * T(0.5) * (1 + std::erf(x * T(kHalfRoot)));
  }
  void chunk(float* out, std::int64_t count, const float* x) const {
    kernels::gelu_f32(x, out, static_cast<std::size_t>(count));
  }
};

struct ErfGeluGradient {
  template <typename T>
  T operator()(T g, T x) const {
    const T cdf = T(0.5) * (1 + std::erf(x * T(kHalfRoot)));
    const T pdf = T(0.5 * kRootTwoOverPi) * std::exp(x * x * T(-0.5));
    return g * (cdf + x * pdf);
  }
  void chunk(float* out, std::int64_t count, const float* g, const float* x) const {
    kernels::gelu_gradient_f32(g, x, out, static_cast<std::size_t>(count));
  }
};

struct TanhGelu {
  template <typename T>
  T operator()(T x) const {
    return T(0.5) * x * (1 + std::tanh(T(kRootTwoOverPi) * (x + T(kCubic) * (x * x * x))));
  }
};

struct TanhGeluGradient {
  template <typename T>
  T operator()(T g, T x) const {
    const T t = std::tanh(T(kRootTwoOverPi) * (x + T(kCubic) * (x * x * x)));
    const T inner = T(kRootTwoOverPi) * (1 + 3 * T(kCubic) * (x * x));
    return g * (T(0.5) * (1 + t) + T(0.5) * x * (1 - t * t) * inner);
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
  return form == GeluForm::kErf ? activation("gelu", self, ErfGelu{}, ErfGeluGradient{}, {{"approximate", 0}})
                                : activation("gelu", self, TanhGelu{}, TanhGeluGradient{}, {{"approximate", 1}});
}

Tensor silu(const Tensor& self) {
  return activation(
      "silu", self, [](auto x) { return x / (1 + std::exp(-x)); },
      [](auto g, auto x) {
        const auto s = 1 / (1 + std::exp(-x));
        return g * (s * (1 + x * (1 - s)));
      });
}

}  // namespace nanhunt::engine
