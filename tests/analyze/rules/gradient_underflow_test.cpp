// SPDX-License-Identifier: Apache-2.0
// Gradients that a 16-bit format stores as 0: most layers over several steps, and what does not count as such.
#include <gtest/gtest.h>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;

struct Backward {
  DType dtype = DType::kF16;
  std::int64_t more_lost_a_step = 0;           // than in the step before
  std::int64_t zeros = 60, subnormals = 30;    // of 100 elements of each layer's gradient
  std::int64_t zeros_in = 0;                   // of its operands, each
  std::vector<int> layers = {0, 1, 2};         // that lose them
  int steps = 6;
  int others = 0;                              // steps after each of them that lose nothing
  std::int64_t lost_at_the_loss = 0;           // of 100, on the way into `dtype`; what comes after stays 0
  const char* loss_op = "_to_copy_backward";
  double scale = 0;
};
Analysis backward(const Backward& b) {
  TraceBuilder t;
  const auto numbers = [](DType dtype, std::int64_t zeros) { return finite(100).as(dtype).zeros(zeros); };
  for (int step = 0; step < b.steps; ++step) {
    if (b.scale > 0) {
      ScalerRecord record;
      record.action = ScalerAction::kScale;
      record.scale = b.scale;
      t.scaler(record);
    }
    Handle g = t.value(numbers(DType::kF32, 0));
    g = t.in("<loss>", Phase::kBackward)
            .op(b.loss_op, {{"grad_output", g}}, numbers(b.dtype, b.lost_at_the_loss), {},
                "grad_self");
    for (int layer = 0; layer < 3; ++layer) {
      const bool loses = std::find(b.layers.begin(), b.layers.end(), layer) != b.layers.end();
      const Handle in = b.lost_at_the_loss > 0 ? g : t.value(numbers(b.dtype, b.zeros_in));
      const Handle weight = t.value(numbers(b.dtype, b.zeros_in));
      const Handle activations = t.value(numbers(b.dtype, 90));  // of no matter to the gradient by them
      const Numbers out = b.lost_at_the_loss > 0 ? numbers(b.dtype, b.lost_at_the_loss)
                          : loses ? numbers(b.dtype, b.zeros + step * b.more_lost_a_step).subnormals(b.subnormals)
                                  : numbers(b.dtype, 0);
      t.in("fc" + std::to_string(layer), Phase::kBackward)
          .op("mm_backward",
              {{"grad_output", in}, {"self", activations, ArgRole::kSaved}, {"mat2", weight, ArgRole::kSaved}}, out, {},
              "grad_self");
    }
    t.end_step(1, b.scale > 0 ? b.scale : 1);
    for (int other = 0; other < b.others; ++other) {
      const Handle whole = t.value(numbers(b.dtype, 0));
      t.in("fc0", Phase::kBackward).op("mm_backward", {{"grad_output", whole}}, numbers(b.dtype, 0), {}, "grad_self");
      t.end_step();
    }
  }
  return analysis_of(t);
}

TEST(GradientUnderflow, of_most_layers_over_several_steps_is_a_warning_that_names_the_op_that_lost_most) {
  const Analysis a = backward({});
  EXPECT_EQ(table(a), "warning underflow | mm_backward | fc0 | backward | step 0 | unknown | observed\n");
  const Finding& f = a.findings.at(0);
  EXPECT_EQ(f.title, "Gradients vanish in fp16 without loss scaling: 3 of 4 layers lose at least 10% of theirs");
  EXPECT_NE(f.evidence.at(0).find("fc1 (60% lost, 90% lost or subnormal, from step 0)"), std::string::npos)
      << f.evidence.at(0);
  EXPECT_EQ(f.also, (std::vector<std::string>{"fc1", "fc2"}));
  EXPECT_EQ(f.occurrence_count, 6u);
  EXPECT_EQ(f.advice.at(0).id, "loss-scaling");
  EXPECT_EQ(f.output->stats.zero, 60);
}

TEST(GradientUnderflow, shows_the_numbers_of_the_step_that_it_names) {
  const Analysis a = backward({.more_lost_a_step = 1});
  ASSERT_EQ(a.findings.size(), 1u);
  const Finding& f = a.findings[0];
  EXPECT_EQ(f.place.step, 0u);
  EXPECT_EQ(f.output->stats.zero, 60);
  EXPECT_NE(f.evidence.at(1).find("65 of 100 in step 5"), std::string::npos) << f.evidence.at(1);
  EXPECT_EQ(f.advice.at(1).why, "bf16 keeps numbers down to 1e-38, so these do not become 0.");
}

TEST(GradientUnderflow, is_not_said_of_formats_layers_steps_or_zeros_that_do_not_show_it) {
  EXPECT_EQ(table(backward({.dtype = DType::kF32})), "clean\n");
  EXPECT_EQ(table(backward({.layers = {1}})), "clean\n");
  EXPECT_EQ(table(backward({.steps = 4})), "clean\n");
  EXPECT_EQ(table(backward({.zeros = 5})), "clean\n");
  EXPECT_EQ(table(backward({.steps = 20, .others = 9})), "clean\n");  // now and then in a long run
  EXPECT_EQ(table(backward({.subnormals = 0, .layers = {}})), "clean\n");
  // zeros that zeros of both operands may explain
  EXPECT_EQ(table(backward({.zeros_in = 30})), "clean\n");
}

TEST(GradientUnderflow, is_not_said_of_products_with_a_0_that_the_program_wrote) {
  const auto times = [](double factor) {
    TraceBuilder t;
    for (int step = 0; step < 6; ++step) {
      for (int layer = 0; layer < 3; ++layer) {
        const Handle g = t.value(finite(100).as(DType::kF16));
        t.in("fc" + std::to_string(layer), Phase::kBackward)
            .op("mul", {{"self", g}}, finite(100).as(DType::kF16).zeros(100).range(0, 0), {{"other", factor}});
      }
      t.end_step();
    }
    return table(analysis_of(t));
  };
  EXPECT_EQ(times(0), "clean\n");
  EXPECT_NE(times(1e-9), "clean\n");
}

TEST(GradientUnderflow, that_leaves_nothing_to_learn_from_is_a_fault) {
  // given gradients that all vanish on their way into fp16: what comes after gets exact zeros
  const Analysis a = backward({.lost_at_the_loss = 100});
  EXPECT_EQ(table(a), "underflow | _to_copy_backward | <loss> | backward | step 0 | unknown | observed\n");
  EXPECT_NE(a.findings.at(0).title.find("training stands still"), std::string::npos);
}

TEST(GradientUnderflow, of_nearly_all_at_one_op_counts_the_layers_that_get_what_is_left) {
  const Analysis a = backward({.lost_at_the_loss = 96, .loss_op = "sub_backward"});
  EXPECT_EQ(table(a), "warning underflow | sub_backward | <loss> | backward | step 0 | unknown | observed\n");
  EXPECT_EQ(a.findings.at(0).also, (std::vector<std::string>{"fc0", "fc1", "fc2"}));
}

TEST(GradientUnderflow, under_a_scale_that_is_too_small_says_so) {
  const Analysis a = backward({.scale = 16});
  ASSERT_EQ(a.findings.size(), 1u);
  EXPECT_EQ(a.findings[0].advice.at(0).id, "raise-loss-scale");
  EXPECT_NE(a.findings.at(0).title.find("in spite of the loss scale 16"), std::string::npos);
}

}  // namespace
}  // namespace nanhunt
