// SPDX-License-Identifier: Apache-2.0
// What Apex O1 patches (CUDA from 9.1 on): functions of torch and torch.nn.functional by their names, and the
// dispatcher's ops behind interpolate and cross_entropy. Functions are cast whole, so cross_entropy and softmax get
// fp32 inputs. What Apex promotes and promotion makes of fp16 with fp32 anyway (add, mul, eq, cat, ...) has no row.
#include <algorithm>
#include <array>

#include "src/core/ops/autocast/cast_policy.h"

namespace nanhunt {
namespace {

// clang-format off
constexpr std::array kApex = {
    CastRow{"acos", CastPolicy::kFp32},
    CastRow{"addbmm", CastPolicy::kLow},
    CastRow{"addcdiv", CastPolicy::kPromote},
    CastRow{"addcmul", CastPolicy::kPromote},
    CastRow{"addmm", CastPolicy::kLow},
    CastRow{"addmv", CastPolicy::kLow},
    CastRow{"addr", CastPolicy::kLow},
    CastRow{"asin", CastPolicy::kFp32},
    CastRow{"atan2", CastPolicy::kPromote},
    CastRow{"baddbmm", CastPolicy::kLow},
    CastRow{"bilinear", CastPolicy::kPromote},
    CastRow{"binary_cross_entropy", CastPolicy::kBanned},
    CastRow{"binary_cross_entropy_with_logits", CastPolicy::kFp32},
    CastRow{"bmm", CastPolicy::kLow},
    CastRow{"conv1d", CastPolicy::kLow},
    CastRow{"conv2d", CastPolicy::kLow},
    CastRow{"conv3d", CastPolicy::kLow},
    CastRow{"conv_tbc", CastPolicy::kLow},
    CastRow{"conv_transpose1d", CastPolicy::kLow},
    CastRow{"conv_transpose2d", CastPolicy::kLow},
    CastRow{"conv_transpose3d", CastPolicy::kLow},
    CastRow{"cosh", CastPolicy::kFp32},
    CastRow{"cosine_embedding_loss", CastPolicy::kFp32},
    CastRow{"cosine_similarity", CastPolicy::kFp32},
    CastRow{"cross", CastPolicy::kPromote},
    CastRow{"cross_entropy", CastPolicy::kFp32},
    CastRow{"cross_entropy_loss", CastPolicy::kFp32},
    CastRow{"ctc_loss", CastPolicy::kFp32},
    CastRow{"cumprod", CastPolicy::kFp32},
    CastRow{"cumsum", CastPolicy::kFp32},
    CastRow{"dist", CastPolicy::kFp32},
    CastRow{"dot", CastPolicy::kPromote},
    CastRow{"erfinv", CastPolicy::kFp32},
    CastRow{"exp", CastPolicy::kFp32},
    CastRow{"expm1", CastPolicy::kFp32},
    CastRow{"gelu", CastPolicy::kFp32},
    CastRow{"grid_sampler", CastPolicy::kFp32},
    CastRow{"group_norm", CastPolicy::kFp32},
    CastRow{"gru_cell", CastPolicy::kLow},
    CastRow{"hinge_embedding_loss", CastPolicy::kFp32},
    CastRow{"interpolate", CastPolicy::kFp32},
    CastRow{"kl_div", CastPolicy::kFp32},
    CastRow{"l1_loss", CastPolicy::kFp32},
    CastRow{"layer_norm", CastPolicy::kFp32},
    CastRow{"linear", CastPolicy::kLow},
    CastRow{"local_response_norm", CastPolicy::kFp32},
    CastRow{"log", CastPolicy::kFp32},
    CastRow{"log10", CastPolicy::kFp32},
    CastRow{"log2", CastPolicy::kFp32},
    CastRow{"log_softmax", CastPolicy::kFp32},
    CastRow{"lstm_cell", CastPolicy::kLow},
    CastRow{"margin_ranking_loss", CastPolicy::kFp32},
    CastRow{"matmul", CastPolicy::kLow},
    CastRow{"mm", CastPolicy::kLow},
    CastRow{"mse_loss", CastPolicy::kFp32},
    CastRow{"multi_margin_loss", CastPolicy::kFp32},
    CastRow{"multilabel_margin_loss", CastPolicy::kFp32},
    CastRow{"multilabel_soft_margin_loss", CastPolicy::kFp32},
    CastRow{"mv", CastPolicy::kLow},
    CastRow{"nll_loss", CastPolicy::kFp32},
    CastRow{"norm", CastPolicy::kFp32},
    CastRow{"normalize", CastPolicy::kFp32},
    CastRow{"poisson_nll_loss", CastPolicy::kFp32},
    CastRow{"pow", CastPolicy::kFp32},
    CastRow{"prelu", CastPolicy::kLow},
    CastRow{"prod", CastPolicy::kFp32},
    CastRow{"reciprocal", CastPolicy::kFp32},
    CastRow{"renorm", CastPolicy::kFp32},
    CastRow{"rnn_relu_cell", CastPolicy::kLow},
    CastRow{"rnn_tanh_cell", CastPolicy::kLow},
    CastRow{"rsqrt", CastPolicy::kFp32},
    CastRow{"sinh", CastPolicy::kFp32},
    CastRow{"smooth_l1_loss", CastPolicy::kFp32},
    CastRow{"soft_margin_loss", CastPolicy::kFp32},
    CastRow{"softmax", CastPolicy::kFp32},
    CastRow{"softmin", CastPolicy::kFp32},
    CastRow{"softplus", CastPolicy::kFp32},
    CastRow{"std", CastPolicy::kFp32},
    CastRow{"sum", CastPolicy::kFp32},
    CastRow{"tan", CastPolicy::kFp32},
    CastRow{"triplet_margin_loss", CastPolicy::kFp32},
    CastRow{"upsample_nearest2d", CastPolicy::kFp32},
    CastRow{"var", CastPolicy::kFp32},
};
// clang-format on
static_assert(std::ranges::is_sorted(kApex, {}, &CastRow::op));

}  // namespace

std::span<const CastRow> apex_rows() { return kApex; }

}  // namespace nanhunt
