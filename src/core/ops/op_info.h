// SPDX-License-Identifier: Apache-2.0
// What is known of ops by name, as data, in one table for everybody: where they are not defined, how a zero gets into
// their output, how large it can be, which infinities they write on purpose, which elements meet. An op that is not
// listed is recorded and analysed all the same; only the reason for what it did stays open.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "nanhunt/dtype.h"

namespace nanhunt {

// Where an op has no finite answer, given the argument named in OpInfo::pole_slots.
enum class Pole : std::uint8_t {
  kNone,
  kZero,           // x = 0: x in a denominator
  kNonPositive,    // x = 0 is a pole, x < 0 outside the domain: log, rsqrt
  kNegative,       // x < 0 is outside the domain: sqrt
  kPower,          // x ^ exponent: a negative exponent has a pole at 0, a fractional one no value below 0
  kPowerBackward,  // the same for the derivative x ^ (exponent - 1)
  kMinusOne,       // log1p
  kUnit,           // |x| > 1 is outside the domain: acos
  kUnitBackward,   // |x| = 1 is a pole of its derivative
  kUnitPole,       // |x| = 1 is a pole, |x| > 1 outside the domain: atanh, erfinv
  kBelowOne,       // x < 1 is outside the domain: acosh
  kBelowOneBackward,  // x = 1 is a pole of its derivative
  kZeroOne,        // 0 and 1 are poles, what is not between them is outside the domain: logit
  kGamma,          // 0 and the negative whole numbers are poles: lgamma and its derivatives
  kLabels,         // mean over the labels that are not ignored: none is 0/0
  kEmpty,          // mean over no element
  kFew,            // variance of no more elements than its correction takes away
  kNorm,           // vectors over their norms, which are given out too: a norm of 0 is 0/0
  kMatrix,         // a matrix that has no inverse: what it solves, its inverse, the logarithm of its determinant
  kPath,           // sum over the ways to read an input as its target: an input that is too short has none
};

// How an element of the output becomes 0 (used to walk back from a zero denominator).
enum class ZeroRule : std::uint8_t {
  kStop,       // by its own doing: exp, softmax, relu, a gather
  kSame,       // where `self` is 0 or was too small for the format: sqrt, casts, views, division by a number
  kProduct,    // where a factor is 0, or the product was too small
  kAdd,        // x + c: a guard when c is a number
  kClamp,      // max(x, c): a guard when c is a number above 0
  kConstant,   // fill, full
  kReduce,     // where all of `self` is 0
  kSquareAdd,  // self + value * tensor1 * tensor2: a second moment
};

// An upper bound of |output|, from the largest magnitudes of the inputs.
enum class Bound : std::uint8_t {
  kUnknown,
  kCopy,
  kSum,
  kProduct,
  kQuotient,
  kExp,
  kPower,
  kReduceSum,
  kMatmul,
  kProducts,  // sums of products of two inputs, with no more terms than the largest has elements
  kSquares,   // of what is summed up inside: squares of an input, or of a difference of two
  kGradient,  // sums of products of no more than four of the inputs' magnitudes
};

// In which format a kernel that takes eps as an argument forms x + eps.
enum class EpsForm : std::uint8_t {
  kNone,    // that in which it computes
  kOpMath,  // fp32 for 16-bit inputs, whatever the kernel was given: norm layers, fused optimizers. A norm that keeps
            // its own deviations in 16 bits forms it there
};

enum OpFlag : std::uint32_t {
  kOverwritesAll = 1,     // in place, old contents do not matter: fill_, copy_
  kWritesConstant = 2,    // an infinity in its output was written on purpose
  kKeepsMask = 4,         // an infinity written on purpose is still one after this op: add, where, views
  kSoftmax = 8,           // takes -Inf as "no weight"; a row of nothing else is indeterminate
  kAccumulates = 16,      // sums inside: Inf - Inf can make a NaN of finite inputs
  kArithmetic = 32,       // besides its poles, only magnitude can make a non-finite number of finite inputs
  kElementwise = 64,      // output element i depends on input elements i alone
  kStoresState = 128,     // in phase optimizer: what it writes is state
  kSelects = 256,         // hands on some elements of its operands as they are: where, cat, gather
  kAbsorbs = 512,         // makes a finite number of an infinite one: x / Inf, tanh, clamp
  kMakesGarbage = 1024,   // its output is memory that nothing has written: empty
  kReadsShape = 2048,     // takes shape and format of its input, not its contents: full_like
  kBilinear = 4096,       // products, or sums of them: an element is exactly 0 only where in each product one factor is
  kInnerProducts = 8192,  // a sum of products inside, which a kernel may keep in 16 bits
  kUnitDerivative = 16384,     // its derivative is 1 or -1
  kNumpy = 32768,              // tools/nanhunt/repro/show_op.py computes it
  kNumpyGradient = 65536,      // and its gradient
  kSubtracts = 131072,         // self - alpha * other
  kGapsInDerivative = 262144,  // gives vectors whose derivative divides by differences of the values: eigh, svd
  kCompiled = 524288,          // a graph of many ops, of which only what comes in and goes out is seen
  kLaunched = 1048576,  // a kernel of the program's own, launched past the dispatcher: only its arguments are known
  kComposed = 2097152,  // PyTorch may make it of several ops, which are then heard in its place
  kReplaces = 4194304,  // puts a number of the program's in place of an infinite one: clamp, nan_to_num
  kMasks = 8388608,     // puts a number, or another operand, in place of some elements: masked_fill, where, triu
  kLogSums = 16777216,  // adds up what it is given as logarithms, of which -Inf is the 0: logaddexp
};

// When is an output element that is 0 a lost value? The exact result must be non-zero.
enum class FlushRule : std::uint8_t {
  kNotMeasured,
  kProduct,    // self * other, either may be a scalar: every factor is non-zero
  kQuotient,   // self / other: self is non-zero, other is not infinite
  kPower,      // self ^ exponent: exponent > 0: self is non-zero; exponent < 0: self is not infinite
  kCopy,       // same number in another format: it was not zero
  kSquareAdd,  // self + value * tensor1 * tensor2, with tensor1 and tensor2 the same value and value > 0: tensor1 is
               // non-zero. Needs old contents that are not negative (a second moment); refused where they are known to
               // be.
};

// How an op in place changes a parameter, or a copy of one that lasts.
enum class UpdateRule : std::uint8_t {
  kNotMeasured,
  kSum,         // self + alpha * other
  kDifference,  // self - alpha * other
  kQuotient,    // self + value * tensor1 / tensor2
  kDecay,       // self * other, a number
  kLerp,        // self + weight * (end - self), weight a number
  kSgd,
  kAdam,
  kAdamW,
};

// Which elements of an input meet in output element i?
enum class ElementMap : std::uint8_t {
  kNone,         // sums, products of matrices, gathers: too many to list
  kSameShape,    // inputs of the output's shape at i, and single numbers; others are mixed over a dimension
  kElementwise,  // every input that broadcasts to the output, at i
};

struct OpInfo {
  std::string_view name;
  std::uint32_t flags = 0;
  Pole pole = Pole::kNone;
  std::array<std::string_view, 2> pole_slots{};  // the dispatcher's name, then another it is known by
  ZeroRule zero = ZeroRule::kStop;
  Bound bound = Bound::kUnknown;
  EpsForm eps = EpsForm::kNone;
  ElementMap elements = ElementMap::kNone;
  FlushRule flush = FlushRule::kNotMeasured;
  UpdateRule update = UpdateRule::kNotMeasured;
  std::uint16_t scratch = 0;  // bit i: infinities in output i are meant: log-probabilities of CTC, log-sums of rows
  std::string_view forward{};      // the op whose gradient this is, where the name does not say so

  constexpr bool has(OpFlag flag) const { return (flags & flag) != 0; }
  constexpr bool known() const { return !name.empty(); }
};

// Names as recorded: "add_", "addmm", "sqrt_backward", "_foreach_add", with or without "aten::". Never fails.
const OpInfo& op_info(std::string_view op);

// All rows, sorted by name.
std::span<const OpInfo> op_rows();

// What the recorder asks of each op. `<op>_backward` maps elements as its forward op does; what it loses is not
// measured.
struct OpTraits {
  FlushRule flush = FlushRule::kNotMeasured;
  ElementMap elements = ElementMap::kNone;
  bool ignores_old = false;  // kOverwritesAll
};
OpTraits op_traits(std::string_view op);

// The format in which the op forms x + eps, given the one it says it computes in, and the one in which it stores the
// reciprocal deviations that it divides by, if it does.
DType eps_dtype(const OpInfo& info, DType compute, std::optional<DType> deviations = {});
// Whether an output of this slot holds them.
bool holds_deviations(std::string_view slot);

// The forward op of "<op>_backward" and of gradients with names of their own, else "". In-place and dispatcher marks
// are taken off.
std::string forward_op(std::string_view op);

// "add" of "aten::add_.Tensor": the name without namespace, overload and the mark of the in-place form.
std::string_view table_name(std::string_view op);

}  // namespace nanhunt
