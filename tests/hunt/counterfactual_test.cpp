// SPDX-License-Identifier: Apache-2.0
#include "src/hunt/counterfactual.h"
#include "tests/support/silent_recorder.h"

#include <cstring>
#include <limits>
#include <map>

#include <gtest/gtest.h>

namespace nanhunt::hunt {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

Array f32(std::vector<float> numbers) {
  Array array{DType::kF32, {static_cast<std::int64_t>(numbers.size())}, {}, std::vector<std::byte>(numbers.size() * 4)};
  std::memcpy(array.bytes.data(), numbers.data(), array.bytes.size());
  return array;
}
Array f16(const std::vector<float>& numbers) { return converted(f32(numbers), DType::kF16); }

TensorStats stats_of(const Array& array) {
  const std::vector<std::int64_t> strides = {1};
  return compute_stats({array.bytes.data(), array.dtype, array.sizes, strides}, StatsLevel::kSums);
}

PlannedValue planned(const std::string& slot, const Array& array, int producer = -1) {
  PlannedValue value;
  value.slot = slot;
  value.dtype = array.dtype;
  value.sizes = array.sizes;
  value.has_stats = true;
  value.stats = stats_of(array);
  value.producer = producer;
  return value;
}

// y = x + eps, z = 1 / y, element by element; rounds as a kernel would, or lies.
class Arithmetic final : public OpRunner {
 public:
  bool knows(std::string_view) const override { return true; }
  Result<std::vector<std::optional<Array>>> run(const RunnerCall& call) override {
    if (refuses) return Status(StatusCode::kUnsupported, "not today.");
    Array out = *call.inputs.at(0).array;
    for (std::int64_t i = 0; i < out.numel(); ++i) {
      const double x = out.at(i), y = call.op == "add" ? x + call.scalars.at(0).second : 1 / x;
      store_from_f64(out.dtype, &out.bytes[static_cast<std::size_t>(i) * dtype_size(out.dtype)], lies ? y + 1 : y);
    }
    return std::vector<std::optional<Array>>{out};
  }
  bool lies = false, refuses = false;
};

class ProbeCollector final : public testing_support::SilentRecorder {
 public:
  void on_probe(const ProbeEvent& e) noexcept override { texts.emplace_back(e.text); }
  std::vector<std::string> texts;
};

// 1 / (x + 1e-8) in fp16, where x is 0 once and 1e-8 always.
struct Guarded {
  Array x = f16({0, 0.5f}), y = f16({0, 0.5f}), z = f16({kInf, 2});
  OriginPlan plan;
  Reenactment seen;
  Arithmetic runner;
  ProbeCollector recorder;

  Guarded() {
    plan.step = 3;
    plan.flat_index = 0;
    plan.ops = {{7, {0, Phase::kForward, "n", "reciprocal", 0}, {}, {planned("self", y, 1)}, {planned("out", z)}},
                {6, {0, Phase::kForward, "n", "add", 0}, {{"other", 1e-8}}, {planned("self", x)}, {planned("out", y)}}};
    seen.ops = {{true, {y}, {z}}, {true, {x}, {std::nullopt}}};
  }
  std::vector<ProbeRecord> probe() { return probe_origin(plan, seen, runner, recorder); }
};

TEST(Counterfactual, finds_the_shortest_slice_that_is_finite_in_a_wider_format) {
  Guarded c;
  const auto probes = c.probe();
  ASSERT_EQ(probes.size(), 5u);
  EXPECT_TRUE(probes[0].ran);
  EXPECT_EQ(probes[0].mode, ProbeMode::kSame);
  EXPECT_EQ(probes[0].pos_inf, 1);
  EXPECT_EQ(probes[1].dtype, DType::kF32);
  EXPECT_EQ(probes[1].pos_inf, 1);
  EXPECT_EQ(probes[2].ops, 2u);
  EXPECT_EQ(probes[2].pos_inf, 0);
  EXPECT_NEAR(probes[2].number, 1e8, 10);
  EXPECT_EQ(c.recorder.texts[2], "from add in n on");
  EXPECT_EQ(probes[4].dtype, DType::kF64);
  for (const ProbeRecord& probe : probes) EXPECT_EQ(probe.seq, 7u);
}

TEST(Counterfactual, concludes_nothing_from_other_bits) {
  Guarded c;
  c.runner.lies = true;
  const auto probes = c.probe();
  ASSERT_EQ(probes.size(), 1u);
  EXPECT_FALSE(probes[0].ran);
  EXPECT_NE(c.recorder.texts[0].find("other bits"), std::string::npos);
}

TEST(Counterfactual, concludes_nothing_where_the_replay_met_other_numbers_or_none) {
  Guarded other, none, gone, refused;
  other.seen.ops[0].inputs[0] = f16({0, 0.25f});
  none.seen.ops[0].seen = false;
  gone.seen.ops[0].inputs[0].reset();
  refused.runner.refuses = true;
  for (Guarded* c : {&other, &none, &gone, &refused}) {
    const auto probes = c->probe();
    ASSERT_EQ(probes.size(), 1u);
    EXPECT_FALSE(probes[0].ran);
    EXPECT_FALSE(c->recorder.texts[0].empty());
  }
}

TEST(Counterfactual, concludes_nothing_where_an_input_was_not_read_in_the_run) {
  Guarded c;
  c.plan.ops[0].inputs[0].has_stats = false;
  const auto probes = c.probe();
  ASSERT_EQ(probes.size(), 1u);
  EXPECT_FALSE(probes[0].ran);
  EXPECT_NE(c.recorder.texts[0].find("The contents of self were not read in the run"), std::string::npos);
}

TEST(Counterfactual, says_when_the_same_inputs_gave_a_finite_result) {
  Guarded c;
  c.seen.ops[0].outputs[0] = f16({4, 2});
  const auto probes = c.probe();
  ASSERT_EQ(probes.size(), 1u);
  EXPECT_TRUE(probes[0].ran);
  EXPECT_EQ(probes[0].nan + probes[0].pos_inf + probes[0].neg_inf, 0);
  EXPECT_EQ(probes[0].number, 4);
}

TEST(Counterfactual, plans_leave_out_what_does_not_fit) {
  Guarded c;
  limit_plan(c.plan, 4);  // the origin's input alone
  ASSERT_EQ(c.plan.ops.size(), 1u);
  EXPECT_EQ(c.plan.ops[0].inputs[0].producer, -1);
  c.seen.ops.resize(1);
  EXPECT_EQ(c.probe().size(), 3u);  // no slice
  limit_plan(c.plan, 3);
  EXPECT_TRUE(c.plan.ops.empty());
  EXPECT_TRUE(c.probe().empty());
}

TEST(Counterfactual, numbers_are_converted_with_one_rounding_and_labels_stay) {
  const Array narrow = f16({1.0f / 3, 65520, -0.0f});
  EXPECT_EQ(narrow.at(0), round_to(DType::kF16, 1.0f / 3));
  EXPECT_EQ(narrow.at(1), kInf);
  EXPECT_EQ(converted(narrow, DType::kF64).at(0), narrow.at(0));
  const Array labels{DType::kI64, {1}, {}, std::vector<std::byte>(8)};
  EXPECT_EQ(converted(labels, DType::kF32).dtype, DType::kI64);
}

}  // namespace
}  // namespace nanhunt::hunt
