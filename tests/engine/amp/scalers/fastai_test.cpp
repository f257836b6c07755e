// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/amp/scalers/driven.h"

namespace nanhunt::engine::testing {
namespace {

// fp16 weights with masters, and gradients that a test sets.
struct Half {
  explicit Half(const FastaiScalerOptions& options) : scaler(make_scaler(options)) {
    optimizer = make_optimizer({{"w", weight}}, {.algorithm = "sgd", .lr = 1, .momentum = 0.5, .fp32_masters = true});
  }
  bool step(double gradient) {
    optimizer->zero_grad();
    weight.set_grad(Tensor::full({2}, gradient, DType::kF16));
    scaler->scale(Tensor::full({}, 1, DType::kF32));
    const bool ran = scaler->step(*optimizer);
    scaler->update();
    return ran;
  }
  double master() const { return optimizer->stepped()[0].tensor.at(0); }

  Tensor weight = Tensor::zeros({2}, DType::kF16).set_requires_grad(true);
  std::unique_ptr<LossScaler> scaler;
  std::unique_ptr<Optimizer> optimizer;
};

const double kInf = std::numeric_limits<double>::infinity();

TEST(FastaiScaler, steps_without_gradients_after_an_overflow_so_momentum_may_still_move_the_weights) {
  Half run({.loss_scale = 4});
  // given an overflow before the masters had a gradient: nothing moves
  EXPECT_TRUE(run.step(kInf));
  EXPECT_EQ(run.master(), 0);
  EXPECT_EQ(run.scaler->get_scale(), 2);
  // when a clean step gave momentum
  run.step(2);
  EXPECT_EQ(run.master(), -1);
  // then an overflow moves weights by what is left of it
  EXPECT_TRUE(run.step(kInf));
  EXPECT_EQ(run.master(), -1.5);
}

TEST(FastaiScaler, at_a_scale_of_1_it_no_longer_looks) {
  Half run({.loss_scale = 1});
  run.step(kInf);
  EXPECT_TRUE(std::isinf(run.master()));
}

TEST(FastaiScaler, a_static_one_divides_by_512_and_never_looks) {
  Half run({.dynamic = false});
  run.step(512);
  EXPECT_EQ(run.master(), -1);
  EXPECT_EQ(run.weight.at(1), -1);
  run.step(kInf);
  EXPECT_TRUE(std::isinf(run.weight.at(0)));
  EXPECT_EQ(run.scaler->get_scale(), 512);
}

}  // namespace
}  // namespace nanhunt::engine::testing
