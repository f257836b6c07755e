// SPDX-License-Identifier: Apache-2.0
#include "src/record/measure/lost_updates.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <utility>

#include "kernels/portable/update_kernels.h"
#include "tests/record/support.h"
#include "tests/support/emulated_grid.h"

namespace nanhunt::record {
namespace {

using testing::TestTensor;

// The kernel that looks where the host cannot read, run here over the same contents.
void expect_the_same_of_a_device(OpEvent event, std::vector<OpInput> inputs, std::vector<OpOutput> outputs,
                                 const std::optional<LostUpdates>& expected) {
  std::map<const TensorView*, const void*> contents;
  for (OpInput& in : inputs) contents[&in.value.tensor] = std::exchange(in.value.tensor.data, nullptr);
  for (OpOutput& out : outputs) contents[&out.value.tensor] = std::exchange(out.value.tensor.data, nullptr);
  event.inputs = inputs;
  event.outputs = outputs;
  const auto late = deferred_update(event);
  // Without data on the host as well there is nothing to compare.
  for (const TensorView* view : {late ? late->self : nullptr, late ? late->a : nullptr, late ? late->b : nullptr}) {
    if (view != nullptr && contents.at(view) == nullptr) return;
  }
  ASSERT_EQ(late.has_value(), expected.has_value()) << event.op;
  if (!late) return;
  const auto array = [&](const TensorView* view) {
    kernels::DeviceArray out;
    if (view == nullptr) return out;
    out.dtype = view->dtype;
    out.data = const_cast<void*>(contents.at(view));
    return out;
  };
  kernels::DeviceUpdates found;
  kernels::cuda::LostUpdatesKernel::Memory memory{};
  const kernels::cuda::LostUpdatesKernel kernel{
      {late->formula, late->self->numel(), array(late->self), array(late->a), array(late->b)}, &memory, &found};
  std::optional<kernels::DeviceUpdates> first;
  testing_support::run_in_all_orders(kernel, kernel.blocks(), kernel.kThreads, [&] {
    EXPECT_EQ(static_cast<std::int64_t>(found.updates), expected->updates) << event.op;
    EXPECT_EQ(static_cast<std::int64_t>(found.lost), expected->lost) << event.op;
    EXPECT_NEAR(found.all_sizes > 0 ? found.lost_sizes / found.all_sizes : 0, expected->share, 1e-12) << event.op;
    if (!first) first = found;
    EXPECT_EQ(found.all_sizes, first->all_sizes) << "blocks in another order";
    EXPECT_EQ(found.lost_sizes, first->lost_sizes) << "blocks in another order";
    EXPECT_EQ(memory.tickets, 0u) << "the next launch begins with them";
    found = {};
  });
}

std::optional<LostUpdates> count(std::string_view op, const TestTensor& self, std::vector<OpInput> others,
                                 std::vector<OpScalar> scalars, std::vector<OpOutput> more = {},
                                 Phase phase = Phase::kOptimizer) {
  std::vector<OpInput> inputs = {{"self", self.old_version().value(), ArgRole::kOverwritten}};
  inputs.insert(inputs.end(), others.begin(), others.end());
  std::vector<OpOutput> outputs = {{"self", self.value()}};
  outputs.insert(outputs.end(), more.begin(), more.end());
  OpEvent event;
  event.phase = phase;
  event.op = op;
  event.inputs = inputs;
  event.outputs = outputs;
  event.scalars = scalars;
  const auto found = count_lost_updates(event);
  expect_the_same_of_a_device(event, inputs, outputs, found);
  return found;
}

TestTensor written(DType dtype, const std::vector<double>& values, std::uint64_t storage) {
  const auto n = static_cast<std::int64_t>(values.size());
  TestTensor tensor(dtype, {n}, std::vector<double>(values.size(), 0.0), storage);
  return tensor.write(values);
}

// given weights and updates of all sizes, when an update is stored, then what is counted as lost was lost, and nearly
// all that was lost is counted.
TEST(LostUpdates, counts_only_elements_that_did_not_change_and_nearly_all_of_them) {
  std::mt19937 random(3);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const char* op : {"add_", "sub_", "addcdiv_", "mul_", "lerp_"}) {
      const bool decays = std::string_view(op) == "mul_", blends = std::string_view(op) == "lerp_";
      std::vector<double> before, after, a, b;
      std::int64_t really = 0, updates = 0;
      for (int i = 0; i < 4000; ++i) {
        const auto draw = [&](int exponent) {
          const double size = std::ldexp(1.0 + static_cast<double>(random() % 1000) / 1000, exponent);
          return round_to(dtype, random() % 2 == 0 ? size : -size);
        };
        const double x = draw(-4), u = i % 10 == 0 ? 0 : draw(-static_cast<int>(random() % 16));
        const double denominator = round_to(dtype, 2.0);
        const double alpha = -0.03125;
        const double change = std::string_view(op) == "sub_"       ? -alpha * u
                              : std::string_view(op) == "addcdiv_" ? alpha * u / denominator
                                                                   : alpha * u;
        before.push_back(x);
        a.push_back(u);
        b.push_back(denominator);
        after.push_back(decays   ? round_to(dtype, static_cast<float>(x) * 0.9990f)
                        : blends ? round_to(dtype, x + static_cast<double>(0.01f) * (u - x))
                                 : round_to(dtype, x + change));
        const bool meant = decays || u != 0;
        updates += meant;
        really += meant && before.back() == after.back();
      }
      const TestTensor self = written(dtype, after, 1);
      const TestTensor ta(dtype, {4000}, a, 2), tb(dtype, {4000}, b, 3);
      std::optional<LostUpdates> found;
      if (decays) {
        found = count(op, self, {}, {{"other", 0.999}});
      } else if (std::string_view(op) == "addcdiv_") {
        found = count(op, self, {{"tensor1", ta.value()}, {"tensor2", tb.value()}}, {{"value", -0.03125}});
      } else if (blends) {
        found = count(op, self, {{"end", ta.value()}}, {{"weight", 0.01}});
      } else {
        found = count(op, self, {{"other", ta.value()}}, {{"alpha", -0.03125}});
      }
      ASSERT_TRUE(found) << op;
      EXPECT_EQ(found->updates, updates) << op;
      EXPECT_LE(found->lost, really) << op << dtype_name(dtype);
      EXPECT_GE(static_cast<double>(found->lost), (blends ? 0.9 : 0.97) * static_cast<double>(really)) << op << dtype_name(dtype);
      EXPECT_GE(found->share, 0);
      EXPECT_LE(found->share, 1);
    }
  }
}

// given a parameter that a device takes in several blocks, the last of them short, when its updates are counted, then
// the counts are the host's, whichever block ends last.
TEST(LostUpdates, are_the_same_of_a_parameter_of_several_blocks_on_a_device) {
  constexpr std::int64_t kCount = 3 * 8 * kernels::cuda::LostUpdatesKernel::kThreads + 5;
  std::mt19937 random(4);
  std::vector<double> after, updates;
  std::int64_t lost = 0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    const bool small = random() % 3 == 0;
    updates.push_back(small ? 1e-5 : 0.25);
    after.push_back(small ? 1.0 : 1.25);
    lost += small;
  }
  const TestTensor self = written(DType::kF16, after, 1), other(DType::kF16, {kCount}, updates, 2);
  const auto found = count("add_", self, {{"other", other.value()}}, {});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->updates, kCount);
  EXPECT_EQ(found->lost, lost);
}

TEST(LostUpdates, tells_by_share_that_what_was_lost_was_little) {
  // Nine updates of 1e-5 are lost and one of 0.5 is not.
  std::vector<double> after(10, 1.0), updates(10, 1e-5);
  after[0] = 1.5;
  updates[0] = 0.5;
  const TestTensor self = written(DType::kF16, after, 1), other(DType::kF16, {10}, updates, 2);
  const auto found = count("add_", self, {{"other", other.value()}}, {});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->updates, 10);
  EXPECT_EQ(found->lost, 9);
  EXPECT_LT(found->share, 1e-3);
}

TEST(LostUpdates, reads_a_fused_adam_from_its_state) {
  // Adam moves every weight by about lr: 1e-5 is lost at 0.5 in bf16, 0.01 is not.
  const std::int64_t n = 64;
  const std::vector<double> ones(n, 1.0), weights(n, 0.5);
  for (const double lr : {1e-5, 1e-2}) {
    const TestTensor self = written(DType::kBF16, weights, 1), g(DType::kBF16, {n}, ones, 4),
                     m = written(DType::kBF16, std::vector<double>(n, 0.1), 2),
                     v = written(DType::kBF16, std::vector<double>(n, 1e-3), 3);
    const std::vector<OpScalar> scalars = {{"lr", lr},         {"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8},
                                           {"weight_decay", 0}, {"step", 1}};
    const auto found = count("_fused_adam_", self, {{"grad", g.value()}}, scalars,
                             {{"exp_avg", m.value()}, {"exp_avg_sq", v.value()}});
    ASSERT_TRUE(found);
    EXPECT_EQ(found->updates, n);
    EXPECT_EQ(found->lost, lr < 1e-3 ? n : 0);
  }
}

TEST(LostUpdates, measures_nothing_else) {
  const TestTensor other(DType::kF32, {2}, {1e-9, 1e-9}, 2);
  const TestTensor wide = written(DType::kF32, {1, 1}, 1), half = written(DType::kF16, {1, 1}, 3);
  EXPECT_FALSE(count("add_", wide, {{"other", other.value()}}, {}));                              // fp32 weights
  EXPECT_FALSE(count("add_", half, {{"other", other.value()}}, {}, {}, Phase::kForward));         // no optimizer
  EXPECT_TRUE(count("add_", half, {{"other", other.value()}}, {}, {}, Phase::kUpdate));           // a copy that lasts
  EXPECT_FALSE(count("add_", half, {{"other", other.without_data().value()}}, {}));               // not read
  EXPECT_FALSE(count("exp_", half, {}, {}));                                                      // another op
  const TestTensor single(DType::kF16, {1}, {1e-9}, 4);
  EXPECT_FALSE(count("add_", half, {{"other", single.value()}}, {}));                             // broadcast
  EXPECT_TRUE(count("aten::add_.Tensor", half, {{"other", other.value()}}, {}));
}

TEST(LostUpdates, zero_gradients_are_no_updates) {
  const TestTensor self = written(DType::kF16, {1, 1}, 1), other(DType::kF16, {2}, {0, 0}, 2);
  const auto found = count("add_", self, {{"other", other.value()}}, {});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->updates, 0);
  EXPECT_EQ(found->share, 0);
}

}  // namespace
}  // namespace nanhunt::record
