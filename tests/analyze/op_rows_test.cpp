// SPDX-License-Identifier: Apache-2.0
// Every row of the op table keeps what it says, on a trace of its own: poles, constants, bounds, eps, scratch outputs.
#include <gtest/gtest.h>

#include <cmath>

#include "src/core/ops/op_info.h"
#include "tests/support/trace_builder.h"

namespace nanhunt::analyze {
namespace {

using namespace testing_support;

std::string class_of(const TraceBuilder& t) {
  const Analysis analysis = analysis_of(t);
  return analysis.findings.empty() ? "clean" : std::string(finding_class_name(analysis.findings[0].cls));
}

// The op with one input and a bad output that reaches the loss.
std::string class_when(const OpInfo& row, const Numbers& argument, const Numbers& out, const Scalars& scalars = {}) {
  TraceBuilder t;
  const std::string slot(row.pole_slots[0].empty() ? "self" : row.pole_slots[0]);
  const Handle y = t.op(std::string(row.name), {{slot, t.value(argument)}}, out, scalars);
  t.mark(TensorRole::kLoss, "loss", y);
  return class_of(t);
}

struct PoleCase {
  Pole pole;
  double at;           // one number that every element is
  const char* expect;  // class
};
constexpr PoleCase kPoles[] = {
    {Pole::kZero, 0, "divide_by_zero"},         {Pole::kNonPositive, 0, "divide_by_zero"},
    {Pole::kNonPositive, -2, "invalid"},        {Pole::kNegative, -2, "invalid"},
    {Pole::kMinusOne, -1, "divide_by_zero"},    {Pole::kMinusOne, -2, "invalid"},
    {Pole::kUnit, 2, "invalid"},                {Pole::kUnitBackward, 1, "divide_by_zero"},
    {Pole::kUnitBackward, -2, "invalid"},       {Pole::kUnitPole, -1, "divide_by_zero"},
    {Pole::kUnitPole, 2, "invalid"},            {Pole::kBelowOne, 0.5, "invalid"},
    {Pole::kBelowOneBackward, 1, "divide_by_zero"}, {Pole::kBelowOneBackward, 0.5, "invalid"},
    {Pole::kZeroOne, 1, "divide_by_zero"},      {Pole::kZeroOne, 0, "divide_by_zero"},
    {Pole::kZeroOne, 3, "invalid"},             {Pole::kPower, 0, "divide_by_zero"},
    {Pole::kPowerBackward, 0, "divide_by_zero"}, {Pole::kGamma, 0, "divide_by_zero"},
    {Pole::kGamma, -3, "divide_by_zero"},       {Pole::kGamma, -2.5, "overflow"},
};

TEST(OpRows, with_a_pole_are_told_by_the_argument_that_stands_there) {
  std::size_t tried = 0;
  for (const OpInfo& row : op_rows()) {
    for (const PoleCase& c : kPoles) {
      if (row.pole != c.pole) continue;
      ++tried;
      const Numbers argument = finite().range(c.at, c.at).zeros(c.at == 0 ? 8 : 0);
      const Scalars scalars = {{"exponent", -0.5}};
      const Numbers out = std::string_view(c.expect) == "invalid" ? finite().nan(8) : finite().inf(8);
      EXPECT_EQ(class_when(row, argument, out, scalars), c.expect) << row.name << " at " << c.at;
    }
  }
  EXPECT_GT(tried, 30U);
}

TEST(OpRows, that_average_over_labels_are_told_when_none_is_valid) {
  for (const OpInfo& row : op_rows()) {
    if (row.pole != Pole::kLabels) continue;
    const Scalars ignore = {{"ignore_index", -100}};
    EXPECT_EQ(class_when(row, finite().range(-100, -100), finite(1).nan(1), ignore), "divide_by_zero") << row.name;
    EXPECT_NE(class_when(row, finite().range(-100, 3), finite(1).nan(1), ignore), "divide_by_zero") << row.name;
  }
}

TEST(OpRows, have_a_slot_wherever_they_have_a_pole) {
  for (const OpInfo& row : op_rows()) {
    EXPECT_EQ(row.pole == Pole::kNone, row.pole_slots[0].empty()) << row.name;
  }
}

TEST(OpRows, that_sum_up_overflow_by_magnitude_and_leave_nan_of_small_numbers_unexplained) {
  for (const OpInfo& row : op_rows()) {
    if (!row.has(kAccumulates) || row.pole != Pole::kNone || row.bound == Bound::kMatmul) continue;
    const auto nan_of = [&](double size) {
      TraceBuilder t;
      const Handle x = t.value(finite(64).range(-size, size)), y = t.value(finite(64).range(-size, size));
      t.mark(TensorRole::kLoss, "loss", t.op(std::string(row.name), {{"self", x}, {"other", y}}, finite(8).nan(8)));
      return class_of(t);
    };
    EXPECT_EQ(nan_of(1), "unexplained") << row.name;
    EXPECT_EQ(nan_of(3e38), "overflow") << row.name;
  }
}

TEST(OpRows, that_only_hand_values_on_are_no_origin) {
  for (const OpInfo& row : op_rows()) {
    if (row.has(kArithmetic) || row.has(kWritesConstant) || !row.has(kKeepsMask) || row.has(kOverwritesAll)) continue;
    TraceBuilder t;
    const Handle bad = t.in("fc").op("exp", {{"self", t.value(finite().range(0, 100))}}, finite().inf(1));
    t.mark(TensorRole::kLoss, "loss", t.in("").op(std::string(row.name), {{"self", bad}}, finite().inf(1)));
    const Analysis analysis = analysis_of(t);
    ASSERT_EQ(analysis.findings.size(), 1U) << row.name;
    EXPECT_EQ(analysis.findings[0].place.op, "exp") << row.name;
  }
}

TEST(OpRows, that_write_a_constant_write_infinities_on_purpose) {
  for (const OpInfo& row : op_rows()) {
    if (!row.has(kWritesConstant)) continue;
    // given a mask of -Inf, which the softmax of a row without any other number makes NaN of
    TraceBuilder t;
    const Handle mask = t.op(std::string(row.name), {}, finite().neg_inf(8), {{"value", -HUGE_VAL}});
    t.mark(TensorRole::kLoss, "loss", t.in("attention").op("softmax", {{"self", mask}}, finite().nan(8)));
    const Analysis analysis = analysis_of(t);
    ASSERT_EQ(analysis.findings.size(), 1U) << row.name;
    EXPECT_EQ(analysis.findings[0].place.op, "softmax") << row.name;
    EXPECT_EQ(finding_class_name(analysis.findings[0].cls), "invalid") << row.name;
  }
}

TEST(OpRows, that_take_only_the_shape_of_their_input_do_not_hand_on_what_is_in_it) {
  for (const OpInfo& row : op_rows()) {
    if (!row.has(kReadsShape)) continue;
    // given an overflow that nothing uses but for its shape, and a constant that is infinite
    TraceBuilder t;
    const Handle bad = t.in("fc").op("exp", {{"self", t.value(finite().range(0, 100))}}, finite().inf(1));
    const Handle made =
        t.in("mask").op(std::string(row.name), {{"self", bad}}, finite().neg_inf(8), {{"fill_value", -HUGE_VAL}});
    t.mark(TensorRole::kLoss, "loss", made);
    for (const Finding& finding : analysis_of(t).findings) EXPECT_NE(finding.place.op, "exp") << row.name;
  }
}

TEST(OpRows, keep_infinities_of_scratch_outputs_from_being_an_origin) {
  std::size_t tried = 0;
  for (const OpInfo& row : op_rows()) {
    if (row.scratch == 0) continue;
    ++tried;
    std::size_t scratch = 0;
    while ((row.scratch >> scratch & 1) == 0) ++scratch;
    for (const bool in_scratch : {true, false}) {
      TraceBuilder t;
      std::vector<Numbers> outs(scratch + 1, finite());
      outs[in_scratch ? scratch : 0] = finite().neg_inf(2);
      const std::vector<Handle> made = t.op_with_outputs(std::string(row.name), {{"self", t.value(finite())}}, outs);
      // then what is made NaN of the scratch is the origin, and an infinite result of the op itself is one
      t.mark(TensorRole::kLoss, "loss",
             t.op("my_backward", {{"scratch", made[scratch]}, {"result", made[0]}}, finite().nan(1)));
      const Analysis analysis = analysis_of(t);
      ASSERT_EQ(analysis.findings.size(), 1U) << row.name;
      EXPECT_EQ(analysis.findings[0].place.op, in_scratch ? "my_backward" : std::string(row.name));
    }
  }
  EXPECT_GE(tried, 5U);
}

TEST(OpRows, name_gradients_by_the_op_they_belong_to) {
  for (const OpInfo& row : op_rows()) {
    if (row.forward.empty()) continue;
    EXPECT_TRUE(op_info(row.forward).known()) << row.name;
    EXPECT_EQ(forward_op(row.name), row.forward);
    EXPECT_NE(row.name.find("backward"), std::string_view::npos) << row.name;
  }
  EXPECT_EQ(forward_op("aten::_softmax_backward_data"), "_softmax");
  EXPECT_EQ(forward_op("threshold_backward"), "relu");
  EXPECT_EQ(forward_op("native_layer_norm_backward"), "native_layer_norm");
}

TEST(OpRows, form_eps_where_the_kernel_does) {
  EXPECT_EQ(eps_dtype(op_info("aten::native_layer_norm"), DType::kF16), DType::kF32);
  EXPECT_EQ(eps_dtype(op_info("aten::native_layer_norm"), DType::kF64), DType::kF64);
  EXPECT_EQ(eps_dtype(op_info("_fused_adamw_"), DType::kBF16), DType::kF32);
  EXPECT_EQ(eps_dtype(op_info("native_batch_norm"), DType::kF16, DType::kF16), DType::kF16);
  EXPECT_EQ(eps_dtype(op_info("native_batch_norm"), DType::kF32, DType::kF16), DType::kF32);
  EXPECT_EQ(eps_dtype(op_info("native_batch_norm"), DType::kF16, DType::kF32), DType::kF32);
  EXPECT_EQ(eps_dtype(op_info("_foreach_add_"), DType::kF16), DType::kF16);
  EXPECT_EQ(eps_dtype(op_info("my_norm"), DType::kF16), DType::kF16);
}

TEST(OpRows, know_a_list_of_tensors_as_the_op_on_each) {
  EXPECT_EQ(op_info("_foreach_addcdiv_").name, "addcdiv");
  EXPECT_EQ(op_info("aten::_foreach_norm.Scalar").name, "norm");
  EXPECT_FALSE(op_info("_foreach_").known());
}

TEST(OpRows, hold_the_dispatchers_names_of_common_models) {
  const std::initializer_list<const char*> names = {
      // ResNet, U-Net
      "convolution", "convolution_backward", "cudnn_batch_norm", "cudnn_batch_norm_backward", "native_batch_norm",
      "native_batch_norm_backward", "relu_", "threshold_backward", "max_pool2d_with_indices",
      "max_pool2d_with_indices_backward", "mean.dim", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward",
      "add_.Tensor", "upsample_nearest2d", "upsample_nearest2d_backward", "upsample_bilinear2d",
      "upsample_bilinear2d_backward", "cat", "native_group_norm", "native_group_norm_backward", "silu", "silu_backward",
      "leaky_relu", "leaky_relu_backward", "hardtanh", "hardtanh_backward", "hardswish_", "hardswish_backward",
      "constant_pad_nd", "slice_backward",
      // GPT, BERT
      "embedding", "embedding_dense_backward", "native_layer_norm", "native_layer_norm_backward", "addmm", "mm", "bmm",
      "baddbmm", "_softmax", "_softmax_backward_data", "masked_fill.Scalar", "tril", "gelu", "gelu_backward", "tanh",
      "tanh_backward", "native_dropout", "native_dropout_backward", "_scaled_dot_product_flash_attention",
      "_scaled_dot_product_flash_attention_backward", "_scaled_dot_product_efficient_attention",
      "_scaled_dot_product_efficient_attention_backward", "_safe_softmax", "split.Tensor", "transpose.int",
      "_unsafe_view", "select_backward", "rsqrt", "pow.Tensor_Scalar", "cos", "sin", "_fused_rms_norm",
      "_fused_rms_norm_backward",
      // recurrent layers
      "_cudnn_rnn", "_cudnn_rnn_backward", "_thnn_fused_lstm_cell", "_thnn_fused_lstm_cell_backward_impl", "lstm",
      "sigmoid", "sigmoid_backward", "mkldnn_rnn_layer", "_thnn_fused_gru_cell", "unbind.int", "stack",
      // losses
      "_log_softmax", "_log_softmax_backward_data", "nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward",
      "nll_loss2d_backward", "mse_loss", "mse_loss_backward", "smooth_l1_loss", "smooth_l1_loss_backward", "huber_loss",
      "huber_loss_backward", "binary_cross_entropy", "binary_cross_entropy_backward",
      "binary_cross_entropy_with_logits", "kl_div", "_ctc_loss", "_ctc_loss_backward", "cosine_embedding_loss",
      "_cdist_forward", "_cdist_backward",
      // optimizers, scaling, clipping
      "_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_", "_foreach_lerp_.Scalar",
      "_foreach_mul_.Scalar", "_foreach_addcmul_.Scalar", "_foreach_sqrt", "_foreach_div_.ScalarList",
      "_foreach_add_.Scalar", "_foreach_addcdiv_.ScalarList", "_foreach_norm.Scalar",
      "_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_", "linalg_vector_norm", "clamp", "clamp_max",
      "c10d::allreduce_"};
  for (const char* name : names) {
    EXPECT_TRUE(op_info(name).known()) << name;
    EXPECT_TRUE(op_info(std::string(name).starts_with("c10d") ? name : std::string("aten::") + name).known()) << name;
  }
}

}  // namespace
}  // namespace nanhunt::analyze
