// SPDX-License-Identifier: Apache-2.0
// Ops that add up products of two operands: matrix products, convolutions, recurrent layers, attention.
#pragma once

#include "src/core/ops/row.h"

namespace nanhunt::ops {

// clang-format off
// Products of two matrices.
constexpr Row kMatmuls = Row(kSums | kBilinear | kInnerProducts).bound(Bound::kMatmul);
// Sums of products of two operands.
constexpr Row kProductSums = Row(kSums).bound(Bound::kProducts);
constexpr Row kAttention = Row(kSums | kSoftmax).bound(Bound::kProducts);

constexpr Row kProductRows[] = {
    op("addmm", kMatmuls).also(kNumpyBoth),
    op("bmm", kMatmuls).also(kNumpyBoth),
    op("matmul", kMatmuls),
    op("mm", kMatmuls).also(kNumpyBoth),

    op("torch_nn::_linear_cross_entropy_batch_chunked", kProductSums),
    op("torch_nn::_linear_cross_entropy_batch_chunked_no_reduction", kProductSums),
    op("_addmm_activation", kProductSums),
    op("_conv_depthwise2d", kProductSums),
    op("_convolution", kProductSums),
    op("_cudnn_rnn", kProductSums).scratch(1u << 3),
    op("_slow_conv2d_forward", kProductSums),
    op("_thnn_fused_gru_cell", kProductSums),
    op("_thnn_fused_lstm_cell", kProductSums),
    op("_trilinear", kProductSums),
    op("addbmm", kProductSums).also(kInnerProducts),
    op("addmv", kProductSums),
    op("addr", kProductSums),
    op("baddbmm", kProductSums).also(kBilinear | kInnerProducts),
    op("bilinear", kProductSums.also(kComposed)),
    op("binary_cross_entropy_with_logits", kProductSums.also(kComposed)).pole(Pole::kEmpty, kCompared),
    op("chain_matmul", kProductSums),
    op("conv1d", kProductSums),
    op("conv2d", kProductSums),
    op("conv3d", kProductSums),
    op("conv_tbc", kProductSums),
    op("conv_transpose1d", kProductSums),
    op("conv_transpose2d", kProductSums),
    op("conv_transpose3d", kProductSums),
    op("convolution", kProductSums).also(kBilinear | kInnerProducts),
    op("cross", kProductSums),
    op("cudnn_convolution", kProductSums),
    op("cudnn_convolution_transpose", kProductSums),
    op("dot", kProductSums),
    op("einsum", kProductSums.also(kComposed)),
    op("ger", kProductSums.also(kComposed)),
    op("gru", kProductSums.also(kComposed)),
    op("gru_cell", kProductSums.also(kComposed)),
    op("inner", kProductSums.also(kComposed)),
    op("kron", kProductSums.also(kComposed)),
    op("linalg_cross", kProductSums),
    op("linalg_multi_dot", kProductSums),
    op("linear", kProductSums).also(kBilinear | kInnerProducts),
    op("lstm", kProductSums.also(kComposed)),
    op("lstm_cell", kProductSums.also(kComposed)),
    op("miopen_convolution", kProductSums),
    op("mkldnn_convolution", kProductSums),
    op("mkldnn_rnn_layer", kProductSums),
    op("mv", kProductSums),
    op("outer", kProductSums.also(kComposed)),
    op("rnn_relu", kProductSums.also(kComposed)),
    op("rnn_relu_cell", kProductSums.also(kComposed)),
    op("rnn_tanh", kProductSums.also(kComposed)),
    op("rnn_tanh_cell", kProductSums.also(kComposed)),
    op("slow_conv2d", kProductSums),
    op("tensordot", kProductSums.also(kComposed)),
    op("thnn_conv2d", kProductSums),
    op("vdot", kProductSums),

    op("_efficient_attention_forward", kAttention).scratch(1u << 1),
    op("_flash_attention_forward", kAttention).scratch(1u << 1),
    op("_native_multi_head_attention", kAttention),
    op("_scaled_dot_product_attention_math", kAttention),
    op("_scaled_dot_product_cudnn_attention", kAttention).scratch(1u << 1),
    op("_scaled_dot_product_efficient_attention", kAttention).scratch(1u << 1),
    op("_scaled_dot_product_flash_attention", kAttention).scratch(1u << 1),
    op("_scaled_dot_product_flash_attention_for_cpu", kAttention).scratch(1u << 1),
    op("_transformer_encoder_layer_fwd", kAttention),
    op("scaled_dot_product_attention", kAttention.also(kComposed)),
    op("scaled_dot_product_fused_attention_overrideable", kAttention),
};
// clang-format on

}  // namespace nanhunt::ops
