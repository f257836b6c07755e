// SPDX-License-Identifier: Apache-2.0
// Not guarded: included once by each path, with NANHUNT_VECTOR_BYTES set to the width of its registers and its
// instructions switched on. Vectors are the compiler's, so every path is the same code. No contraction: a product and
// a sum round apart, with and without FMA instructions.
namespace nanhunt::kernels {
namespace {

typedef float Floats __attribute__((vector_size(NANHUNT_VECTOR_BYTES)));
typedef std::int32_t Ints __attribute__((vector_size(NANHUNT_VECTOR_BYTES)));
typedef double Doubles __attribute__((vector_size(NANHUNT_VECTOR_BYTES)));  // half as many
typedef std::int64_t Longs __attribute__((vector_size(NANHUNT_VECTOR_BYTES)));
typedef float HalfFloats __attribute__((vector_size(NANHUNT_VECTOR_BYTES / 2)));
constexpr std::size_t kLanes = sizeof(Floats) / sizeof(float);

struct FloatPair {
  HalfFloats low, high;
};

// exp in double: 0.51 units of fp32 after the one rounding to it, subnormals included. Arguments beyond the range of
// fp32 are moved to where the result is 0 or infinite all the same. NaN: any number; the caller puts NaN back.
inline void exp_half(const HalfFloats& from, HalfFloats& to) {
  Doubles x = __builtin_convertvector(from, Doubles);
  x = x > 90.0 ? Doubles{} + 90.0 : x;
  x = x < -110.0 ? Doubles{} - 110.0 : x;
  const Doubles shifted = x * 0x1.71547652b82fep0 + 0x1.8p52;  // x / ln 2, to an integer in the low bits
  const Doubles whole = shifted - 0x1.8p52;
  const Doubles r = x - whole * 0x1.62e42fefa39efp-1;
  // (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2, to 2.2e-10 of e^r.
  Doubles p = Doubles{} + 0x1.a124f1a3cbd2bp-13;
  p = p * r + 0x1.6d43246bb0d22p-10;
  p = p * r + 0x1.1110e0f236d36p-7;
  p = p * r + 0x1.5554e90635828p-5;
  p = p * r + 0x1.5555555a78edbp-3;
  p = p * r + 0x1.0000000b9129ep-1;
  p = p * (r * r) + r + 1.0;
  const Longs scaled = reinterpret_cast<Longs>(p) + (reinterpret_cast<Longs>(shifted) << 52);
  to = __builtin_convertvector(reinterpret_cast<Doubles>(scaled), HalfFloats);
}

inline void exp_lanes(const Floats& x, Floats& out) {
  FloatPair parts;
  std::memcpy(&parts, &x, sizeof(x));
  exp_half(parts.low, parts.low);
  exp_half(parts.high, parts.high);
  Floats result;
  std::memcpy(&result, &parts, sizeof(x));
  out = x == x ? result : x;
}

inline void erf_lanes(const Floats& x, Floats& out) {
  const Ints sign = reinterpret_cast<Ints>(x) & (Ints{} + static_cast<std::int32_t>(0x80000000));
  const Ints magnitude = reinterpret_cast<Ints>(x) ^ sign;
  const Floats t = reinterpret_cast<Floats>(magnitude);
  const Floats s = x * x;
  // Near 0: x + x p(x^2).
  Floats near = Floats{} - 5.96761703e-4f;
  near = near * s + 4.99119423e-3f;
  near = near * s - 2.67681349e-2f;
  near = near * s + 1.12819925e-1f;
  near = near * s - 3.76125336e-1f;
  near = near * s + 1.28379166e-1f;
  near = near * x + x;
  // Further out: 1 - exp(q(|x|)). The result is 1 long before 5, where q would overflow later.
  const Floats u = t > 5.0f ? Floats{} + 5.0f : t;
  const Floats u2 = u * u;
  Floats q = u * -1.72853470e-5f + 3.83197126e-4f;
  q = q * u2 + (u * -3.88396438e-3f + 2.42546219e-2f);
  q = q * u - 1.06777877e-1f;
  q = q * u - 6.34846687e-1f;
  q = q * u - 1.28717512e-1f;
  q = q * u - u;
  Floats far;
  exp_lanes(q, far);
  far = 1.0f - far;
  const Ints with_sign = reinterpret_cast<Ints>(far) | sign;
  far = reinterpret_cast<Floats>(with_sign);
  out = t > 0.921875f ? far : near;  // NaN: near, which is NaN
}

// 0.5 (1 + erf(x / sqrt 2))
inline void normal_cdf_lanes(const Floats& x, Floats& out) {
  Floats e;
  erf_lanes(x * 0.70710678118654752f, e);
  out = 0.5f * (1.0f + e);
}

inline void gelu_lanes(const Floats& x, Floats& out) {
  Floats e;
  erf_lanes(x * 0.70710678118654752f, e);
  out = x * 0.5f * (1.0f + e);
}

inline void gelu_gradient_lanes(const Floats& g, const Floats& x, Floats& out) {
  Floats cdf, pdf;
  normal_cdf_lanes(x, cdf);
  exp_lanes(x * x * -0.5f, pdf);
  out = g * (cdf + x * (0.39894228040143268f * pdf));
}

// Whole vectors, then what is left over in a vector padded with zeros. Not a template: instances would be made where
// the path's instructions are off again.
using Lanes = void (*)(const Floats&, Floats&);
__attribute__((always_inline)) inline void for_lanes(const float* x, float* out, std::size_t count, Lanes f) {
  std::size_t i = 0;
  Floats in, result;
  for (; i + kLanes <= count; i += kLanes) {
    std::memcpy(&in, x + i, sizeof(in));
    f(in, result);
    std::memcpy(out + i, &result, sizeof(in));
  }
  if (i == count) return;
  in = Floats{};
  std::memcpy(&in, x + i, (count - i) * sizeof(float));
  f(in, result);
  std::memcpy(out + i, &result, (count - i) * sizeof(float));
}

void exp_loop(const float* x, float* out, std::size_t count) { for_lanes(x, out, count, exp_lanes); }
void erf_loop(const float* x, float* out, std::size_t count) { for_lanes(x, out, count, erf_lanes); }
void gelu_loop(const float* x, float* out, std::size_t count) { for_lanes(x, out, count, gelu_lanes); }

void gelu_gradient_loop(const float* g, const float* x, float* out, std::size_t count) {
  std::size_t i = 0;
  Floats gradient, in, result;
  for (; i + kLanes <= count; i += kLanes) {
    std::memcpy(&gradient, g + i, sizeof(in));
    std::memcpy(&in, x + i, sizeof(in));
    gelu_gradient_lanes(gradient, in, result);
    std::memcpy(out + i, &result, sizeof(in));
  }
  if (i == count) return;
  gradient = in = Floats{};
  std::memcpy(&gradient, g + i, (count - i) * sizeof(float));
  std::memcpy(&in, x + i, (count - i) * sizeof(float));
  gelu_gradient_lanes(gradient, in, result);
  std::memcpy(out + i, &result, (count - i) * sizeof(float));
}

constexpr VectorMathPath kPath = {exp_loop, erf_loop, gelu_loop, gelu_gradient_loop};

}  // namespace
}  // namespace nanhunt::kernels
