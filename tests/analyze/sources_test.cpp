// SPDX-License-Identifier: Apache-2.0
// The program's code around a finding; findings of one cause.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;

void overflow(TraceBuilder& t, const std::string& module, const std::string& site, const std::string& op = "exp") {
  const Handle x = t.value(finite().as(DType::kF16).range(0, 12));
  const Handle y = t.in(module).called_from(site).op(op, {{"self", x}}, finite().as(DType::kF16).inf(1));
  t.mark(TensorRole::kLoss, module, y);
}

TEST(Sources, a_finding_has_the_frames_of_its_call_site_and_the_class_of_its_module) {
  TraceBuilder t;
  t.setup(SetupFact::kModule, "fc1", "", DType::kF32, 0, "Linear");
  t.frame("model.py:7", 0, "/data/me/model.py", 7, "Net.forward", 6, "def forward(self, x):\n    return x.exp()\n");
  t.frame("model.py:7", 1, "/data/me/train.py", 30, "step", 30, "loss = net(x)");
  t.frame("model.py:9", 0, "/data/me/model.py", 9, "Net.other", 9, "pass");
  // Another stack that came to the same line: the first one counts.
  t.frame("model.py:7", 0, "/data/me/model.py", 7, "Net.forward", 7, "");
  t.frame("model.py:7", 1, "/data/me/eval.py", 3, "<module>", 3, "net(x)");
  t.frame("model.py:7", 2, "/data/me/eval.py", 4, "<module>", 4, "main()");
  overflow(t, "fc1", "model.py:7");
  t.end_step();
  const Finding f = analysis_of(t).findings.at(0);
  EXPECT_EQ(f.module_class, "Linear");
  ASSERT_EQ(f.frames.size(), 2u);
  EXPECT_EQ(f.frames[0].file, "/data/me/model.py");
  EXPECT_EQ(f.frames[0].function, "Net.forward");
  EXPECT_EQ(f.frames[0].first_line, 6u);
  EXPECT_EQ(f.frames[0].code, (std::vector<std::string>{"def forward(self, x):", "    return x.exp()"}));
  EXPECT_EQ(f.frames[1].line, 30u);
}

TEST(Sources, a_module_that_is_called_past_its_class_is_found_by_its_forward_unless_several_are_of_that_class) {
  for (const std::string innermost : {"Scale.forward", "Twin.forward", "Other.forward", "Scale.loss"}) {
    TraceBuilder t;
    t.setup(SetupFact::kModule, "scale", "", DType::kF32, 0, "Scale");
    t.setup(SetupFact::kModule, "Net", "", DType::kF32, 0, "Net");
    for (const char* path : {"a", "b"}) t.setup(SetupFact::kModule, path, "", DType::kF32, 0, "Twin");
    t.frame("model.py:7", 0, "/site-packages/grid.py", 7, "to_bounds", 6, "return x / d");
    t.frame("model.py:7", 1, "/data/me/model.py", 7, innermost, 6, "return to_bounds(x)");
    t.frame("model.py:7", 2, "/data/me/model.py", 9, "Net.forward", 9, "return self.out(self.scale(x))");
    overflow(t, "<loss>", "model.py:7");
    t.end_step();
    const Finding f = analysis_of(t).findings.at(0);
    const std::string found = innermost == "Scale.forward" ? "scale" : innermost == "Scale.loss" ? "Net" : "<loss>";
    EXPECT_EQ(f.place.module, found) << innermost;
    EXPECT_THAT(f.title, testing::HasSubstr("in " + found)) << innermost;
  }
}

TEST(Sources, of_an_op_in_a_backward_of_the_programs_own_autograd_is_told_how_to_run_it_in_fp32) {
  for (const char* function : {"Mish.backward", "Net.forward"}) {  // else the derivative of an op of forward
    TraceBuilder t;
    t.frame("model.py:7", 0, "/data/me/model.py", 7, function, 6, "");
    const Handle x = t.value(finite().as(DType::kF16).range(-300, 300));
    const Handle g = t.in("net", Phase::kBackward).called_from("model.py:7")
                         .op("mul", {{"self", x}, {"other", x}}, finite().as(DType::kF16).inf(1));
    t.mark(TensorRole::kBoundaryGradient, "net.weight", g);
    t.end_step();
    const Advice cure = analysis_of(t).findings.at(0).advice.at(0);
    EXPECT_EQ(cure.id, "fp32-compute");
    EXPECT_EQ(cure.text.find("torch.amp.custom_bwd") != std::string::npos, function == std::string("Mish.backward"))
        << cure.text;
  }
}

TEST(Sources, a_stack_of_another_step_is_not_the_findings) {
  TraceBuilder t;
  t.frame("model.py:7", 0, "/data/me/model.py", 7, "Net.forward", 7, "");
  t.frame("model.py:7", 1, "/data/me/train.py", 30, "step", 30, "loss = net(x)");
  overflow(t, "fc1", "model.py:7");
  for (int step = 0; step < 3; ++step) {
    t.end_step();
    t.op("mul", {{"self", t.value(finite())}}, finite(), {{"other", 2}});
  }
  t.frame("model.py:7", 0, "/data/me/model.py", 7, "Net.forward", 7, "");  // badness of another op, soon in the trace
  t.frame("model.py:7", 1, "/data/me/eval.py", 3, "<module>", 3, "net(x)");
  t.end_step();
  const Finding f = analysis_of(t).findings.at(0);
  ASSERT_EQ(f.frames.size(), 2u);
  EXPECT_EQ(f.frames[1].file, "/data/me/train.py");
}

TEST(Sources, of_a_call_that_nobody_told_it_has_what_all_calls_of_its_line_have_in_common) {
  for (const bool twice : {true, false}) {
    TraceBuilder t;
    t.frame("model.py:7", 0, "/data/me/model.py", 7, "length", 7, "return v.norm()");
    t.frame("model.py:7", 1, "/data/me/model.py", 12, "position", 12, "return length(v)");
    t.frame("model.py:7", 2, "/data/me/train.py", 30, "<module>", 30, "loss = position(v)");
    t.op("mul", {{"self", t.value(finite())}}, finite(), {{"other", 2}});
    if (twice) {
      t.frame("model.py:7", 0, "/data/me/model.py", 7, "length", 7, "return v.norm()");
      t.frame("model.py:7", 1, "/data/me/model.py", 20, "speed", 20, "return length(v)");
      t.frame("model.py:7", 2, "/data/me/train.py", 30, "<module>", 30, "loss = speed(v)");
    }
    t.op("mul", {{"self", t.value(finite())}}, finite(), {{"other", 2}});
    overflow(t, "fc1", "model.py:7");
    t.end_step();
    EXPECT_EQ(analysis_of(t).findings.at(0).frames.size(), twice ? 1u : 3u);
  }
}

TEST(Sources, a_site_without_frames_has_none) {
  TraceBuilder t;
  t.frame("model.py:7", 1, "/data/me/train.py", 30, "step", 30, "loss = net(x)");  // the innermost was lost
  overflow(t, "fc1", "model.py:7");
  t.end_step();
  const Finding f = analysis_of(t).findings.at(0);
  EXPECT_TRUE(f.frames.empty());
  EXPECT_EQ(f.module_class, "");
}

TEST(OneCause, findings_of_one_line_in_one_step_are_one_and_the_others_are_named_under_it) {
  TraceBuilder t;
  overflow(t, "a", "train.py:30", "exp");
  overflow(t, "b", "train.py:30", "square");
  overflow(t, "c", "train.py:31", "cosh");
  t.end_step();
  const Analysis a = analysis_of(t);
  ASSERT_EQ(a.findings.size(), 2u);
  EXPECT_EQ(a.findings[0].place.module, "a");
  ASSERT_EQ(a.findings[0].related.size(), 1u);
  EXPECT_EQ(a.findings[0].related[0].place.module, "b");
  EXPECT_EQ(a.findings[0].related[0].call_site, "train.py:30");
  EXPECT_TRUE(a.findings[1].related.empty());
}

TEST(OneCause, counts_the_bad_steps_of_the_way_that_reached_the_weights) {
  // given a logarithm that spoils a loss alone, while its line spoils the weights in backward
  for (const double argument : {-1.0, 1.0}) {
    const bool bad = argument < 0;
    TraceBuilder t;
    Handle w = t.value(finite());
    t.mark(TensorRole::kParameter, "fc1.weight", w);
    const Numbers given = finite().range(argument, argument), lost = finite().nan(bad ? 8 : 0);
    const Numbers one = finite(1).nan(bad ? 1 : 0);
    const Handle l = t.in("<loss>", Phase::kLoss).called_from("train.py:9").op("log", {{"self", t.value(given)}}, lost);
    t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", l}}, one));
    const Handle g = t.in("<loss>", Phase::kBackward).called_from("train.py:9").op("rsqrt", {{"self", t.value(given)}}, lost);
    t.in("fc1.weight", Phase::kOptimizer).in_place("add_", w, {{"other", g}}, lost);
    t.mark(TensorRole::kParameter, "fc1.weight", w);
    t.end_step(bad ? std::nan("") : 1.0);
    for (int step = 1; step < 3; ++step) {
      const Handle y = t.in("fc1").op("mul", {{"self", t.value(finite())}, {"other", w}}, lost);
      t.mark(TensorRole::kLoss, "loss", t.in("<loss>", Phase::kLoss).op("sum", {{"self", y}}, one));
      t.end_step(bad ? std::nan("") : 1.0);
    }
    const Analysis a = analysis_of(t);
    ASSERT_EQ(a.findings.size(), bad ? 1u : 0u);
    if (!bad) continue;
    EXPECT_EQ(a.findings[0].place.op, "log");
    EXPECT_EQ(a.findings[0].related.size(), 1u);
    EXPECT_EQ(a.findings[0].occurrence_count, 1u);
    EXPECT_EQ(a.findings[0].bad_steps.count, 3u);
    EXPECT_EQ(a.findings[0].bad_steps.first, 0u);
    EXPECT_EQ(a.findings[0].bad_steps.last, 2u);
  }
}

TEST(OneCause, findings_of_no_known_line_stay_apart) {
  TraceBuilder t;
  overflow(t, "a", "", "exp");
  overflow(t, "b", "", "square");
  t.end_step();
  EXPECT_EQ(analysis_of(t).findings.size(), 2u);
}

}  // namespace
}  // namespace nanhunt
