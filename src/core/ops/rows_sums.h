// SPDX-License-Identifier: Apache-2.0
// Ops that add up: reductions, losses, norms, softmax, pooling, gradients of several terms, fused optimizers.
#pragma once

#include "src/core/ops/row.h"

namespace nanhunt::ops {

// clang-format off
// Sums of something.
constexpr Row kSumming = Row(kSums);
// Eigenvectors and singular vectors.
constexpr Row kVectors = Row(kSums | kGapsInDerivative);
// Sums of their elements.
constexpr Row kReductions = Row(kSums).bound(Bound::kReduceSum);
// Sums of squares: losses and norms.
constexpr Row kSquareSums = Row(kSums).bound(Bound::kSquares);
// The same, zero only of zeros.
constexpr Row kMoments = Row(kSums).zero(ZeroRule::kReduce).bound(Bound::kSquares);
// Norm layers.
constexpr Row kNormalizing = Row(kSums).bound(Bound::kSquares).eps(EpsForm::kOpMath);
// Sums of few products: pooling, resizing, gradients.
constexpr Row kWeighting = Row(kSums).bound(Bound::kGradient);
// Mean over the labels that are not ignored.
constexpr Row kLabelMeans = Row(kArithmetic).pole(Pole::kLabels, kTarget);
constexpr Row kInversions = kSumming.pole(Pole::kMatrix, kMatrixSlot);
constexpr Row kSoftmaxes = Row(kSoftmax);
constexpr Row kLogSoftmaxes = Row(kArithmetic | kSoftmax);
// One step of an optimizer in one kernel.
constexpr Row kFusedSteps = Row(kArithmetic | kStoresState).eps(EpsForm::kOpMath);

constexpr Row kSumRows[] = {
    op("_c10d_functional::all_reduce", kSumming),
    op("_c10d_functional::reduce_scatter_tensor", kSumming),
    op("_fft_c2c", kSumming),
    op("_fft_c2r", kSumming),
    op("_fft_r2c", kSumming),
    op("_linalg_det", kSumming),
    op("_linalg_eigh", kVectors),
    op("_linalg_slogdet", kInversions),
    op("_linalg_solve_ex", kInversions),
    op("_linalg_svd", kVectors),
    op("binary_cross_entropy", kSumming).pole(Pole::kEmpty, kCompared),
    op("c10d::_reduce_scatter_base", kSumming),
    op("c10d::allreduce", kSumming),
    op("c10d::reduce", kSumming),
    op("c10d::reduce_scatter", kSumming),
    op("cholesky", kSumming),
    op("cholesky_solve", kSumming),
    op("cumprod", kSumming),
    op("gaussian_nll_loss", kSumming.also(kComposed)),
    op("geqrf", kSumming),
    op("inverse", kInversions),
    op("istft", kSumming),
    op("kl_div", kSumming.also(kComposed)),
    op("linalg_cholesky", kSumming),
    op("linalg_cholesky_ex", kSumming),
    op("linalg_det", kSumming),
    op("linalg_eig", kVectors),
    op("linalg_eigh", kVectors),
    op("linalg_inv", kInversions),
    op("linalg_householder_product", kSumming),
    op("linalg_inv_ex", kInversions),
    op("linalg_ldl_factor_ex", kSumming),
    op("linalg_ldl_solve", kSumming),
    op("linalg_lu_factor_ex", kSumming),
    op("linalg_lu_solve", kSumming),
    op("linalg_matrix_exp", kSumming),
    op("linalg_qr", kSumming),
    op("linalg_slogdet", kInversions),
    op("linalg_solve", kInversions),
    op("linalg_solve_triangular", kSumming),
    op("linalg_svd", kVectors),
    op("matrix_exp", kSumming),
    op("nansum", kSumming),
    op("ormqr", kSumming),
    op("poisson_nll_loss", kSumming.also(kComposed)),
    op("prod", kSumming),
    op("stft", kSumming),
    op("triangular_solve", kSumming),

    op("_ctc_loss", kReductions).scratch(1u << 1).pole(Pole::kPath, kLogProbs),
    op("_cudnn_ctc_loss", kReductions).pole(Pole::kPath, kLogProbs),
    op("_embedding_bag", kReductions),
    op("_unsafe_masked_index_put_accumulate", kReductions),
    op("col2im", kReductions),
    op("ctc_loss", kReductions),
    op("cumsum", kReductions),
    op("embedding_bag", kReductions),
    op("embedding_dense_backward", kReductions).gradient_of("embedding"),
    op("index_add", kReductions),
    op("index_reduce", kReductions),
    op("scatter_add", kReductions),
    op("scatter_reduce", kReductions),
    op("segment_reduce", kReductions),
    op("trace", kReductions),

    op("_cdist_forward", kSquareSums),
    op("_euclidean_dist", kSquareSums),
    op("_weight_norm", kSquareSums),
    op("_weight_norm_interface", kSquareSums).pole(Pole::kNorm, kVectorSlot),
    op("cdist", kSquareSums),
    op("cosine_embedding_loss", kSquareSums.also(kComposed)),
    op("cosine_similarity", kSquareSums.also(kComposed)),
    op("dist", kSquareSums.also(kComposed)),
    op("hinge_embedding_loss", kSquareSums.also(kComposed)),
    op("huber_loss", kSquareSums).pole(Pole::kEmpty, kCompared),
    op("l1_loss", kSquareSums.also(kComposed)),
    op("margin_ranking_loss", kSquareSums.also(kComposed)),
    op("mse_loss", kSquareSums).pole(Pole::kEmpty, kCompared).also(kNumpy),
    op("multi_margin_loss", kSquareSums).pole(Pole::kEmpty, kCompared),
    op("multilabel_margin_loss_forward", kSquareSums),
    op("pairwise_distance", kSquareSums.also(kComposed)),
    op("renorm", kSquareSums.also(kComposed)),
    op("smooth_l1_loss", kSquareSums).pole(Pole::kEmpty, kCompared).also(kNumpy),
    op("soft_margin_loss", kSquareSums).pole(Pole::kEmpty, kCompared),
    op("std", kSquareSums).pole(Pole::kFew, kSelf),
    op("triplet_margin_loss", kSquareSums.also(kComposed)),
    op("weight_norm", kSquareSums.also(kComposed)),

    op("linalg_matrix_norm", kMoments),
    op("linalg_norm", kMoments),
    op("linalg_vector_norm", kMoments),
    op("norm", kMoments).meets(kByShape).also(kNumpyBoth),
    op("std_mean", kMoments).pole(Pole::kFew, kSelf),
    op("var", kMoments).pole(Pole::kFew, kSelf),
    op("var_mean", kMoments).pole(Pole::kFew, kSelf),

    op("_batch_norm_impl_index", kNormalizing),
    op("_batch_norm_no_update", kNormalizing),
    op("_batch_norm_with_update", kNormalizing),
    op("_fused_rms_norm", kNormalizing),
    op("_native_batch_norm_legit", kNormalizing),
    op("_native_batch_norm_legit_functional", kNormalizing),
    op("_native_batch_norm_legit_no_training", kNormalizing),
    op("batch_norm", kNormalizing),
    op("batch_norm_elemt", kNormalizing),
    op("batch_norm_gather_stats_with_counts", kNormalizing),
    op("batch_norm_stats", kNormalizing),
    op("cudnn_batch_norm", kNormalizing),
    op("group_norm", kNormalizing),
    op("instance_norm", kNormalizing),
    op("layer_norm", kNormalizing),
    op("local_response_norm", kNormalizing.also(kComposed)),
    op("miopen_batch_norm", kNormalizing),
    op("native_batch_norm", kNormalizing),
    op("native_group_norm", kNormalizing),
    op("native_layer_norm", kNormalizing).also(kNumpy),
    op("rms_norm", kNormalizing.also(kComposed)),
    op("sync_batch_norm", kNormalizing),

    op("_adaptive_avg_pool2d", kWeighting),
    op("_adaptive_avg_pool2d_backward", kWeighting).gradient_of("_adaptive_avg_pool2d"),
    op("_adaptive_avg_pool3d", kWeighting),
    op("_cdist_backward", kWeighting).gradient_of("cdist"),
    op("_ctc_loss_backward", kWeighting).gradient_of("_ctc_loss"),
    op("_cudnn_rnn_backward", kWeighting).gradient_of("lstm"),
    op("_efficient_attention_backward", kWeighting).gradient_of("scaled_dot_product_attention"),
    op("_flash_attention_backward", kWeighting).gradient_of("scaled_dot_product_attention"),
    op("_fused_rms_norm_backward", kWeighting).gradient_of("rms_norm"),
    op("_log_softmax_backward_data", kWeighting).gradient_of("_log_softmax"),
    op("_prelu_kernel_backward", kWeighting).gradient_of("prelu"),
    op("_scaled_dot_product_cudnn_attention_backward", kWeighting).gradient_of("scaled_dot_product_attention"),
    op("_scaled_dot_product_efficient_attention_backward", kWeighting).gradient_of("scaled_dot_product_attention"),
    op("_scaled_dot_product_flash_attention_backward", kWeighting).gradient_of("scaled_dot_product_attention"),
    op("_softmax_backward_data", kWeighting).gradient_of("_softmax"),
    op("_thnn_fused_lstm_cell_backward_impl", kWeighting).gradient_of("lstm_cell"),
    op("_upsample_bicubic2d_aa", kWeighting),
    op("_upsample_bilinear2d_aa", kWeighting),
    op("_weight_norm_interface_backward", kWeighting).gradient_of("_weight_norm_interface"),
    op("adaptive_avg_pool1d", kWeighting),
    op("adaptive_avg_pool2d", kWeighting),
    op("adaptive_avg_pool3d", kWeighting),
    op("affine_grid_generator", kWeighting),
    op("avg_pool1d", kWeighting),
    op("avg_pool2d", kWeighting),
    op("avg_pool3d", kWeighting),
    op("batch_norm_backward", kWeighting).gradient_of("native_batch_norm"),
    op("cudnn_batch_norm_backward", kWeighting).gradient_of("native_batch_norm"),
    op("embedding_backward", kWeighting).gradient_of("embedding"),
    op("grid_sampler_2d", kWeighting),
    op("grid_sampler_3d", kWeighting),
    op("log_sigmoid_backward", kWeighting).gradient_of("log_sigmoid"),
    op("miopen_batch_norm_backward", kWeighting).gradient_of("native_batch_norm"),
    op("mkldnn_rnn_layer_backward", kWeighting).gradient_of("lstm"),
    op("slow_conv2d_backward", kWeighting).gradient_of("convolution"),
    op("upsample_bicubic2d", kWeighting),
    op("upsample_bilinear2d", kWeighting),
    op("upsample_linear1d", kWeighting),
    op("upsample_trilinear3d", kWeighting),

    op("cross_entropy", kLabelMeans.also(kComposed)),
    op("cross_entropy_loss", kLabelMeans.also(kComposed)),
    op("nll_loss", kLabelMeans).also(kNumpy),
    op("nll_loss2d", kLabelMeans),
    op("nll_loss2d_backward", kLabelMeans).gradient_of("nll_loss"),
    op("nll_loss2d_forward", kLabelMeans),
    op("nll_loss_backward", kLabelMeans),
    op("nll_loss_forward", kLabelMeans),
    op("nll_loss_nd", kLabelMeans),

    op("_masked_softmax", kSoftmaxes),
    op("_softmax", kSoftmaxes).meets(kByShape),
    op("softmax", kSoftmaxes).meets(kByShape).also(kNumpyBoth),

    op("_log_softmax", kLogSoftmaxes).meets(kByShape),
    op("log_softmax", kLogSoftmaxes).meets(kByShape).also(kNumpyBoth),
    op("logaddexp", kLogSoftmaxes.also(kLogSums)),
    op("logaddexp2", kLogSoftmaxes.also(kLogSums)),
    op("logcumsumexp", kLogSoftmaxes.also(kLogSums)),
    op("logsumexp", kLogSoftmaxes.also(kLogSums)),

    op("_fused_adagrad", kFusedSteps),
    op("_fused_adam", kFusedSteps).updates(UpdateRule::kAdam),
    op("_fused_adamw", kFusedSteps).updates(UpdateRule::kAdamW),

    // Each by itself.
    op("_fused_sgd", kArithmetic | kStoresState).updates(UpdateRule::kSgd),
    op("_safe_softmax", kAbsorbs | kSoftmax),
    op("addcdiv_backward", kSums).pole(Pole::kZero, kTensor2),
    op("div_backward", kSums).pole(Pole::kZero, kOther),
    op("hypot_backward", kSums).pole(Pole::kZero, kResult),
    op("mean", kSums).pole(Pole::kEmpty, kSelf).zero(ZeroRule::kReduce).bound(Bound::kReduceSum).meets(kByShape)
        .also(kNumpyBoth),
    op("nanmean", kSums | kAbsorbs | kComposed),
    op("sum", kSums | kKeepsMask).zero(ZeroRule::kReduce).bound(Bound::kReduceSum).meets(kByShape).also(kNumpyBoth),
};
// clang-format on

}  // namespace nanhunt::ops
