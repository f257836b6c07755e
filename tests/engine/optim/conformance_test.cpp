// SPDX-License-Identifier: Apache-2.0
// Optimizers against the formulas of torch.optim written out in double, and 16-bit state against what each stored
// intermediate rounds to.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nanhunt/engine/optimizer.h"
#include "nanhunt/engine/random.h"

namespace nanhunt::engine {
namespace {

constexpr int kSize = 7, kStepCount = 12;

std::vector<double> draw(std::uint64_t stream, double scale) {
  RandomStream random(42, stream);
  std::vector<double> values(kSize);
  for (double& v : values) v = scale * random.normal();
  return values;
}

// The formulas, one element at a time, in double.
struct Formula {
  OptimizerOptions o;
  std::vector<double> p, m = std::vector<double>(kSize), v = std::vector<double>(kSize);
  int t = 0;

  void step(const std::vector<double>& grad) {
    ++t;
    for (std::size_t i = 0; i < kSize; ++i) {
      double g = grad[i];
      if (o.algorithm == "sgd") {
        g += o.weight_decay * p[i];
        m[i] = t == 1 ? g : o.momentum * m[i] + g;
        const double direction = o.momentum == 0 ? g : o.nesterov ? g + o.momentum * m[i] : m[i];
        p[i] -= o.lr * direction;
        continue;
      }
      if (o.algorithm == "adamw") {
        p[i] *= 1 - o.lr * o.weight_decay;
      } else {
        g += o.weight_decay * p[i];
      }
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * g * g;
      const double mhat = m[i] / (1 - std::pow(o.beta1, t)), vhat = v[i] / (1 - std::pow(o.beta2, t));
      p[i] -= o.lr * mhat / (std::sqrt(vhat) + o.eps);
    }
  }
};

struct Case {
  std::string name;
  OptimizerOptions options;
};

std::vector<Case> cases() {
  std::vector<Case> base = {
      {"sgd", {.algorithm = "sgd", .lr = 0.1}},
      {"sgd_decay", {.algorithm = "sgd", .lr = 0.1, .weight_decay = 0.05}},
      {"sgd_momentum", {.algorithm = "sgd", .lr = 0.1, .momentum = 0.9}},
      {"sgd_nesterov_decay", {.algorithm = "sgd", .lr = 0.1, .momentum = 0.8, .nesterov = true, .weight_decay = 0.02}},
      {"adam", {.algorithm = "adam", .lr = 0.01}},
      {"adam_l2", {.algorithm = "adam", .lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1}},
      {"adamw", {.algorithm = "adamw", .lr = 0.01, .weight_decay = 0.1}},
  };
  std::vector<Case> all;
  for (const Case& c : base) {
    all.push_back(c);
    all.back().name += "_for_loop";
    all.push_back(c);
    all.back().name += "_fused";
    all.back().options.impl = OptimizerImpl::kFused;
  }
  return all;
}

class Conformance : public ::testing::TestWithParam<Case> {
 protected:
  // Runs both and returns the largest relative error of the parameter over all steps.
  double largest_error(DType dtype, double gradient_scale = 1) {
    OptimizerOptions options = GetParam().options;
    Tensor parameter = Tensor::from_values(draw(0, 1), {kSize}, dtype).set_requires_grad(true);
    auto optimizer = make_optimizer({{"w", parameter}}, options);
    Formula formula{.o = options, .p = parameter.to_vector()};
    double worst = 0;
    for (int step = 1; step <= kStepCount; ++step) {
      const Tensor grad = Tensor::from_values(draw(static_cast<std::uint64_t>(step), gradient_scale), {kSize}, dtype);
      parameter.set_grad(grad);
      optimizer->step();
      formula.step(grad.to_vector());
      for (std::int64_t i = 0; i < kSize; ++i) {
        const double expected = formula.p[static_cast<std::size_t>(i)];
        worst = std::max(worst, std::fabs(parameter.at(i) - expected) / std::max(1e-2, std::fabs(expected)));
      }
    }
    return worst;
  }
};
INSTANTIATE_TEST_SUITE_P(Optimizers, Conformance, ::testing::ValuesIn(cases()),
                         [](const auto& given) { return given.param.name; });

TEST_P(Conformance, follows_the_formula_in_fp64) { EXPECT_LT(largest_error(DType::kF64), 1e-12); }

// A dozen roundings of 2^-24, relative to numbers of at least 1e-2.
TEST_P(Conformance, follows_the_formula_in_fp32) { EXPECT_LT(largest_error(DType::kF32), 2e-5); }

TEST_P(Conformance, with_fp32_masters_steps_an_fp32_copy_and_rounds_it_back) {
  for (DType low : {DType::kF16, DType::kBF16}) {
    // given a 16-bit parameter with a master, and an fp32 parameter that starts from the same numbers
    OptimizerOptions options = GetParam().options;
    Tensor wide = Tensor::zeros({kSize}, DType::kF32).set_requires_grad(true);
    Tensor narrow = Tensor::from_values(draw(0, 1), {kSize}, low).set_requires_grad(true);
    wide.copy_from(narrow);
    auto plain = make_optimizer({{"w", wide}}, options);
    options.fp32_masters = true;
    auto mastered = make_optimizer({{"w", narrow}}, options);
    for (int step = 1; step <= kStepCount; ++step) {
      // when both see the same 16-bit gradient
      const Tensor grad = Tensor::from_values(draw(static_cast<std::uint64_t>(step), 1), {kSize}, low);
      narrow.set_grad(grad);
      Tensor wide_grad = Tensor::zeros({kSize}, DType::kF32);
      wide_grad.copy_from(grad);
      wide.set_grad(wide_grad);
      plain->step();
      mastered->step();
      // then the master is the fp32 run bit for bit, and the parameter is the master rounded once
      const NamedTensor master = mastered->named_state().back();
      ASSERT_EQ(master.path, "w.master");
      EXPECT_EQ(master.tensor.to_vector(), wide.to_vector());
      for (std::int64_t i = 0; i < kSize; ++i) EXPECT_EQ(narrow.at(i), round_to(low, wide.at(i)));
    }
  }
}

// ---- 16-bit state: one element, one or two steps ----

struct Element {
  Tensor parameter;
  std::unique_ptr<Optimizer> optimizer;

  Element(double p, OptimizerOptions options, DType dtype = DType::kF16)
      : parameter(Tensor::full({1}, p, dtype).set_requires_grad(true)),
        optimizer(make_optimizer({{"w", parameter}}, options)) {}
  void step(double gradient) {
    parameter.set_grad(Tensor::full({1}, gradient, parameter.dtype()));
    optimizer->step();
  }
  double state(std::string_view name) const {
    for (const NamedTensor& entry : optimizer->named_state()) {
      if (entry.path == "w." + std::string(name)) return entry.tensor.item();
    }
    ADD_FAILURE() << "no state " << name;
    return 0;
  }
};

TEST(PureFp16Adam, stores_v_as_0_up_to_5_46e_3_and_moves_the_weight_to_infinity) {
  // v = 0, eps 1e-8 rounds to 0 when the sum is stored, m/0 = inf
  Element w(1, {.lr = 1e-3});
  w.step(5.4e-3);
  EXPECT_EQ(w.state("exp_avg_sq"), 0);
  EXPECT_GT(w.state("exp_avg"), 0);
  EXPECT_EQ(w.parameter.item(), -std::numeric_limits<double>::infinity());
}

TEST(PureFp16Adam, with_eps_1e_4_stops_the_infinity_and_steps_54_times_too_far) {
  // m/(sqrt(0)+1e-4) = 5.40, where m = 0.1 g; the bias correction multiplies by 10, and Adam should step by lr
  constexpr double kLr = 1e-3;
  Element w(0, {.lr = kLr, .eps = 1e-4});
  w.step(5.4e-3);
  EXPECT_EQ(w.state("exp_avg_sq"), 0);
  EXPECT_NEAR(w.parameter.item() / kLr, -54.0, 0.2);
}

TEST(PureFp16Adam, divides_0_by_0_for_a_weight_without_gradient) {
  Element w(1, {.lr = 1e-3});
  w.step(0);
  EXPECT_TRUE(std::isnan(w.parameter.item()));
  // and leaves it alone with an eps that fp16 can hold
  Element kept(1, {.lr = 1e-3, .eps = 1e-4});
  kept.step(0);
  EXPECT_EQ(kept.parameter.item(), 1);
}

TEST(PureFp16Adam, loses_the_first_v_below_the_square_that_fp16_keeps) {
  // beta2 0.999: |g| <= 5.4592e-3; beta2 0.99: |g| <= 1.7263e-3
  for (const auto& [beta2, lost, kept] :
       {std::tuple{0.999, 5.4588e-3, 5.4665e-3}, std::tuple{0.99, 1.7252e-3, 1.7281e-3}}) {
    Element below(1, {.beta2 = beta2, .eps = 1e-4}), above(1, {.beta2 = beta2, .eps = 1e-4});
    below.step(-lost);
    above.step(-kept);
    EXPECT_EQ(below.state("exp_avg_sq"), 0) << lost;
    EXPECT_EQ(above.state("exp_avg_sq"), 0x1p-24) << kept;
  }
}

TEST(FusedFp16Adam, keeps_eps_in_fp32_but_still_loses_v_between_steps) {
  // Only the storage is fp16. First step: v is used before it is stored, so the step is right ...
  Element w(0, {.lr = 1e-3, .impl = OptimizerImpl::kFused});
  w.step(1e-4);
  EXPECT_NEAR(w.parameter.item(), -1e-3, 1e-5);
  EXPECT_EQ(w.state("exp_avg_sq"), 0);
  // ... second step without gradient: m/(0 + 1e-8) explodes: 1e-3/0.19 * 9e-6/1e-8 = 4.7
  w.step(0);
  EXPECT_NEAR(w.parameter.item(), -4.7, 0.1);
  // and nothing was ever 0/0
  Element idle(1, {.lr = 1e-3, .impl = OptimizerImpl::kFused});
  idle.step(0);
  EXPECT_EQ(idle.parameter.item(), 1);
}

TEST(Fp32Masters, cure_what_pure_fp16_breaks) {
  for (OptimizerImpl impl : {OptimizerImpl::kForLoop, OptimizerImpl::kFused}) {
    Element w(1, {.lr = 1e-2, .impl = impl, .fp32_masters = true});
    w.step(5.4e-3);
    EXPECT_NEAR(w.parameter.item(), 0.99, 5e-4);  // one step of lr
    w.step(0);
    EXPECT_TRUE(std::isfinite(w.parameter.item()));
    Element idle(1, {.lr = 1e-2, .impl = impl, .fp32_masters = true});
    idle.step(0);
    EXPECT_EQ(idle.parameter.item(), 1);
  }
}

TEST(Fp32Masters, keep_small_updates_that_a_16_bit_weight_would_lose) {
  // 1e-4 is below half an ulp of 1 in bf16 (2^-9): without a master the weight never moves
  Element plain(1, {.algorithm = "sgd", .lr = 1e-4}, DType::kBF16);
  Element mastered(1, {.algorithm = "sgd", .lr = 1e-4, .fp32_masters = true}, DType::kBF16);
  for (int i = 0; i < 100; ++i) {
    plain.step(1);
    mastered.step(1);
  }
  EXPECT_EQ(plain.parameter.item(), 1);
  EXPECT_NEAR(mastered.state("master"), 0.99, 1e-5);
  EXPECT_EQ(mastered.parameter.item(), round_to(DType::kBF16, mastered.state("master")));
}

// Every stored intermediate of the for-loop form, rounded by hand.
TEST(PureFp16Adam, rounds_each_stored_intermediate) {
  const auto fp16 = [](float x) { return static_cast<float>(round_to(DType::kF16, x)); };
  const OptimizerOptions o{.lr = 1e-2, .eps = 1e-4};
  Element w(0.7, o);
  float p = fp16(0.7F), m = 0, v = 0;
  RandomStream random(11, 0);
  for (int t = 1; t <= 20; ++t) {
    const float g = fp16(static_cast<float>(0.05 * random.normal()));
    w.step(g);
    m = fp16(m + static_cast<float>(1 - o.beta1) * (g - m));
    v = fp16(v * static_cast<float>(o.beta2));
    v = fp16(v + static_cast<float>(1 - o.beta2) * g * g);
    float denominator = fp16(std::sqrt(v));
    denominator = fp16(denominator / static_cast<float>(std::sqrt(1 - std::pow(o.beta2, t))));
    denominator = fp16(denominator + static_cast<float>(o.eps));
    p = fp16(p + static_cast<float>(-(o.lr / (1 - std::pow(o.beta1, t)))) * m / denominator);
    ASSERT_EQ(w.state("exp_avg"), m) << "step " << t;
    ASSERT_EQ(w.state("exp_avg_sq"), v) << "step " << t;
    ASSERT_EQ(w.parameter.item(), p) << "step " << t;
  }
}

}  // namespace
}  // namespace nanhunt::engine
