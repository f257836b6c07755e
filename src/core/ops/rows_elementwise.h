// SPDX-License-Identifier: Apache-2.0
// Ops whose output element i is computed of input elements i alone.
#pragma once

#include "src/core/ops/row.h"

namespace nanhunt::ops {

// clang-format off
// A function of each element.
constexpr Row kMaps = Row(kEach);
// Sums and products of several terms of each element: of a large one they meet Inf - Inf or 0 * Inf.
constexpr Row kSeries = Row(kEach | kAccumulates);
// The same, and finite for an infinite argument.
constexpr Row kSaturating = Row(kEach | kAbsorbs);
// As it is, rounded, or with another sign.
constexpr Row kCopies = Row(kEach | kKeepsMask).zero(ZeroRule::kSame).bound(Bound::kCopy);
// Zero of others than zero.
constexpr Row kSteps = Row(kEach | kKeepsMask).bound(Bound::kCopy);
constexpr Row kExponentials = Row(kEach).bound(Bound::kExp).meets(kByElement);
constexpr Row kSumsOfTwo = Row(kEach | kKeepsMask).zero(ZeroRule::kAdd).bound(Bound::kSum);
constexpr Row kProductsOfTwo = Row(kEach | kKeepsMask | kBilinear).zero(ZeroRule::kProduct).bound(Bound::kProduct);
constexpr Row kQuotients = Row(kEach | kKeepsMask | kAbsorbs).pole(Pole::kZero, kOther).zero(ZeroRule::kSame)
        .bound(Bound::kQuotient).meets(kByElement);
constexpr Row kRemainders = Row(kEach | kKeepsMask).pole(Pole::kZero, kOther).meets(kByElement);
// A pole at 0, and no value below.
constexpr Row kLogarithms = Row(kEach).pole(Pole::kNonPositive, kSelf).meets(kByElement);
constexpr Row kGammas = Row(kEach).pole(Pole::kGamma, kSelf).meets(kByElement);
// Derivatives that divide by the element.
constexpr Row kZeroPoles = Row(kEach).pole(Pole::kZero, kSelf);

constexpr Row kElementwiseRows[] = {
    op("_amp_update_scale", kMaps),
    op("_fused_dropout", kMaps),
    op("_prelu_kernel", kMaps),
    op("alpha_dropout", kMaps.also(kComposed)),
    op("asinh", kMaps),
    op("celu", kMaps),
    op("cos", kMaps),
    op("cosh", kMaps),
    op("deg2rad", kMaps),
    op("dropout", kMaps.also(kComposed)),
    op("elu", kMaps),
    op("feature_alpha_dropout", kMaps.also(kComposed)),
    op("feature_dropout", kMaps.also(kComposed)),
    op("gelu", kMaps).meets(kByElement).also(kNumpy),
    op("gelu_backward", kMaps),
    op("glu", kMaps),
    op("hardshrink", kMaps),
    op("hypot", kMaps),
    op("i0", kMaps),
    op("leaky_relu", kMaps),
    op("lerp", kMaps).meets(kByElement).updates(UpdateRule::kLerp).also(kNumpy),
    op("mish", kMaps),
    op("mvlgamma", kMaps.also(kComposed)),
    op("native_dropout", kMaps),
    op("native_dropout_backward", kMaps),
    op("prelu", kMaps),
    op("rad2deg", kMaps),
    op("reciprocal_backward", kMaps),
    op("rrelu_with_noise", kMaps),
    op("selu", kMaps),
    op("silu", kMaps).meets(kByElement).also(kNumpy),
    op("silu_backward", kMaps),
    op("sin", kMaps),
    op("sinh", kMaps),
    op("softplus", kMaps),
    op("softshrink", kMaps),
    op("special_erfcx", kMaps),
    op("special_log_ndtr", kMaps),
    op("tan", kMaps),
    op("threshold", kMaps),

    op("sinc", kSeries),
    op("special_airy_ai", kSeries),
    op("special_bessel_j0", kSeries),
    op("special_bessel_j1", kSeries),
    op("special_chebyshev_polynomial_t", kSeries),
    op("special_chebyshev_polynomial_u", kSeries),
    op("special_chebyshev_polynomial_v", kSeries),
    op("special_chebyshev_polynomial_w", kSeries),
    op("special_hermite_polynomial_h", kSeries),
    op("special_hermite_polynomial_he", kSeries),
    op("special_i0e", kSeries),
    op("special_i1", kSeries),
    op("special_i1e", kSeries),
    op("special_laguerre_polynomial_l", kSeries),
    op("special_legendre_polynomial_p", kSeries),
    op("special_modified_bessel_i0", kSeries),
    op("special_modified_bessel_i1", kSeries),
    op("special_spherical_bessel_j0", kSeries),

    op("atan", kSaturating),
    op("atan2", kSaturating),
    op("erf", kSaturating),
    op("erfc", kSaturating),
    op("hardsigmoid", kSaturating),
    op("hardswish", kSaturating),
    op("hardtanh", kSaturating),
    op("log_sigmoid", kSaturating),
    op("log_sigmoid_forward", kSaturating),
    op("nan_to_num", kSaturating.also(kReplaces)),
    op("relu6", kSaturating),
    op("sgn", kSaturating),
    op("sigmoid", kSaturating).meets(kByElement).also(kNumpy),
    op("sign", kSaturating),
    op("softsign", kSaturating),
    op("tanh", kSaturating).meets(kByElement).also(kNumpy),
    op("tanhshrink", kSaturating),

    op("_copy_from", kCopies),
    op("_copy_from_and_resize", kCopies),
    op("_to_copy", kCopies).meets(kByElement).loses(FlushRule::kCopy).also(kNumpy),
    op("abs", kCopies).meets(kByElement).also(kNumpyBoth),
    op("clone", kCopies).meets(kByElement),
    op("contiguous", kCopies),
    op("neg", kCopies).meets(kByElement).also(kUnitDerivative | kNumpyBoth),
    op("to", kCopies),
    op("type_as", kCopies),

    op("ceil", kSteps),
    op("floor", kSteps),
    op("frac", kSteps),
    op("positive", kSteps),
    op("relu", kSteps).meets(kByElement).also(kNumpy),
    op("trunc", kSteps),

    op("exp", kExponentials).also(kNumpyBoth),
    op("exp2", kExponentials),
    op("expm1", kExponentials),

    op("add", kSumsOfTwo).meets(kByElement).updates(UpdateRule::kSum).also(kUnitDerivative | kNumpy),
    op("sub", kSumsOfTwo).meets(kByElement).updates(UpdateRule::kDifference)
        .also(kSubtracts | kUnitDerivative | kNumpy),
    op("subtract", kSumsOfTwo).also(kSubtracts),

    op("mul", kProductsOfTwo).meets(kByElement).loses(FlushRule::kProduct).updates(UpdateRule::kDecay).also(kNumpyBoth),
    op("multiply", kProductsOfTwo),

    op("div", kQuotients).loses(FlushRule::kQuotient).also(kNumpyBoth),
    op("divide", kQuotients),
    op("true_divide", kQuotients),

    op("floor_divide", kRemainders),
    op("fmod", kRemainders),
    op("remainder", kRemainders),

    op("log", kLogarithms).also(kNumpyBoth),
    op("log10", kLogarithms),
    op("log2", kLogarithms),
    op("special_bessel_y0", kLogarithms),
    op("special_bessel_y1", kLogarithms),
    op("special_modified_bessel_k0", kLogarithms),
    op("special_modified_bessel_k1", kLogarithms),
    op("special_scaled_modified_bessel_k0", kLogarithms),
    op("special_scaled_modified_bessel_k1", kLogarithms),

    op("digamma", kGammas),
    op("lgamma", kGammas),
    op("polygamma", kGammas),

    op("log10_backward", kZeroPoles),
    op("log2_backward", kZeroPoles),
    op("log_backward", kZeroPoles),
    op("rsqrt_backward", kZeroPoles),

    // Each by itself.
    op("_amp_foreach_non_finite_check_and_unscale", kEach).zero(ZeroRule::kSame).also(kNumpy),
    op("acos", kEach).pole(Pole::kUnit, kSelf).meets(kByElement),
    op("acos_backward", kEach).pole(Pole::kUnitBackward, kSelf),
    op("acosh", kEach).pole(Pole::kBelowOne, kSelf).meets(kByElement),
    op("acosh_backward", kEach).pole(Pole::kBelowOneBackward, kSelf),
    op("addcdiv", kEach).pole(Pole::kZero, kTensor2).meets(kByElement).updates(UpdateRule::kQuotient).also(kNumpy),
    op("addcmul", kEach | kStoresState).zero(ZeroRule::kSquareAdd).meets(kByElement).loses(FlushRule::kSquareAdd)
        .also(kNumpy),
    op("asin", kEach).pole(Pole::kUnit, kSelf).meets(kByElement),
    op("asin_backward", kEach).pole(Pole::kUnitBackward, kSelf),
    op("atanh", kEach).pole(Pole::kUnitPole, kSelf).meets(kByElement),
    op("atanh_backward", kEach).pole(Pole::kUnitBackward, kSelf),
    op("clamp", kEach | kKeepsMask | kAbsorbs | kReplaces).zero(ZeroRule::kClamp).meets(kByElement).also(kNumpy),
    op("clamp_max", kEach | kKeepsMask | kAbsorbs | kReplaces),
    op("clamp_min", kEach | kKeepsMask | kAbsorbs | kReplaces).zero(ZeroRule::kClamp).meets(kByElement),
    op("copy", kEach | kKeepsMask | kOverwritesAll).zero(ZeroRule::kSame).bound(Bound::kCopy).meets(kByElement)
        .loses(FlushRule::kCopy),
    op("erfinv", kEach).pole(Pole::kUnitPole, kSelf).meets(kByElement),
    op("igamma", kEach).pole(Pole::kNegative, kSelf).meets(kByElement),
    op("igammac", kEach).pole(Pole::kNegative, kSelf).meets(kByElement),
    op("log1p", kEach).pole(Pole::kMinusOne, kSelf).zero(ZeroRule::kSame).meets(kByElement),
    op("log1p_backward", kEach).pole(Pole::kMinusOne, kSelf),
    op("logit", kEach).pole(Pole::kZeroOne, kSelf).meets(kByElement),
    op("logit_backward", kEach).pole(Pole::kZeroOne, kSelf),
    op("pow", kEach | kAbsorbs).pole(Pole::kPower, kSelf).zero(ZeroRule::kSame).bound(Bound::kPower).meets(kByElement)
        .loses(FlushRule::kPower).also(kNumpyBoth),
    op("pow_backward", kEach).pole(Pole::kPowerBackward, kSelf),
    op("reciprocal", kEach | kAbsorbs).pole(Pole::kZero, kSelf).meets(kByElement).also(kNumpyBoth),
    op("round", kEach | kKeepsMask),  // to decimals it multiplies first
    op("rsqrt", kEach | kAbsorbs).pole(Pole::kNonPositive, kSelf).meets(kByElement).also(kNumpyBoth),
    op("rsub", kEach | kKeepsMask).bound(Bound::kSum),
    op("special_entr", kEach).pole(Pole::kNegative, kSelf).meets(kByElement),
    op("special_ndtri", kEach).pole(Pole::kZeroOne, kSelf).meets(kByElement),
    op("special_zeta", kEach).pole(Pole::kBelowOneBackward, kSelf).meets(kByElement),
    op("sqrt", kEach).pole(Pole::kNegative, kSelf).zero(ZeroRule::kSame).meets(kByElement).also(kNumpyBoth),
    op("sqrt_backward", kEach).pole(Pole::kZero, kResult),
    op("threshold_backward", kEach).bound(Bound::kGradient).gradient_of("relu"),
    op("where", kEach | kKeepsMask | kSelects | kMasks).meets(kByElement).also(kNumpy),
    op("xlogy", kEach).pole(Pole::kNonPositive, kOtherAlone).meets(kByElement),
};
// clang-format on

}  // namespace nanhunt::ops
