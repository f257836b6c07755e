// SPDX-License-Identifier: Apache-2.0
#include "src/hunt/reference_optimizer.h"

#include <cmath>
#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>

namespace nanhunt::hunt {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// One parameter of one element, its gradients in turn; returns where it ends.
double train(const ReferenceOptions& options, double p, std::vector<double> gradients) {
  ReferenceOptimizer optimizer(options);
  for (double g : gradients) p += optimizer.update(0, std::vector<double>{p}, std::vector<double>{g})[0];
  return p;
}

TEST(ReferenceOptimizer, plain_sgd_follows_the_gradient) {
  EXPECT_DOUBLE_EQ(train({.algorithm = "sgd", .lr = 0.5}, 1, {2, -1}), 1 - 0.5 * 2 + 0.5 * 1);
}

TEST(ReferenceOptimizer, sgd_decays_by_adding_to_the_gradient) {
  EXPECT_DOUBLE_EQ(train({.algorithm = "sgd", .lr = 0.5, .weight_decay = 0.1}, 10, {2}), 10 - 0.5 * (2 + 0.1 * 10));
}

TEST(ReferenceOptimizer, momentum_starts_as_the_first_gradient) {
  const double p = train({.algorithm = "sgd", .lr = 0.1, .momentum = 0.9}, 0, {1, 2});
  EXPECT_DOUBLE_EQ(p, -0.1 * 1 - 0.1 * (0.9 * 1 + 2));
}

TEST(ReferenceOptimizer, nesterov_looks_ahead) {
  const double p = train({.algorithm = "sgd", .lr = 0.1, .momentum = 0.9, .nesterov = true}, 0, {1, 2});
  EXPECT_DOUBLE_EQ(p, -0.1 * (1 + 0.9 * 1) - 0.1 * (2 + 0.9 * (0.9 * 1 + 2)));
}

TEST(ReferenceOptimizer, adams_first_step_is_lr_times_the_sign) {
  // m / (1 - b1) = g and v / (1 - b2) = g^2.
  const double g = -3e-3, eps = 1e-8;
  EXPECT_NEAR(train({.lr = 1e-2}, 0, {g}), -1e-2 * g / (std::abs(g) + eps), 1e-15);
}

TEST(ReferenceOptimizer, adam_follows_o2_over_several_steps) {
  const ReferenceOptions o{.lr = 1e-3, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3};
  const std::vector<double> gradients = {0.5, -0.25, 1e-4, 2};
  double p = 1, m = 0, v = 0;
  for (std::size_t t = 1; t <= gradients.size(); ++t) {
    const double g = gradients[t - 1];
    m = m + (1 - 0.8) * (g - m);
    v = 0.95 * v + (1 - 0.95) * g * g;
    const auto n = static_cast<double>(t);
    p -= (1e-3 / (1 - std::pow(0.8, n))) * m / (std::sqrt(v) / std::sqrt(1 - std::pow(0.95, n)) + 1e-3);
  }
  EXPECT_NEAR(train(o, 1, gradients), p, 1e-15);
}

TEST(ReferenceOptimizer, adam_decays_through_the_gradient_and_adamw_beside_it) {
  const ReferenceOptions adam{.algorithm = "adam", .lr = 0.1, .eps = 0, .weight_decay = 0.5};
  EXPECT_NEAR(train(adam, 4, {0}), 4 - 0.1, 1e-12);  // the decay alone is a gradient of 2
  const ReferenceOptions adamw{.algorithm = "adamw", .lr = 0.1, .eps = 0, .weight_decay = 0.5};
  EXPECT_NEAR(train(adamw, 4, {0}), 4 * (1 - 0.1 * 0.5), 1e-12);
  EXPECT_NEAR(train(adamw, 4, {-7}), 4 * (1 - 0.1 * 0.5) + 0.1, 1e-12);
}

TEST(ReferenceOptimizer, a_weight_that_never_had_a_gradient_stays_put_even_without_eps) {
  EXPECT_EQ(train({.eps = 0}, 1, {0, 0, 0}), 1);
}

TEST(ReferenceOptimizer, parameters_have_their_own_moments) {
  ReferenceOptimizer optimizer({.algorithm = "sgd", .lr = 1, .momentum = 1});
  const std::vector<double> two = {0, 0}, ones = {1, 1}, one = {0}, g = {5};
  optimizer.update(1, two, ones);
  EXPECT_EQ(optimizer.update(0, one, g)[0], -5);
  EXPECT_EQ(optimizer.update(1, two, ones)[1], -2);
  EXPECT_THROW(optimizer.update(1, one, g), std::invalid_argument);
  EXPECT_THROW(optimizer.update(0, one, ones), std::invalid_argument);
}

TEST(NormFactor, says_how_far_apart_two_norms_are) {
  EXPECT_EQ(norm_factor(2, 1), 2);
  EXPECT_EQ(norm_factor(1, 2), 2);
  EXPECT_EQ(norm_factor(0, 0), 1);
  EXPECT_EQ(norm_factor(0, 1), kInf);
  EXPECT_EQ(norm_factor(1, 0), kInf);
  EXPECT_EQ(norm_factor(kInf, 1), kInf);
  EXPECT_EQ(norm_factor(std::nan(""), 1), kInf);
}

TEST(UpdateFactor, says_how_far_an_update_is_off_in_length_and_in_direction) {
  const std::vector<double> right = {3, 4}, longer = {6, 8}, turned = {4, 3}, across = {4, -3}, back = {-3, -4},
                            none = {0, 0};
  EXPECT_DOUBLE_EQ(update_factor(right, right), 1);
  EXPECT_DOUBLE_EQ(update_factor(longer, right), 2);
  EXPECT_DOUBLE_EQ(update_factor(turned, right), 25.0 / 24);
  EXPECT_EQ(update_factor(across, right), kInf);
  EXPECT_EQ(update_factor(back, right), kInf);
  EXPECT_EQ(update_factor(none, none), 1);
  EXPECT_EQ(update_factor(none, right), kInf);
  EXPECT_EQ(update_factor(std::vector<double>{std::nan(""), 0}, right), kInf);
  EXPECT_THROW(update_factor(std::vector<double>{1}, right), std::invalid_argument);
}

}  // namespace
}  // namespace nanhunt::hunt
