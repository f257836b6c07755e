// SPDX-License-Identifier: Apache-2.0
// What elementwise ops and their gradients compute from one element: the one text for the CPU and for devices. Generic
// over float and double (op math); scalars are doubles and converted first. Formulas and singular points are eager
// PyTorch's. A formula is trivially copyable, its name in FormulaList at the end is all that devices need to run it.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "kernels/portable/constants.h"
#include "kernels/portable/host_device.h"
#include "kernels/portable/scalar_math.h"

namespace nanhunt::kernels::cuda {

// One input, and the same with one or two scalars.
#define NANHUNT_FORMULA1(NAME, ...)                         \
  struct NAME {                                             \
    using Formula = NAME;                                   \
    static constexpr int kInputs = 1;                       \
    template <class T>                                      \
    NANHUNT_HOST_DEVICE T operator()(T x) const __VA_ARGS__ \
  };
#define NANHUNT_FORMULA1S(NAME, SCALAR, ...)                \
  struct NAME {                                             \
    using Formula = NAME;                                   \
    static constexpr int kInputs = 1;                       \
    double SCALAR;                                          \
    template <class T>                                      \
    NANHUNT_HOST_DEVICE T operator()(T x) const __VA_ARGS__ \
  };
#define NANHUNT_FORMULA2(NAME, ...)                              \
  struct NAME {                                                  \
    using Formula = NAME;                                        \
    static constexpr int kInputs = 2;                            \
    template <class T>                                           \
    NANHUNT_HOST_DEVICE T operator()(T x, T y) const __VA_ARGS__ \
  };
#define NANHUNT_FORMULA2S(NAME, SCALAR, ...)                     \
  struct NAME {                                                  \
    using Formula = NAME;                                        \
    static constexpr int kInputs = 2;                            \
    double SCALAR;                                               \
    template <class T>                                           \
    NANHUNT_HOST_DEVICE T operator()(T x, T y) const __VA_ARGS__ \
  };
#define NANHUNT_FORMULA3(NAME, ...)                                   \
  struct NAME {                                                       \
    using Formula = NAME;                                             \
    static constexpr int kInputs = 3;                                 \
    template <class T>                                                \
    NANHUNT_HOST_DEVICE T operator()(T x, T y, T z) const __VA_ARGS__ \
  };
#define NANHUNT_FORMULA3S(NAME, SCALAR, ...)                          \
  struct NAME {                                                       \
    using Formula = NAME;                                             \
    static constexpr int kInputs = 3;                                 \
    double SCALAR;                                                    \
    template <class T>                                                \
    NANHUNT_HOST_DEVICE T operator()(T x, T y, T z) const __VA_ARGS__ \
  };

// Arithmetic.
NANHUNT_FORMULA1(Identity, { return x; })
NANHUNT_FORMULA1(Negate, { return -x; })
NANHUNT_FORMULA2(Add, { return x + y; })
NANHUNT_FORMULA2(Subtract, { return x - y; })
NANHUNT_FORMULA2S(AddScaled, factor, { return x + static_cast<T>(factor) * y; })
NANHUNT_FORMULA2(Multiply, { return x * y; })
NANHUNT_FORMULA2(Divide, { return x / y; })
NANHUNT_FORMULA3(DivideGradient, { return -x * ((y / z) / z); })  // twice: z * z would underflow earlier
NANHUNT_FORMULA1S(AddNumber, number, { return x + static_cast<T>(number); })
NANHUNT_FORMULA1S(SubtractNumber, number, { return x - static_cast<T>(number); })
NANHUNT_FORMULA1S(MultiplyNumber, number, { return x * static_cast<T>(number); })
NANHUNT_FORMULA1S(DivideNumber, number, { return x / static_cast<T>(number); })
NANHUNT_FORMULA1S(NumberTimes, number, { return static_cast<T>(number) * x; })
NANHUNT_FORMULA3S(AddProduct, value, { return x + static_cast<T>(value) * y * z; })
NANHUNT_FORMULA2S(ProductGradient, value, { return x * (y * static_cast<T>(value)); })
NANHUNT_FORMULA3S(AddQuotient, value, { return x + static_cast<T>(value) * y / z; })
NANHUNT_FORMULA2S(NumeratorGradient, value, { return x * (static_cast<T>(value) / y); })
NANHUNT_FORMULA3S(DenominatorGradient, value, { return -x * ((static_cast<T>(value) * y) / (z * z)); })
// Exact at both ends.
NANHUNT_FORMULA2S(Lerp, weight, {
  const T w = static_cast<T>(weight);
  return weight < 0.5 ? x + w * (y - x) : y - (y - x) * (1 - w);
})

// The exponents that eager kernels compute without pow; the others go through pow.
NANHUNT_FORMULA1S(Power, exponent, {
  if (exponent == 0) return T{1};
  if (exponent == 1) return x;
  if (exponent == 0.5) return std::sqrt(x);
  if (exponent == -0.5) return T{1} / std::sqrt(x);
  if (exponent == 2) return x * x;
  if (exponent == 3) return x * x * x;
  if (exponent == -1) return T{1} / x;
  if (exponent == -2) return T{1} / (x * x);
  return std::pow(x, static_cast<T>(exponent));
})
NANHUNT_FORMULA2S(PowerGradient, exponent, { return x * (static_cast<T>(exponent) * Power{exponent - 1}(y)); })

// Functions; x of a gradient is the gradient of the result.
NANHUNT_FORMULA1(Absolute, { return std::fabs(x); })
NANHUNT_FORMULA2(AbsoluteGradient, { return x * static_cast<T>((y > 0) - (y < 0)); })  // the sign of NaN is 0
NANHUNT_FORMULA1(Reciprocal, { return 1 / x; })
NANHUNT_FORMULA2(ReciprocalGradient, { return -x * (y * y); })
NANHUNT_FORMULA1(Exponential, { return std::exp(x); })
NANHUNT_FORMULA1(Logarithm, { return std::log(x); })
NANHUNT_FORMULA1(SquareRoot, { return std::sqrt(x); })
NANHUNT_FORMULA2(SquareRootGradient, { return x / (2 * y); })
NANHUNT_FORMULA1(InverseRoot, { return 1 / std::sqrt(x); })
NANHUNT_FORMULA2(InverseRootGradient, { return static_cast<T>(-0.5) * x * (y * y * y); })
NANHUNT_FORMULA1(Relu, { return x < 0 ? T{0} : x; })
NANHUNT_FORMULA2(ReluGradient, { return y <= 0 ? T{0} : x; })  // a NaN result is not <= 0: its gradient passes
NANHUNT_FORMULA1(Tanh, { return std::tanh(x); })
NANHUNT_FORMULA2(TanhGradient, { return x * (1 - y * y); })
NANHUNT_FORMULA1(Sigmoid, { return 1 / (1 + std::exp(-x)); })
NANHUNT_FORMULA2(SigmoidGradient, { return x * (1 - y) * y; })
NANHUNT_FORMULA1(Silu, { return x / (1 + std::exp(-x)); })
NANHUNT_FORMULA2(SiluGradient, {
  const T s = 1 / (1 + std::exp(-y));
  return x * (s * (1 + y * (1 - s)));
})

NANHUNT_FORMULA1(ArcCosine, { return std::acos(x); })
NANHUNT_FORMULA2(ArcCosineGradient, { return x * -(1 / std::sqrt(-y * y + 1)); })
NANHUNT_FORMULA1(ArcSine, { return std::asin(x); })
NANHUNT_FORMULA2(ArcSineGradient, { return x * (1 / std::sqrt(-y * y + 1)); })
NANHUNT_FORMULA2(ArcTangent, { return std::atan2(x, y); })
NANHUNT_FORMULA3(ArcTangentGradient, { return x * z * (1 / (y * y + z * z)); })
NANHUNT_FORMULA3(ArcTangentOther, { return x * -y * (1 / (y * y + z * z)); })
NANHUNT_FORMULA1(HyperbolicCosine, { return std::cosh(x); })
NANHUNT_FORMULA2(HyperbolicCosineGradient, { return x * std::sinh(y); })
NANHUNT_FORMULA1(HyperbolicSine, { return std::sinh(x); })
NANHUNT_FORMULA2(HyperbolicSineGradient, { return x * std::cosh(y); })
NANHUNT_FORMULA1(Tangent, { return std::tan(x); })
NANHUNT_FORMULA2(TangentGradient, { return x * (1 + y * y); })
NANHUNT_FORMULA1(ExponentialMinusOne, { return std::expm1(x); })
NANHUNT_FORMULA2(ExponentialMinusOneGradient, { return x * (y + 1); })
NANHUNT_FORMULA1(Logarithm10, { return std::log10(x); })
NANHUNT_FORMULA2(Logarithm10Gradient, { return x / (y * static_cast<T>(std::numbers::ln10)); })
NANHUNT_FORMULA1(Logarithm2, { return std::log2(x); })
NANHUNT_FORMULA2(Logarithm2Gradient, { return x / (y * static_cast<T>(std::numbers::ln2)); })
NANHUNT_FORMULA1(LogarithmOnePlus, { return std::log1p(x); })
NANHUNT_FORMULA2(LogarithmOnePlusGradient, { return x / (y + 1); })
// Linear from the threshold on.
struct Softplus {
  using Formula = Softplus;
  static constexpr int kInputs = 1;
  double beta, threshold;
  template <class T>
  NANHUNT_HOST_DEVICE T operator()(T x) const {
    const T b = static_cast<T>(beta);
    return x * b > static_cast<T>(threshold) ? x : std::log1p(std::exp(x * b)) / b;
  }
};
struct SoftplusGradient {
  using Formula = SoftplusGradient;
  static constexpr int kInputs = 2;
  double beta, threshold;
  template <class T>
  NANHUNT_HOST_DEVICE T operator()(T g, T x) const {
    const T b = static_cast<T>(beta), e = std::exp(x * b);
    return x * b > static_cast<T>(threshold) ? g : g * e / (e + 1);
  }
};
NANHUNT_FORMULA2(Prelu, { return x > 0 ? x : y * x; })
NANHUNT_FORMULA3(PreluGradient, { return y > 0 ? x : z * x; })
NANHUNT_FORMULA2(PreluWeight, { return y > 0 ? T{0} : y * x; })
// Of a row's largest value y, where that is finite.
NANHUNT_FORMULA2(ShiftedExponential, { return std::exp(x - (std::fabs(y) == kInfinity<T> ? T{0} : y)); })
NANHUNT_FORMULA2(ShiftedLogarithm, { return std::log(x) + (std::fabs(y) == kInfinity<T> ? T{0} : y); })
NANHUNT_FORMULA3(LogSumExpGradient, { return x * std::exp(y - z); })

struct Clamp {
  using Formula = Clamp;
  static constexpr int kInputs = 1;
  double min, max;
  template <class T>
  NANHUNT_HOST_DEVICE T operator()(T x) const {
    const T low = static_cast<T>(min), high = static_cast<T>(max);
    if (!(low == low) || !(high == high)) return kNaN<T>;
    const T raised = x < low ? low : x;
    return raised > high ? high : raised;
  }
};
struct ClampGradient {
  using Formula = ClampGradient;
  static constexpr int kInputs = 2;
  double min, max;
  template <class T>
  NANHUNT_HOST_DEVICE T operator()(T x, T y) const {
    return y >= static_cast<T>(min) && y <= static_cast<T>(max) ? x : T{0};
  }
};

// gelu: fp32 by the functions whose bits are the same everywhere, fp64 by the C library's.
inline constexpr double kHalfRoot = 0.5 * std::numbers::sqrt2;                            // 1 / sqrt(2)
inline constexpr double kRootTwoOverPi = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;  // sqrt(2 / pi)
inline constexpr double kGeluCubic = 0.044715;

struct Gelu {
  using Formula = Gelu;
  static constexpr int kInputs = 1;
  NANHUNT_HOST_DEVICE float operator()(float x) const {
    return x * 0.5f * (1.0f + exact_erf(x * 0.70710678118654752f));
  }
  NANHUNT_HOST_DEVICE double operator()(double x) const { return x * 0.5 * (1 + std::erf(x * kHalfRoot)); }
};
struct GeluGradient {
  using Formula = GeluGradient;
  static constexpr int kInputs = 2;
  NANHUNT_HOST_DEVICE float operator()(float g, float x) const {
    const float cdf = 0.5f * (1.0f + exact_erf(x * 0.70710678118654752f));
    const float pdf = exact_exp(x * x * -0.5f);
    return g * (cdf + x * (0.39894228040143268f * pdf));
  }
  NANHUNT_HOST_DEVICE double operator()(double g, double x) const {
    const double cdf = 0.5 * (1 + std::erf(x * kHalfRoot));
    const double pdf = (0.5 * kRootTwoOverPi) * std::exp(x * x * -0.5);
    return g * (cdf + x * pdf);
  }
};
NANHUNT_FORMULA1(TanhGelu, {
  return static_cast<T>(0.5) * x *
         (1 + std::tanh(static_cast<T>(kRootTwoOverPi) * (x + static_cast<T>(kGeluCubic) * (x * x * x))));
})
NANHUNT_FORMULA2(TanhGeluGradient, {
  const T t = std::tanh(static_cast<T>(kRootTwoOverPi) * (y + static_cast<T>(kGeluCubic) * (y * y * y)));
  const T inner = static_cast<T>(kRootTwoOverPi) * (1 + 3 * static_cast<T>(kGeluCubic) * (y * y));
  return x * (static_cast<T>(0.5) * (1 + t) + static_cast<T>(0.5) * y * (1 - t * t) * inner);
})

// Masks: conditions come as 0 or 1.
NANHUNT_FORMULA3(Where, { return x != 0 ? y : z; })
NANHUNT_FORMULA2(WhereTaken, { return y != 0 ? x : T{0}; })
NANHUNT_FORMULA2(WhereNotTaken, { return y != 0 ? T{0} : x; })
NANHUNT_FORMULA2S(MaskedFill, value, { return y != 0 ? static_cast<T>(value) : x; })
NANHUNT_FORMULA1S(Equal, number, { return x == static_cast<T>(number) ? T{1} : T{0}; })
NANHUNT_FORMULA1S(Greater, number, { return x > static_cast<T>(number) ? T{1} : T{0}; })
NANHUNT_FORMULA2S(DropoutScale, scale, { return x * y * static_cast<T>(scale); })

// norm: x the values, y the gradient of the norm, z the norm.
NANHUNT_FORMULA3(NormGradient, { return z == 0 ? T{0} : x * (y / z); })

// Losses of pairs: (x, y) are prediction and target. Gradients get the upstream one first; `share` is 1 / n.
NANHUNT_FORMULA2(SquaredError, { return (x - y) * (x - y); })
NANHUNT_FORMULA3S(SquaredErrorGradient, share, { return 2 * static_cast<T>(share) * (y - z) * x; })
NANHUNT_FORMULA3S(SquaredErrorTarget, share, { return -(2 * static_cast<T>(share) * (y - z) * x); })
NANHUNT_FORMULA2S(SmoothL1, beta, {
  const T z = std::fabs(x - y), b = static_cast<T>(beta), half = static_cast<T>(0.5);
  return z < b ? half * z * z / b : z - half * b;
})
struct SmoothL1Gradient {
  using Formula = SmoothL1Gradient;
  static constexpr int kInputs = 3;
  double share, beta;
  template <class T>
  NANHUNT_HOST_DEVICE T operator()(T g, T x, T y) const {
    const T d = x - y, b = static_cast<T>(beta), n = static_cast<T>(share);
    if (d <= -b) return -n * g;
    if (d >= b) return n * g;
    return n * d * g / b;
  }
};
struct SmoothL1Target {
  using Formula = SmoothL1Target;
  static constexpr int kInputs = 3;
  double share, beta;
  template <class T>
  NANHUNT_HOST_DEVICE T operator()(T g, T x, T y) const {
    return -SmoothL1Gradient{share, beta}(g, x, y);
  }
};
// log(sigmoid(x)) without overflow on either side.
template <class T>
NANHUNT_HOST_DEVICE inline T log_sigmoid(T x) {
  return (x < T{0} ? x : T{0}) - std::log1p(std::exp(-std::fabs(x)));
}
NANHUNT_FORMULA2(CrossEntropyWithLogits, { return (1 - y) * x - log_sigmoid(x); })
NANHUNT_FORMULA3S(CrossEntropyGradient, share, { return (1 / (1 + std::exp(-y)) - z) * static_cast<T>(share) * x; })
struct CrossEntropyTarget {
  using Formula = CrossEntropyTarget;
  static constexpr int kInputs = 3;
  double share;
  template <class T>
  NANHUNT_HOST_DEVICE T operator()(T g, T x, T /*y*/) const {
    return -x * static_cast<T>(share) * g;
  }
};
// Of probabilities. A logarithm below -100 counts as -100, and its derivative is kept finite.
NANHUNT_FORMULA2(CrossEntropy, {
  const T least = -100, log_x = std::log(x), log_rest = std::log1p(-x);
  return (y - 1) * (log_rest < least ? least : log_rest) - y * (log_x < least ? least : log_x);
})
NANHUNT_FORMULA3S(CrossEntropyOfProbability, count, {
  const T least = static_cast<T>(1e-12), slope = (1 - y) * y;
  return x * (y - z) / (slope < least ? least : slope) / static_cast<T>(count);
})
struct CrossEntropyOfTarget {
  using Formula = CrossEntropyOfTarget;
  static constexpr int kInputs = 3;
  double count;
  template <class T>
  NANHUNT_HOST_DEVICE T operator()(T g, T x, T /*y*/) const {
    return g * -std::log(x / (1 - x)) / static_cast<T>(count);
  }
};
NANHUNT_FORMULA2S(Huber, delta, {
  const T z = std::fabs(x - y), d = static_cast<T>(delta), half = static_cast<T>(0.5);
  return z <= d ? half * z * z : d * (z - half * d);
})
struct HuberGradient {
  using Formula = HuberGradient;
  static constexpr int kInputs = 3;
  double share, delta;
  template <class T>
  NANHUNT_HOST_DEVICE T operator()(T g, T x, T y) const {
    const T d = x - y, limit = static_cast<T>(delta), n = static_cast<T>(share);
    if (d <= -limit) return -n * g * limit;
    if (d >= limit) return n * g * limit;
    return n * d * g;
  }
};
struct HuberTarget {
  using Formula = HuberTarget;
  static constexpr int kInputs = 3;
  double share, delta;
  template <class T>
  NANHUNT_HOST_DEVICE T operator()(T g, T x, T y) const {
    return -HuberGradient{share, delta}(g, x, y);
  }
};

#undef NANHUNT_FORMULA1
#undef NANHUNT_FORMULA1S
#undef NANHUNT_FORMULA2
#undef NANHUNT_FORMULA2S
#undef NANHUNT_FORMULA3
#undef NANHUNT_FORMULA3S

template <class... F>
struct Formulas {
  static constexpr int kCount = sizeof...(F);
};
// In this order; a formula's number is its place.
using AllFormulas = Formulas<Identity, Negate, Add, Subtract, AddScaled, Multiply, Divide, DivideGradient, AddNumber,
                             SubtractNumber, MultiplyNumber, DivideNumber, NumberTimes, AddProduct, ProductGradient,
                             AddQuotient, NumeratorGradient, DenominatorGradient, Lerp, Where, WhereTaken,
                             WhereNotTaken, MaskedFill, Equal, Greater, DropoutScale, NormGradient, SquaredError,
                             SquaredErrorGradient, SquaredErrorTarget, SmoothL1, SmoothL1Gradient, SmoothL1Target,
                             Power, PowerGradient, Absolute, AbsoluteGradient, Reciprocal, ReciprocalGradient,
                             Exponential, Logarithm, SquareRoot, SquareRootGradient, InverseRoot, InverseRootGradient,
                             Relu, ReluGradient, Tanh, TanhGradient, Sigmoid, SigmoidGradient, Silu, SiluGradient,
                             Clamp, ClampGradient, Gelu, GeluGradient, TanhGelu, TanhGeluGradient,
                             CrossEntropyWithLogits, CrossEntropyGradient, CrossEntropyTarget, ArcCosine,
                             ArcCosineGradient, ArcSine, ArcSineGradient, ArcTangent, ArcTangentGradient,
                             ArcTangentOther, HyperbolicCosine, HyperbolicCosineGradient, HyperbolicSine,
                             HyperbolicSineGradient, Tangent, TangentGradient, ExponentialMinusOne,
                             ExponentialMinusOneGradient, Logarithm10, Logarithm10Gradient, Logarithm2,
                             Logarithm2Gradient, LogarithmOnePlus, LogarithmOnePlusGradient, Softplus,
                             SoftplusGradient, Prelu, PreluGradient, PreluWeight, ShiftedExponential, ShiftedLogarithm,
                             LogSumExpGradient, CrossEntropy, CrossEntropyOfProbability, CrossEntropyOfTarget, Huber,
                             HuberGradient, HuberTarget>;

template <class F, class List>
struct PlaceIn;
template <class F, class... Rest>
struct PlaceIn<F, Formulas<F, Rest...>> {
  static constexpr int value = 0;
};
template <class F, class First, class... Rest>
struct PlaceIn<F, Formulas<First, Rest...>> {
  static constexpr int value = 1 + PlaceIn<F, Formulas<Rest...>>::value;
};
template <class F>
struct PlaceIn<F, Formulas<>> {
  static constexpr int value = 1 << 20;  // in no list
};
template <class F>
constexpr int formula_number() {
  constexpr int number = PlaceIn<F, AllFormulas>::value;
  static_assert(number < AllFormulas::kCount, "enter the formula in the list");
  return number;
}

}  // namespace nanhunt::kernels::cuda
