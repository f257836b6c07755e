// SPDX-License-Identifier: Apache-2.0
// Updates that change nothing because they are too small for 16-bit weights, and what does not count as such.
#include <gtest/gtest.h>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;

struct Training {
  double lost = 95;              // of 100 updates of each parameter
  double share = 0.9;            // of their sum
  double updates = 100;
  int lost_layers = 3;           // of 3
  int from = 0, steps = 8;       // the first step in which they are lost
  double loss = 2, later = 2;    // before `from`, and from then on
  bool counted = true;           // false: fp32, where the recorder counts nothing
  bool only_averages = false;
  bool overflows = false;        // in the last step
};

Analysis train(const Training& given) {
  TraceBuilder t;
  const DType format = given.counted ? DType::kBF16 : DType::kF32;
  std::vector<Handle> weights, squares;
  for (int layer = 0; layer < 3; ++layer) {
    const std::string name = "fc" + std::to_string(layer) + ".weight";
    weights.push_back(t.value(finite(100).as(format)));
    t.mark(TensorRole::kParameter, name, weights.back());
    squares.push_back(t.value(finite(100).as(format)));
    t.mark(TensorRole::kState, name + ".exp_avg_sq", squares.back());
  }
  for (int step = 0; step < given.steps; ++step) {
    t.step(static_cast<std::uint32_t>(step));
    for (int layer = 0; layer < 3; ++layer) {
      const auto at = static_cast<std::size_t>(layer);
      const std::string name = "fc" + std::to_string(layer) + ".weight";
      const bool loses = layer < given.lost_layers && step >= given.from;
      const auto counts = [&](const std::string& scalar, double value, bool lost) {
        Scalars scalars = {{scalar, value}};
        if (!given.counted) return scalars;
        scalars.push_back({"nanhunt.updates", given.updates});
        scalars.push_back({"nanhunt.lost_updates", lost ? given.lost : 2.0});
        scalars.push_back({"nanhunt.lost_update_share", lost ? given.share : 0.001});
        return scalars;
      };
      t.in(name, Phase::kOptimizer);
      t.in_place("mul_", squares[at], {}, finite(100).as(format), counts("other", 0.999, loses && given.only_averages));
      const Handle m = t.value(finite(100).as(format)), denom = t.value(finite(100).as(format).range(0.1, 1));
      t.in_place("addcdiv_", weights[at], {{"tensor1", m}, {"tensor2", denom}}, finite(100).as(format),
                 counts("value", -1e-5, loses && !given.only_averages));
    }
    if (given.overflows && step + 1 == given.steps) {
      const Handle e = t.in("head").op("exp", {{"self", t.value(finite().range(0, 100))}}, finite().inf(1));
      t.mark(TensorRole::kLoss, "loss", e);
    }
    t.end_step(step < given.from ? given.loss : given.later);
  }
  return analysis_of(t);
}

TEST(UpdateLoss, from_the_start_comes_after_the_fault_that_broke_the_run) {
  const Analysis alone = train({}), broken = train({.overflows = true});
  ASSERT_EQ(alone.findings.size(), 1u);
  ASSERT_EQ(broken.findings.size(), 2u);
  EXPECT_EQ(broken.findings[0].cls, FindingClass::kOverflow);
  EXPECT_EQ(broken.findings[1].cls, FindingClass::kUpdateLoss);
  EXPECT_LT(broken.findings[1].first_step, broken.findings[0].first_step);
}

TEST(UpdateLoss, of_most_parameters_over_several_steps_is_a_fault) {
  const Analysis analysis = train({});
  EXPECT_EQ(table(analysis), "update_loss | addcdiv_ | fc0.weight | optimizer | step 0 | unknown | observed\n");
  const Finding& finding = analysis.findings.front();
  EXPECT_EQ(finding.severity, Severity::kFault);
  EXPECT_EQ(finding.also.size(), 2u);
  EXPECT_NE(finding.explanation.find("95 of the 100 weights"), std::string::npos) << finding.explanation;
  ASSERT_EQ(analysis.update_loss.size(), 6u);
  EXPECT_EQ(analysis.update_loss[1].op, "addcdiv_");
  EXPECT_EQ(analysis.update_loss[1].steps_over, 8u);
  EXPECT_DOUBLE_EQ(analysis.update_loss[1].worst_share, 0.95);
}

TEST(UpdateLoss, is_named_at_its_first_step) {
  const Analysis analysis = train({.from = 3, .steps = 12});
  ASSERT_EQ(analysis.findings.size(), 1u);
  EXPECT_EQ(analysis.findings.front().place.step, 3u);
  EXPECT_EQ(analysis.findings.front().severity, Severity::kFault);
}

TEST(UpdateLoss, of_one_parameter_is_a_warning) {
  const Analysis analysis = train({.lost_layers = 1});
  ASSERT_EQ(analysis.findings.size(), 1u);
  EXPECT_EQ(analysis.findings.front().severity, Severity::kWarning);
}

TEST(UpdateLoss, when_the_loss_is_already_low_is_a_warning) {
  const Analysis analysis = train({.from = 4, .steps = 12, .loss = 2, .later = 0.01});
  ASSERT_EQ(analysis.findings.size(), 1u);
  EXPECT_EQ(analysis.findings.front().severity, Severity::kWarning);
}

TEST(UpdateLoss, when_the_loss_has_fallen_below_zero_is_a_warning) {
  // given a likelihood: from 2 down to -3, which is further from 0 than the start, or negative all along
  for (const double first : {2.0, -1.0}) {
    const Analysis analysis = train({.from = 4, .steps = 12, .loss = first, .later = -3});
    ASSERT_EQ(analysis.findings.size(), 1u);
    EXPECT_EQ(analysis.findings.front().severity, Severity::kWarning) << first;
  }
}

TEST(UpdateLoss, of_averages_alone_is_worth_a_word) {
  const Analysis analysis = train({.only_averages = true});
  ASSERT_EQ(analysis.findings.size(), 1u);
  EXPECT_EQ(analysis.findings.front().severity, Severity::kInfo);
  EXPECT_EQ(analysis.findings.front().last_step, 7u);
  EXPECT_EQ(analysis.verdict.status, VerdictStatus::kClean);
}

TEST(UpdateLoss, is_silent_on_healthy_training) {
  EXPECT_EQ(table(train({.counted = false})), "clean\n");                // fp32 masters
  EXPECT_EQ(table(train({.lost = 30, .share = 0.3})), "clean\n");        // some are lost
  EXPECT_EQ(table(train({.lost = 70, .share = 0.05})), "clean\n");       // many, but small ones
  EXPECT_EQ(table(train({.lost = 1, .updates = 2})), "clean\n");         // hardly any gradient left
  EXPECT_EQ(table(train({.lost = 0, .share = 0, .updates = 0})), "clean\n");  // none
  EXPECT_EQ(table(train({.steps = 4})), "clean\n");                      // too few steps
}

// An average of the weights in 16 bits, written between steps. `lost` of 100 updates of each are.
Analysis averaged(double lost) {
  TraceBuilder t;
  const DType format = DType::kF16;
  Handle kept = t.value(finite(100).as(format));
  const Handle weight = t.value(finite(100));
  for (int step = 0; step < 8; ++step) {
    t.step(static_cast<std::uint32_t>(step));
    const auto counts = [&](const std::string& name, double value) {
      return Scalars{{name, value}, {"nanhunt.updates", 100}, {"nanhunt.lost_updates", lost}, {"nanhunt.lost_update_share", lost / 100}};
    };
    t.in("", Phase::kUpdate).called_from("train.py:7");
    t.in_place("mul_", kept, {}, finite(100).as(format), counts("other", 0.9999));
    t.in_place("add_", kept, {{"other", weight}}, finite(100).as(format), counts("alpha", 1e-4));
    t.mark(TensorRole::kState, "copy of fc.weight", kept);
    t.end_step(2);
  }
  return analysis_of(t);
}

TEST(UpdateLoss, of_an_average_of_weights_is_a_warning_and_stops_no_training) {
  const Analysis lost = averaged(95);
  // the first write counts, though only after it the average is known for one
  EXPECT_EQ(table(lost), "warning update_loss | add_ | copy of fc.weight | update | step 0 | unknown | observed\n");
  const Finding& f = lost.findings.front();
  EXPECT_EQ(f.occurrence_count, 8u);
  EXPECT_EQ(f.call_site, "train.py:7");
  ASSERT_EQ(f.advice.size(), 1u);  // the weights are in fp32
  EXPECT_EQ(f.advice.front().id, "fp32-average");
  EXPECT_NE(f.title.find("too small for an average in fp16"), std::string::npos) << f.title;
  EXPECT_EQ(table(averaged(10)), "clean\n");
}

TEST(UpdateLoss, counts_that_cannot_be_are_not_believed) {
  EXPECT_EQ(table(train({.lost = 1000, .updates = 2000})), "clean\n");  // of 100 elements
  EXPECT_EQ(table(train({.lost = 90, .updates = 50})), "clean\n");
  EXPECT_EQ(table(train({.lost = -5, .updates = -10})), "clean\n");
  EXPECT_EQ(table(train({.lost = std::nan(""), .updates = 100})), "clean\n");
}

}  // namespace
}  // namespace nanhunt
