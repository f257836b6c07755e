// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/op_table.h"

#include <algorithm>

#include "src/core/op_name.h"

namespace nanhunt::analyze {
namespace {

constexpr std::uint16_t kEach = kArithmetic | kElementwise;
constexpr std::uint16_t kSums = kArithmetic | kAccumulates;

// A zero, a negative or another singular argument is looked for in these slots.
constexpr std::array<std::string_view, 2> kSelf = {"self", "input"};
constexpr std::array<std::string_view, 2> kOther = {"other", "divisor"};
constexpr std::array<std::string_view, 2> kResult = {"result", "out"};
constexpr std::array<std::string_view, 2> kNo = {};

// Sorted by name: dispatcher names without "aten::" and without the underscore of the in-place form.
constexpr OpInfo kOps[] = {
    {"_amp_foreach_non_finite_check_and_unscale", kEach, Pole::kNone, kNo, ZeroRule::kSame, Bound::kUnknown},
    {"_amp_update_scale", kEach, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"_fused_adam", kArithmetic | kStoresState, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"_fused_adamw", kArithmetic | kStoresState, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"_fused_sgd", kArithmetic | kStoresState, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"_log_softmax", kSoftmax | kArithmetic, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"_softmax", kSoftmax, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"_to_copy", kEach | kKeepsMask, Pole::kNone, kNo, ZeroRule::kSame, Bound::kCopy},
    {"_unsafe_view", kKeepsMask | kElementwise, Pole::kNone, kNo, ZeroRule::kSame, Bound::kCopy},
    {"abs", kEach | kKeepsMask, Pole::kNone, kNo, ZeroRule::kSame, Bound::kCopy},
    {"acos", kEach, Pole::kUnit, kSelf, ZeroRule::kStop, Bound::kUnknown},
    {"acos_backward", kEach, Pole::kUnitBackward, kSelf, ZeroRule::kStop, Bound::kUnknown},
    {"add", kEach | kKeepsMask, Pole::kNone, kNo, ZeroRule::kAdd, Bound::kSum},
    {"addbmm", kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"addcdiv", kEach, Pole::kZero, {"tensor2", ""}, ZeroRule::kStop, Bound::kUnknown},
    {"addcmul", kEach | kStoresState, Pole::kNone, kNo, ZeroRule::kSquareAdd, Bound::kUnknown},
    {"addmm", kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kMatmul},
    {"addmv", kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"alias", kKeepsMask | kElementwise, Pole::kNone, kNo, ZeroRule::kSame, Bound::kCopy},
    {"amax", kKeepsMask, Pole::kNone, kNo, ZeroRule::kStop, Bound::kCopy},
    {"amin", kKeepsMask, Pole::kNone, kNo, ZeroRule::kStop, Bound::kCopy},
    {"as_strided", kKeepsMask, Pole::kNone, kNo, ZeroRule::kSame, Bound::kCopy},
    {"asin", kEach, Pole::kUnit, kSelf, ZeroRule::kStop, Bound::kUnknown},
    {"asin_backward", kEach, Pole::kUnitBackward, kSelf, ZeroRule::kStop, Bound::kUnknown},
    {"atan", kEach | kAbsorbs, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"avg_pool2d", kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kCopy},
    {"baddbmm", kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"bernoulli", kElementwise | kOverwritesAll, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"binary_cross_entropy_with_logits", kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"bmm", kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kMatmul},
    {"cat", kKeepsMask | kSelects, Pole::kNone, kNo, ZeroRule::kStop, Bound::kCopy},
    {"clamp", kEach | kAbsorbs | kKeepsMask, Pole::kNone, kNo, ZeroRule::kClamp, Bound::kUnknown},
    {"clamp_max", kEach | kKeepsMask | kAbsorbs, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"clamp_min", kEach | kAbsorbs | kKeepsMask, Pole::kNone, kNo, ZeroRule::kClamp, Bound::kUnknown},
    {"clone", kEach | kKeepsMask, Pole::kNone, kNo, ZeroRule::kSame, Bound::kCopy},
    {"contiguous", kEach | kKeepsMask, Pole::kNone, kNo, ZeroRule::kSame, Bound::kCopy},
    {"convolution", kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"copy", kEach | kKeepsMask | kOverwritesAll, Pole::kNone, kNo, ZeroRule::kSame, Bound::kCopy},
    {"cosh", kEach, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"cross_entropy", kArithmetic, Pole::kLabels, {"target", ""}, ZeroRule::kStop, Bound::kUnknown},
    {"cumsum", kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kReduceSum},
    {"detach", kKeepsMask | kElementwise, Pole::kNone, kNo, ZeroRule::kSame, Bound::kCopy},
    {"div", kEach | kAbsorbs | kKeepsMask, Pole::kZero, kOther, ZeroRule::kSame, Bound::kQuotient},
    {"div_backward", kSums, Pole::kZero, kOther, ZeroRule::kStop, Bound::kUnknown},
    {"dot", kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"embedding", kKeepsMask, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"empty", kMakesGarbage, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"empty_like", kMakesGarbage, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"empty_strided", kMakesGarbage, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"eq", kElementwise, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"erf", kEach | kAbsorbs, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"exp", kEach, Pole::kNone, kNo, ZeroRule::kStop, Bound::kExp},
    {"exp2", kEach, Pole::kNone, kNo, ZeroRule::kStop, Bound::kExp},
    {"expand", kKeepsMask, Pole::kNone, kNo, ZeroRule::kSame, Bound::kCopy},
    {"expm1", kEach, Pole::kNone, kNo, ZeroRule::kStop, Bound::kExp},
    {"fill", kElementwise | kOverwritesAll | kWritesConstant, Pole::kNone, kNo, ZeroRule::kConstant, Bound::kUnknown},
    {"full", kElementwise | kOverwritesAll | kWritesConstant, Pole::kNone, kNo, ZeroRule::kConstant, Bound::kUnknown},
    {"full_like", kElementwise | kWritesConstant, Pole::kNone, kNo, ZeroRule::kConstant, Bound::kUnknown},
    {"gather", kKeepsMask | kSelects, Pole::kNone, kNo, ZeroRule::kStop, Bound::kCopy},
    {"gelu", kEach, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"gelu_backward", kEach, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"gt", kElementwise, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"hardtanh", kEach | kAbsorbs, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"index", kKeepsMask | kSelects, Pole::kNone, kNo, ZeroRule::kStop, Bound::kCopy},
    {"index_select", kKeepsMask | kSelects, Pole::kNone, kNo, ZeroRule::kStop, Bound::kCopy},
    {"lerp", kEach, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"linalg_vector_norm", kSums, Pole::kNone, kNo, ZeroRule::kReduce, Bound::kUnknown},
    {"linear", kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"log", kEach, Pole::kNonPositive, kSelf, ZeroRule::kStop, Bound::kUnknown},
    {"log10", kEach, Pole::kNonPositive, kSelf, ZeroRule::kStop, Bound::kUnknown},
    {"log1p", kEach, Pole::kMinusOne, kSelf, ZeroRule::kSame, Bound::kUnknown},
    {"log2", kEach, Pole::kNonPositive, kSelf, ZeroRule::kStop, Bound::kUnknown},
    {"log_backward", kEach, Pole::kZero, kSelf, ZeroRule::kStop, Bound::kUnknown},
    {"log_softmax", kSoftmax | kArithmetic, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"logsumexp", kSoftmax | kArithmetic, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"masked_fill", kElementwise | kKeepsMask | kWritesConstant | kSelects, Pole::kNone, kNo, ZeroRule::kStop,
     Bound::kUnknown},
    {"matmul", kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kMatmul},
    {"max_pool2d_with_indices", kKeepsMask | kSelects, Pole::kNone, kNo, ZeroRule::kStop, Bound::kCopy},
    {"mean", kSums, Pole::kEmpty, kSelf, ZeroRule::kReduce, Bound::kReduceSum},
    {"mm", kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kMatmul},
    {"mse_loss", kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"mul", kEach | kKeepsMask, Pole::kNone, kNo, ZeroRule::kProduct, Bound::kProduct},
    {"mv", kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"nan_to_num", kEach | kAbsorbs, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"narrow", kKeepsMask, Pole::kNone, kNo, ZeroRule::kSame, Bound::kCopy},
    {"native_batch_norm", kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"native_dropout", kEach, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"native_dropout_backward", kEach, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"native_group_norm", kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"native_layer_norm", kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"neg", kEach | kKeepsMask, Pole::kNone, kNo, ZeroRule::kSame, Bound::kCopy},
    {"new_empty", kMakesGarbage, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"new_empty_strided", kMakesGarbage, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"nll_loss", kArithmetic, Pole::kLabels, {"target", ""}, ZeroRule::kStop, Bound::kUnknown},
    {"nll_loss_backward", kArithmetic, Pole::kLabels, {"target", ""}, ZeroRule::kStop, Bound::kUnknown},
    {"nll_loss_forward", kArithmetic, Pole::kLabels, {"target", ""}, ZeroRule::kStop, Bound::kUnknown},
    {"norm", kSums, Pole::kNone, kNo, ZeroRule::kReduce, Bound::kUnknown},
    {"normal", kElementwise | kOverwritesAll, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"permute", kKeepsMask, Pole::kNone, kNo, ZeroRule::kSame, Bound::kCopy},
    {"pow", kEach | kAbsorbs, Pole::kPower, kSelf, ZeroRule::kSame, Bound::kPower},
    {"pow_backward", kEach, Pole::kPowerBackward, kSelf, ZeroRule::kStop, Bound::kUnknown},
    {"prod", kArithmetic, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"reciprocal", kEach | kAbsorbs, Pole::kZero, kSelf, ZeroRule::kStop, Bound::kUnknown},
    {"reciprocal_backward", kEach, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"relu", kEach | kKeepsMask, Pole::kNone, kNo, ZeroRule::kStop, Bound::kCopy},
    {"repeat", kKeepsMask, Pole::kNone, kNo, ZeroRule::kSame, Bound::kCopy},
    {"reshape", kKeepsMask | kElementwise, Pole::kNone, kNo, ZeroRule::kSame, Bound::kCopy},
    {"rms_norm", kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"rsqrt", kEach | kAbsorbs, Pole::kNonPositive, kSelf, ZeroRule::kStop, Bound::kUnknown},
    {"rsqrt_backward", kEach, Pole::kZero, kSelf, ZeroRule::kStop, Bound::kUnknown},
    {"rsub", kEach | kKeepsMask, Pole::kNone, kNo, ZeroRule::kStop, Bound::kSum},
    {"scalar_tensor", kWritesConstant, Pole::kNone, kNo, ZeroRule::kConstant, Bound::kUnknown},
    {"scaled_dot_product_attention", kSoftmax | kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"select", kKeepsMask, Pole::kNone, kNo, ZeroRule::kSame, Bound::kCopy},
    {"sigmoid", kEach | kAbsorbs, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"silu", kEach, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"silu_backward", kEach, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"sinh", kEach, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"slice", kKeepsMask, Pole::kNone, kNo, ZeroRule::kSame, Bound::kCopy},
    {"smooth_l1_loss", kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"softmax", kSoftmax, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"sqrt", kEach, Pole::kNegative, kSelf, ZeroRule::kSame, Bound::kUnknown},
    {"sqrt_backward", kEach, Pole::kZero, kResult, ZeroRule::kStop, Bound::kUnknown},
    {"squeeze", kKeepsMask | kElementwise, Pole::kNone, kNo, ZeroRule::kSame, Bound::kCopy},
    {"stack", kKeepsMask | kSelects, Pole::kNone, kNo, ZeroRule::kStop, Bound::kCopy},
    {"std", kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"sub", kEach | kKeepsMask, Pole::kNone, kNo, ZeroRule::kAdd, Bound::kSum},
    {"sum", kSums | kKeepsMask, Pole::kNone, kNo, ZeroRule::kReduce, Bound::kReduceSum},
    {"t", kKeepsMask, Pole::kNone, kNo, ZeroRule::kSame, Bound::kCopy},
    {"tanh", kEach | kAbsorbs, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"transpose", kKeepsMask, Pole::kNone, kNo, ZeroRule::kSame, Bound::kCopy},
    {"uniform", kElementwise | kOverwritesAll, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"unsqueeze", kKeepsMask | kElementwise, Pole::kNone, kNo, ZeroRule::kSame, Bound::kCopy},
    {"upsample_nearest2d", kKeepsMask | kSelects, Pole::kNone, kNo, ZeroRule::kStop, Bound::kCopy},
    {"var", kSums, Pole::kNone, kNo, ZeroRule::kReduce, Bound::kUnknown},
    {"view", kKeepsMask | kElementwise, Pole::kNone, kNo, ZeroRule::kSame, Bound::kCopy},
    {"where", kKeepsMask | kElementwise | kArithmetic | kSelects, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
    {"zero", kElementwise | kOverwritesAll | kWritesConstant, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown},
};
static_assert(std::is_sorted(std::begin(kOps), std::end(kOps),
                             [](const OpInfo& a, const OpInfo& b) { return a.name < b.name; }));

constexpr OpInfo kUnknownOp = {};
// The gradient of a listed op: products and sums over broadcast dimensions, unless the table says more.
constexpr OpInfo kPlainBackward = {"*_backward", kSums, Pole::kNone, kNo, ZeroRule::kStop, Bound::kUnknown};

std::string_view normalised(std::string_view op) {
  op = plain_op_name(op);
  if (op.size() > 1 && op.ends_with('_')) op.remove_suffix(1);
  return op;
}

const OpInfo* find(std::string_view name) {
  const auto* it = std::lower_bound(std::begin(kOps), std::end(kOps), name,
                                    [](const OpInfo& info, std::string_view wanted) { return info.name < wanted; });
  return it != std::end(kOps) && it->name == name ? it : nullptr;
}

}  // namespace

const OpInfo& op_info(std::string_view op) {
  const std::string_view name = normalised(op);
  if (const OpInfo* info = find(name)) return *info;
  const std::string_view forward = forward_op_name(name);
  return !forward.empty() && find(forward) != nullptr ? kPlainBackward : kUnknownOp;
}

bool is_bilinear(const OpInfo& info) {
  return info.bound == Bound::kMatmul || info.bound == Bound::kProduct || info.name == "convolution" ||
         info.name == "linear" || info.name == "baddbmm";
}

std::string forward_op(std::string_view op) {
  return std::string(forward_op_name(normalised(op)));
}

}  // namespace nanhunt::analyze
