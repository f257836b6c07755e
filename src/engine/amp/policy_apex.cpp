// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "src/engine/amp/policy.h"

namespace nanhunt::engine::amp {
namespace {

// Those of Apex O1 (CUDA from 9.1 on). Functions are cast whole, so cross_entropy and softmax get fp32 inputs. What
// Apex promotes and the engine's promotion makes of fp16 with fp32 anyway (add, mul, cat, ...) has no row.
constexpr std::array kApexTable = {
    PolicyRow{"addcdiv", Policy::kPromote},
    PolicyRow{"addcmul", Policy::kPromote},
    PolicyRow{"addmm", Policy::kLow},
    PolicyRow{"binary_cross_entropy_with_logits", Policy::kFp32},
    PolicyRow{"bmm", Policy::kLow},
    PolicyRow{"conv2d", Policy::kLow},
    PolicyRow{"cross_entropy", Policy::kFp32},
    PolicyRow{"exp", Policy::kFp32},
    PolicyRow{"gelu", Policy::kFp32},
    PolicyRow{"l1_loss", Policy::kFp32},
    PolicyRow{"layer_norm", Policy::kFp32},
    PolicyRow{"linear", Policy::kLow},
    PolicyRow{"log", Policy::kFp32},
    PolicyRow{"log_softmax", Policy::kFp32},
    PolicyRow{"matmul", Policy::kLow},
    PolicyRow{"mse_loss", Policy::kFp32},
    PolicyRow{"nll_loss", Policy::kFp32},
    PolicyRow{"norm", Policy::kFp32},
    PolicyRow{"pow", Policy::kFp32},
    PolicyRow{"reciprocal", Policy::kFp32},
    PolicyRow{"rsqrt", Policy::kFp32},
    PolicyRow{"smooth_l1_loss", Policy::kFp32},
    PolicyRow{"softmax", Policy::kFp32},
    PolicyRow{"sum", Policy::kFp32},
    PolicyRow{"upsample_nearest2d", Policy::kFp32},
};

}  // namespace

std::span<const PolicyRow> apex_policy_table() { return kApexTable; }

}  // namespace nanhunt::engine::amp
