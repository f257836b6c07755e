// SPDX-License-Identifier: Apache-2.0
// The pre-audit against the engine's optimizers: what it foresees is what the next step stores, element by element.
#include "src/hunt/pre_audit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "nanhunt/engine/optimizer.h"
#include "nanhunt/engine/random.h"
#include "nanhunt/tensor_stats.h"

namespace nanhunt::hunt {
namespace {

using engine::OptimizerImpl;
using engine::OptimizerOptions;
using engine::RandomStream;
using engine::Tensor;

constexpr std::int64_t kSize = 530;  // more than one chunk
const double kInf = std::numeric_limits<double>::infinity();

PreAuditOptions audit_options(const OptimizerOptions& o) {
  PreAuditOptions out;
  out.algorithm = o.algorithm;
  out.lr = o.lr;
  out.momentum = o.momentum;
  out.nesterov = o.nesterov;
  out.beta1 = o.beta1;
  out.beta2 = o.beta2;
  out.eps = o.eps;
  out.weight_decay = o.weight_decay;
  out.fused = o.impl == OptimizerImpl::kFused;
  return out;
}

std::int64_t count_bad(const Tensor& tensor) {
  const std::vector<double> values = tensor.to_vector();
  return std::count_if(values.begin(), values.end(), [](double x) { return !std::isfinite(x); });
}

double amax(const std::vector<double>& values) {
  double most = 0;
  for (double x : values) most = std::isnan(x) || x == kInf || x == -kInf ? kInf : std::max(most, std::fabs(x));
  return most;
}

// One parameter, its optimizer, and the audit's view of both.
struct Training {
  Training(const OptimizerOptions& o, DType dtype, const std::vector<double>& start)
      : options(o), parameter(Tensor::from_values(start, {kSize}, dtype)) {
    optimizer = engine::make_optimizer({{"w", parameter}}, options);
    for (const auto& [name, tensor] : optimizer->named_state()) state[name] = tensor;
  }
  Tensor find(const std::string& name) const {
    const auto it = state.find("w." + name);
    return it == state.end() ? Tensor() : it->second;
  }
  PreAudit audit(const Tensor& grad, double grad_amax) const {
    const Tensor master = find("master");
    const Tensor first = find(options.algorithm == "sgd" ? "momentum_buffer" : "exp_avg"), second = find("exp_avg_sq");
    PreAuditInput in;
    in.grad = grad.view();
    in.param = master.defined() ? master.view() : parameter.view();
    if (first.defined()) in.first = first.view();
    if (second.defined()) in.second = second.view();
    if (master.defined()) in.copied_to = parameter.dtype();
    in.step = steps + 1;
    in.grad_amax = grad_amax;
    in.memory = memory;
    return pre_audit(audit_options(options), in);
  }
  // What is foreseen is compared with what the step does.
  PreAudit step(const std::vector<double>& gradient, const std::string& words) {
    const Tensor grad = Tensor::from_values(gradient, {kSize}, parameter.dtype());
    const PreAudit foreseen = audit(grad, amax(grad.to_vector()));
    parameter.set_grad(grad);
    optimizer->step();
    ++steps;
    memory = foreseen.memory;
    std::vector<bool> bad(kSize);
    for (const auto& [name, tensor] : state) {
      if (name == "w.master") continue;
      const std::vector<double> values = tensor.to_vector();
      for (std::size_t i = 0; i < values.size(); ++i) bad[i] = bad[i] || !std::isfinite(values[i]);
    }
    EXPECT_EQ(foreseen.bad_updates, count_bad(parameter)) << words << " step " << steps;
    EXPECT_EQ(foreseen.bad_state, std::count(bad.begin(), bad.end(), true)) << words << " step " << steps;
    return foreseen;
  }

  OptimizerOptions options;
  Tensor parameter;
  std::unique_ptr<engine::Optimizer> optimizer;
  std::map<std::string, Tensor> state;
  std::int64_t steps = 0;
  PreAuditMemory memory = PreAuditMemory::new_state();
};

std::vector<double> draw(RandomStream& random, double scale, double zeros) {
  std::vector<double> values(kSize);
  for (double& v : values) {
    const double size = scale * std::exp2(random.uniform(-12, 4));
    v = random.uniform() < zeros ? 0 : random.uniform() < 0.5 ? size : -size;
  }
  return values;
}

std::string describe(const OptimizerOptions& o, DType dtype, double scale) {
  return o.algorithm + (o.impl == OptimizerImpl::kFused ? " fused " : " for-loop ") + std::string(dtype_name(dtype)) +
         (o.fp32_masters ? " masters" : "") + " eps " + std::to_string(o.eps) + " lr " + std::to_string(o.lr) +
         " gradients about " + std::to_string(scale);
}

// given optimizers of every kind, formats and sizes of gradients from harmless to hopeless,
// when each step is foreseen, then exactly the elements that go bad are counted.
TEST(PreAudit, foresees_exactly_what_the_next_step_stores) {
  RandomStream random(7, 1);
  int bad_steps = 0, good_steps = 0, unread = 0;
  for (int trial = 0; trial < 2500; ++trial) {
    const auto pick = [&](std::uint64_t n) { return random.below(n); };
    OptimizerOptions o;
    o.algorithm = std::vector<std::string>{"sgd", "adam", "adamw"}[pick(3)];
    o.impl = pick(2) == 0 ? OptimizerImpl::kForLoop : OptimizerImpl::kFused;
    o.lr = std::vector<double>{1e-4, 1e-2, 1, 1e3}[pick(4)];
    o.momentum = o.algorithm == "sgd" && pick(2) == 0 ? 0.9 : 0;
    o.nesterov = o.momentum > 0 && pick(2) == 0;
    o.beta1 = std::vector<double>{0.9, 0.4, 0}[pick(3)];
    o.beta2 = std::vector<double>{0.999, 0.95, 0.999999}[pick(3)];
    o.eps = std::vector<double>{1e-8, 0, 1e-4, 1e-40, 1e-30}[pick(5)];
    o.weight_decay = pick(3) == 0 ? 0.1 : 0;
    const DType dtype = std::vector<DType>{DType::kF16, DType::kBF16, DType::kF32, DType::kF64}[pick(4)];
    o.fp32_masters = dtype_size(dtype) == 2 && pick(2) == 0;
    const double span = dtype == DType::kF16 ? 14 : dtype == DType::kF64 ? 520 : 70;
    const double scale = std::exp2(random.uniform(-span, pick(4) == 0 ? span : 0));
    const std::string words = describe(o, dtype, scale);

    Training training(o, dtype, draw(random, 1, 0.1));
    for (int step = 0; step < 4; ++step) {
      std::vector<double> gradient = draw(random, scale, 0.3);
      if (pick(40) == 0) gradient[5] = pick(2) == 0 ? kInf : std::nan("");
      const PreAudit foreseen = training.step(gradient, words);
      ++(foreseen.bad() ? bad_steps : good_steps);
      unread += foreseen.read_elements ? 0 : 1;
      if (foreseen.bad() || HasFailure()) break;
    }
    if (HasFailure()) break;
  }
  EXPECT_GT(bad_steps, 400);
  EXPECT_GT(good_steps, 2000);
  EXPECT_GT(unread, 1200);
}

TEST(PreAudit, counts_the_denominators_that_round_to_zero_apart) {
  // eps 1e-8 is 0 in fp16, and so is the square of a gradient of 1e-3.
  OptimizerOptions o;
  Training training(o, DType::kF16, std::vector<double>(kSize, 1.0));
  std::vector<double> gradient(kSize, 0.0);
  for (std::size_t i = 0; i < 20; ++i) gradient[i] = 1e-3;
  for (std::size_t i = 20; i < 30; ++i) gradient[i] = 1;

  const PreAudit foreseen = training.step(gradient, "fp16");

  EXPECT_TRUE(foreseen.read_elements);
  EXPECT_EQ(foreseen.x_over_zero, 20);
  EXPECT_EQ(foreseen.zero_over_zero, kSize - 30);
  EXPECT_EQ(foreseen.bad_denominators, 0);
  EXPECT_EQ(foreseen.bad_updates, kSize - 10);
  EXPECT_EQ(foreseen.first_index, 0);
  EXPECT_TRUE(foreseen.triggers());
}

TEST(PreAudit, reads_nothing_of_healthy_fp32_state) {
  for (const char* algorithm : {"sgd", "adam", "adamw"}) {
    for (const bool masters : {false, true}) {
      OptimizerOptions o;
      o.algorithm = algorithm;
      o.weight_decay = 0.01;
      o.fp32_masters = masters;
      Training training(o, masters ? DType::kF16 : DType::kF32, std::vector<double>(kSize, 1.0));
      // A master is read once: nobody knows yet how large it is.
      for (int step = 0; step < 200; ++step) {
        EXPECT_EQ(training.step(std::vector<double>(kSize, 3.0 - step), algorithm).read_elements, masters && step == 0)
            << algorithm << " step " << step;
      }
    }
  }
}

TEST(PreAudit, reads_elements_once_the_state_is_not_known_and_then_knows_it) {
  OptimizerOptions o;
  Training training(o, DType::kF32, std::vector<double>(kSize, 1.0));
  training.memory = {};
  EXPECT_TRUE(training.step(std::vector<double>(kSize, 1.0), "unknown").read_elements);
  EXPECT_FALSE(training.step(std::vector<double>(kSize, 1.0), "known").read_elements);
}

TEST(PreAudit, sees_a_master_grow_past_the_parameter_that_it_is_copied_to) {
  for (const char* algorithm : {"sgd", "adam", "adamw"}) {
    OptimizerOptions o;
    o.algorithm = algorithm;
    o.lr = o.algorithm == "sgd" ? 0.1 : 10;
    o.fp32_masters = true;
    Training training(o, DType::kF16, std::vector<double>(kSize, 60000.0));
    std::int64_t bad = 0;
    int step = 0, read = 0;
    for (; bad == 0 && step < 2000; ++step) {
      const PreAudit foreseen = training.step(std::vector<double>(kSize, -100.0), algorithm);
      bad = foreseen.bad_updates;
      read += foreseen.read_elements;
    }
    EXPECT_EQ(bad, kSize) << algorithm;
    EXPECT_GT(step, 500) << algorithm;
    EXPECT_LT(read, step) << algorithm;
  }
}

TEST(PreAudit, leaves_alone_what_does_not_fit_together) {
  const Tensor grad = Tensor::zeros({4}, DType::kF16), other = Tensor::zeros({5}, DType::kF16);
  PreAuditInput in;
  in.grad = grad.view();
  in.param = in.first = in.second = other.view();
  EXPECT_FALSE(pre_audit({}, in).triggers());
  EXPECT_FALSE(pre_audit({}, {}).read_elements);
  PreAuditOptions unknown;
  unknown.algorithm = "lion";
  in.param = in.first = in.second = grad.view();
  EXPECT_FALSE(pre_audit(unknown, in).triggers());
  EXPECT_EQ(pre_audit({}, in).zero_over_zero, 4);
}

TEST(PreAudit, follows_strides_of_a_gradient) {
  const Tensor wide = Tensor::from_values(std::vector<double>{0, 9, 1, 9, 0, 9, 2, 9}, {4, 2}, DType::kF16);
  const std::int64_t sizes[] = {4}, strides[] = {2}, dense[] = {1};
  const Tensor zeros = Tensor::zeros({4}, DType::kF16);
  PreAuditInput in;
  in.grad = {wide.view().data, DType::kF16, sizes, strides};
  in.param = in.first = in.second = {zeros.view().data, DType::kF16, sizes, dense};
  EXPECT_EQ(pre_audit({}, in).zero_over_zero, 2);
}

}  // namespace
}  // namespace nanhunt::hunt
