// SPDX-License-Identifier: Apache-2.0
#include "src/engine/amp/policy.h"

#include <algorithm>
#include <array>

namespace nanhunt::engine::amp {
namespace {

// The CUDA lists of torch.amp, as far as the engine has the op. Composites that torch does not intercept
// (cross_entropy) have no row: their parts do. Where PyTorch is installed, a test compares the table with it.
constexpr std::array kTable = {
    PolicyRow{"addcdiv", Policy::kPromote},
    PolicyRow{"addcmul", Policy::kPromote},
    PolicyRow{"addmm", Policy::kLow},
    PolicyRow{"binary_cross_entropy_with_logits", Policy::kFp32},
    PolicyRow{"bmm", Policy::kLow},
    PolicyRow{"conv2d", Policy::kLow},
    PolicyRow{"exp", Policy::kFp32},
    PolicyRow{"l1_loss", Policy::kFp32},
    PolicyRow{"layer_norm", Policy::kFp32},
    PolicyRow{"linear", Policy::kLow},
    PolicyRow{"log", Policy::kFp32},
    PolicyRow{"log_softmax", Policy::kFp32Output},
    PolicyRow{"matmul", Policy::kLow},
    PolicyRow{"mse_loss", Policy::kFp32},
    PolicyRow{"nll_loss", Policy::kFp32},
    PolicyRow{"norm", Policy::kAppendDtype},
    PolicyRow{"pow", Policy::kFp32},
    PolicyRow{"reciprocal", Policy::kFp32},
    PolicyRow{"rsqrt", Policy::kFp32},
    PolicyRow{"scaled_dot_product_attention", Policy::kLow},
    PolicyRow{"smooth_l1_loss", Policy::kFp32},
    PolicyRow{"softmax", Policy::kFp32Output},
    PolicyRow{"sum", Policy::kFp32Output},
    PolicyRow{"upsample_nearest2d", Policy::kFp32},
};

}  // namespace

std::span<const PolicyRow> policy_table(CastLists lists) {
  return lists == CastLists::kApex ? apex_policy_table() : std::span<const PolicyRow>(kTable);
}

std::optional<Policy> policy_of(std::string_view op, CastLists lists) {
  const std::span<const PolicyRow> table = policy_table(lists);
  const auto row = std::find_if(table.begin(), table.end(), [op](const PolicyRow& entry) { return entry.op == op; });
  if (row == table.end()) return std::nullopt;
  return row->policy;
}

}  // namespace nanhunt::engine::amp
