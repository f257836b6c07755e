// SPDX-License-Identifier: Apache-2.0
// corruption, unseen_kernel, uninitialised, comm: a planted bug each, and its repaired twin.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;
using ::testing::Contains;
using ::testing::HasSubstr;

// w is a parameter, h = w * x is read by exp, whose sum is the loss. Between the two h may change.
struct Flip {
  std::optional<Numbers> h = std::nullopt;  // what h holds when exp reads it
  std::optional<Numbers> w = std::nullopt;  // what w holds when mul reads it
  Numbers exp = finite(), loss = finite(1);
  bool opaque = false;
};
Analysis trained_with(const Flip& flip) {
  TraceBuilder t;
  t.step(4);
  Handle w = t.value(finite().range(-1, 1));
  t.mark(TensorRole::kParameter, "fc1.weight", w);
  t.in("fc0").op("relu", {{"self", t.value(finite())}}, finite());
  if (flip.w) w = t.changed(w, *flip.w);
  Handle h = t.in("fc1").op("mul", {{"self", w}, {"other", t.value(finite())}}, flip.w ? *flip.w : finite());
  if (flip.h) h = t.changed(h, *flip.h, flip.opaque);
  const Handle e = t.in("fc2").op("exp", {{"self", h}}, flip.exp);
  const Handle loss = t.in("<loss>", Phase::kLoss).op("sum", {{"self", e}}, flip.loss);
  t.mark(TensorRole::kLoss, "loss", loss);
  t.end_step();
  return analysis_of(t);
}

TEST(Corruption, of_an_intermediate_is_named_where_it_was_made_with_the_interval) {
  const Analysis a =
      trained_with({.h = finite().range(-1, 3e38), .w = {}, .exp = finite().inf(1), .loss = finite(1).inf(1)});
  EXPECT_EQ(table(a), "corruption | mul | fc1 | forward | step 4 | unknown | observed\n");
  const Finding& f = a.findings[0];
  EXPECT_EQ(f.title,
            "Contents of the output of mul in fc1 changed with nothing writing them: the largest magnitude went from "
            "1 to 3e38");
  EXPECT_THAT(f.explanation, HasSubstr("between mul in fc1 (forward, step 4) and exp in fc2 (forward, step 4)"));
  EXPECT_THAT(f.evidence, Contains("Before: -1 to 1, largest magnitude 1."));
  EXPECT_THAT(f.evidence, Contains("After: -1 to 3e38, largest magnitude 3e38."));
  EXPECT_THAT(f.evidence, Contains("Made of it, numbers first stopped being finite at exp in fc2 (forward, step 4)."));
  EXPECT_EQ(f.advice.at(0).id, "check-memory");
  EXPECT_EQ(f.sinks, std::vector<std::string>{"loss"});
}

TEST(Corruption, is_not_blamed_where_nothing_changed) {
  EXPECT_EQ(table(trained_with({.h = {}, .w = {}, .exp = finite().inf(1), .loss = finite(1).inf(1)})),
            "unexplained | exp | fc2 | forward | step 4 | appear | inferred\n");
  EXPECT_EQ(table(trained_with({})), "clean\n");
}

TEST(Corruption, of_a_parameter_is_named_as_that_parameter_and_follows_finite_values) {
  const Numbers flipped = finite().range(-1, 1e30);
  const Analysis a = trained_with({.h = {}, .w = flipped, .exp = finite().inf(1), .loss = finite(1).inf(1)});
  EXPECT_EQ(table(a), "corruption | <state> | fc1.weight | data | step 4 | unknown | observed\n");
  EXPECT_THAT(a.findings[0].title, HasSubstr("Contents of parameter fc1.weight changed"));
}

TEST(Corruption, of_a_parameter_that_is_marked_only_when_it_is_read_is_named_as_that_parameter) {
  // Given a trace that begins at the step in which a change is found, so that no earlier mark is in it,
  TraceBuilder t;
  t.step(4);
  const Handle before = t.value(finite().range(-1, 1));
  const Handle after = t.changed(before, finite().nan(3));
  t.mark(TensorRole::kParameter, "fc1.weight", before);
  const Handle h = t.in("fc1").op("mul", {{"self", after}, {"other", t.value(finite())}}, finite().nan(3));
  t.mark(TensorRole::kLoss, "loss", t.in("<loss>", Phase::kLoss).op("sum", {{"self", h}}, finite(1).nan(1)));
  t.end_step();
  // when it is judged, then the change is the parameter's.
  EXPECT_EQ(table(analysis_of(t)), "corruption | <state> | fc1.weight | data | step 4 | unknown | observed\n");
}

TEST(Corruption, of_a_parameter_is_held_against_the_norm_that_was_read_before_it) {
  // Given a parameter of which norms alone are known, the last one as it was when it had changed,
  for (const double last : {1e30, 0.5}) {
    TraceBuilder t;
    t.step(4);
    const Handle after = t.changed({0, 77, 3}, finite().range(-1, 1e30));
    t.norm("fc1.weight", 3, 2, 0.5);
    t.norm("fc1.weight", 4, last, last);
    t.mark(TensorRole::kParameter, "fc1.weight", after);
    const Handle y = t.in("fc1").op("pow", {{"self", after}}, finite().inf(1), {{"exponent", 2.0}});
    t.mark(TensorRole::kLoss, "loss", y);
    t.end_step();
    // when it is judged, then the norm before is told.
    EXPECT_THAT(analysis_of(t).findings.at(0).title, HasSubstr("the largest magnitude went from 0.5 to 1e30"));
  }
}

TEST(Corruption, that_is_bad_itself_is_the_origin_of_what_it_fed) {
  const Analysis a = trained_with({.h = finite().nan(1), .w = {}, .exp = finite().nan(1), .loss = finite(1).nan(1)});
  EXPECT_EQ(table(a), "corruption | mul | fc1 | forward | step 4 | unknown | observed\n");
  EXPECT_THAT(a.findings[0].evidence, Contains(HasSubstr("One element accounts for all of the change")));
}

TEST(Corruption, of_many_elements_is_looked_for_in_code_before_hardware) {
  const Analysis one = trained_with({.h = finite().nan(1), .w = {}, .exp = finite().nan(1), .loss = finite(1).nan(1)});
  EXPECT_EQ(one.findings.at(0).advice.at(0).id, "check-memory");
  const Analysis many = trained_with({.h = finite().nan(5), .w = {}, .exp = finite().nan(5), .loss = finite(1).nan(1)});
  EXPECT_EQ(many.findings.at(0).advice.at(0).id, "find-stray-write");
}

TEST(Corruption, without_harm_is_a_warning_where_it_was_gross_and_information_else) {
  EXPECT_EQ(table(trained_with({.h = finite().range(-1, 20)})),
            "warning corruption | mul | fc1 | forward | step 4 | unknown | observed\n");
  const Analysis small = trained_with({.h = finite().range(-1, 1.5)});
  EXPECT_EQ(table(small), "info corruption | mul | fc1 | forward | step 4 | unknown | observed\n");
  EXPECT_EQ(small.verdict.status, VerdictStatus::kClean);
}

TEST(Corruption, of_a_parameter_is_a_warning_however_small) {
  EXPECT_EQ(table(trained_with({.w = finite().range(-1, 1.5)})),
            "warning corruption | <state> | fc1.weight | data | step 4 | unknown | observed\n");
}

TEST(Corruption, that_made_one_magnitude_far_less_is_gross_too) {
  const Analysis a = trained_with({.h = finite().smallest_of(0.25 / 256)});
  EXPECT_EQ(table(a), "warning corruption | mul | fc1 | forward | step 4 | unknown | observed\n");
  EXPECT_THAT(a.findings[0].title, HasSubstr("the least magnitude went from 0.25 to 0.0009766"));
}

TEST(Corruption, that_was_small_takes_no_blame_for_what_overflows_further_on) {
  const Analysis a =
      trained_with({.h = {}, .w = finite().range(-1, 1.5), .exp = finite().inf(1), .loss = finite(1).inf(1)});
  EXPECT_EQ(table(a),
            "unexplained | exp | fc2 | forward | step 4 | appear | inferred\n"
            "warning corruption | <state> | fc1.weight | data | step 4 | unknown | observed\n");
}

TEST(Corruption, is_followed_through_views_that_no_watched_op_made) {
  // Given a parameter that changed, whose product is read through a view of a view of it,
  for (const double largest : {1e30, 1.5}) {
    TraceBuilder t;
    const Handle before = t.value(finite().range(-1, 1));
    t.mark(TensorRole::kParameter, "fc1.bias", before);
    const Numbers now = finite().range(-1, largest);
    const Handle after = t.changed(before, now);
    const Handle h = t.in("fc1").op("addmm", {{"self", after}, {"mat1", t.value(finite())}}, now);
    const Handle shaped = t.seen_as(h, now, h.id);
    const Handle e = t.in("fc2").op("exp", {{"self", t.seen_as(shaped, now, shaped.id)}}, finite().inf(1));
    t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", e}}, finite(1).inf(1)));
    t.end_step();
    // when it is judged, however its records are cut, then a gross change is the origin, and a small one is not.
    const std::string whole = table(analysis_of(t));
    if (largest > 2)
      EXPECT_EQ(whole, "corruption | <state> | fc1.bias | data | step 0 | unknown | observed\n");
    else
      EXPECT_THAT(whole, HasSubstr("unexplained | exp | fc2"));
    for (std::size_t events : {1u, 2u, 3u, 5u}) EXPECT_EQ(table(analysis_of(t, events)), whole);
  }
}

TEST(Corruption, does_not_depend_on_how_the_records_are_cut) {
  TraceBuilder t;
  Handle x = t.value(finite());
  t.in("fc1").op("relu", {{"self", x}}, finite());
  x = t.changed(x, finite().nan(1));
  const Handle y = t.op("neg", {{"self", x}}, finite().nan(1));
  t.mark(TensorRole::kLoss, "loss", y);
  t.end_step();
  const std::string whole = table(analysis_of(t));
  for (std::size_t events : {1u, 2u, 3u, 5u}) EXPECT_EQ(table(analysis_of(t, events)), whole);
}

TEST(UnseenKernel, is_said_where_an_opaque_call_had_the_contents) {
  const Analysis a = trained_with(
      {.h = finite().range(-1, 3e38), .w = {}, .exp = finite().inf(1), .loss = finite(1).inf(1), .opaque = true});
  EXPECT_EQ(table(a), "unseen_kernel | mul | fc1 | forward | step 4 | unknown | observed\n");
  EXPECT_THAT(a.findings[0].explanation, HasSubstr("A call whose inside is not watched had the tensor"));
  EXPECT_EQ(table(trained_with({.opaque = true})), "clean\n");
}

// A kernel of the program's own, launched past PyTorch; its name is that of an op.
Analysis launched(const Numbers& given, const Numbers& made) {
  TraceBuilder t;
  const Handle x = t.value(given);
  const Handle y = t.in("act").op("triton::exp", {{"inputs", x}}, made);
  t.mark(TensorRole::kLoss, "loss", y);
  t.end_step();
  return analysis_of(t);
}

TEST(UnseenKernel, what_a_kernel_of_the_program_makes_bad_is_the_kernels_and_what_it_was_given_is_not) {
  const Analysis a = launched(finite().range(-1, 1), finite().inf(2));
  EXPECT_EQ(table(a), "unseen_kernel | triton::exp | act | forward | step 0 | appear | inferred\n");
  EXPECT_NE(a.findings.at(0).title.find("a kernel that the program launches itself"), std::string::npos) << a.findings.at(0).title;
  EXPECT_EQ(a.findings.at(0).advice.at(0).id, "compare-kernel");
  EXPECT_EQ(table(launched(finite(), finite())), "clean\n");
  EXPECT_EQ(table(launched(finite().nan(1), finite().nan(1))).find("unseen_kernel"), std::string::npos);
}

// A buffer from `empty`, written or not before it is added.
Analysis with_buffer(bool written, const Numbers& garbage) {
  TraceBuilder t;
  Handle b = t.in("fc1").op("empty_like", {{"self", t.value(finite())}}, garbage);
  const bool bad = !written && garbage.nan_count > 0;
  if (written) t.in_place("zero_", b, {}, finite().zeros(8).range(0, 0));
  const Handle sum = t.op("add", {{"self", b}, {"other", t.value(finite())}}, bad ? garbage : finite());
  const bool huge = !written && garbage.high > 1e30;
  const Handle e = t.op("exp", {{"self", sum}}, bad ? garbage : huge ? finite().inf(1) : finite());
  t.mark(TensorRole::kLoss, "loss", e);
  t.end_step();
  return analysis_of(t);
}

TEST(Uninitialised, memory_that_is_read_before_it_is_written_is_named_and_written_memory_is_silent) {
  const Analysis nan = with_buffer(false, finite().nan(3));
  EXPECT_EQ(table(nan), "uninitialised | empty_like | fc1 | forward | step 0 | unknown | observed\n");
  EXPECT_EQ(nan.findings[0].title,
            "Memory that empty_like in fc1 gave out was read by add in fc1 before any operation had written it");
  EXPECT_EQ(table(with_buffer(true, finite().nan(3))), "clean\n");
}

// A parameter of memory that PyTorch gave out in deterministic mode, and NaN of the program's own.
Analysis of_deterministic_mode(const char* how, bool read = true) {
  TraceBuilder t;
  const std::string heard = how;
  t.in("", Phase::kData);
  Handle w = heard == "empty" ? t.op("empty", {}, finite().unread()) : t.value(finite().unread());
  if (heard != "empty") t.in_place("fill_", w, {}, finite().nan(8), {{"value", std::nan("")}});
  const Handle seen = heard == "empty" ? t.seen_as(w, finite().nan(8), w.id) : w;
  t.mark(TensorRole::kParameter, "w", seen);
  if (read) {
    t.in("fc1", Phase::kForward);
    t.mark(TensorRole::kLoss, "loss", t.op("mm", {{"self", t.value(finite())}, {"mat2", seen}}, finite().nan(8)));
  }
  t.end_step();
  return analysis_of(t);
}

TEST(Uninitialised, memory_that_deterministic_mode_fills_with_nan_is_no_number_of_the_programs) {
  EXPECT_EQ(table(of_deterministic_mode("empty", /*read=*/false)), "clean\n");
  const Analysis a = of_deterministic_mode("empty");
  ASSERT_EQ(a.findings.size(), 1U) << table(a);
  const Finding& f = a.findings[0];
  EXPECT_EQ(f.cls, FindingClass::kUninitialised);
  EXPECT_NE(f.title.find("empty gave out was read by mm in fc1"), std::string::npos) << f.title;
  EXPECT_NE(f.explanation.find("use_deterministic_algorithms"), std::string::npos) << f.explanation;
  const Analysis own = of_deterministic_mode("own fill");
  ASSERT_EQ(own.findings.size(), 1U) << table(own);
  EXPECT_EQ(own.findings[0].cls, FindingClass::kInvalid);
}

TEST(Uninitialised, garbage_that_is_finite_but_huge_answers_for_the_overflow_it_leads_to) {
  EXPECT_EQ(table(with_buffer(false, finite().range(-1, 3e38))),
            "uninitialised | empty_like | fc1 | forward | step 0 | unknown | observed\n");
  EXPECT_EQ(table(with_buffer(true, finite().range(-1, 3e38))), "clean\n");
}

// A buffer from `empty` is given to an op, and exp of what comes out overflows.
Analysis with_buffer_given_to(const std::string& op, const std::string& slot, ArgRole role, double beta,
                              const Numbers& garbage, bool bad_at_once = false) {
  TraceBuilder t;
  const Handle b = t.in("attn").op("empty", {}, garbage);
  const Handle q = t.value(finite()), k = t.value(finite());
  const Handle y = t.op(op, {{slot, b, role}, {"batch1", q}, {"batch2", k}}, bad_at_once ? finite().nan(1) : finite(),
                        {{"beta", beta}});
  const Handle e = t.op("exp", {{"self", y}}, bad_at_once ? finite().nan(1) : finite().inf(1));
  t.mark(TensorRole::kLoss, "loss", e);
  t.end_step();
  return analysis_of(t);
}

TEST(Uninitialised, memory_that_an_op_only_writes_its_result_to_or_multiplies_by_zero_is_not_read) {
  const Numbers huge = finite().range(-1, 3e38);
  const auto cls = [](const Analysis& a) { return a.findings.at(0).cls; };
  EXPECT_EQ(cls(with_buffer_given_to("baddbmm", "self", ArgRole::kRead, 1, huge)), FindingClass::kUninitialised);
  for (const bool at_once : {false, true}) {
    for (const Numbers& garbage : {huge, finite().nan(2)}) {
      const Analysis scaled = with_buffer_given_to("baddbmm", "self", ArgRole::kRead, 0, garbage, at_once);
      EXPECT_NE(cls(scaled), FindingClass::kUninitialised) << table(scaled);
      const Analysis out = with_buffer_given_to("bmm", "out", ArgRole::kOverwritten, 1, garbage, at_once);
      EXPECT_NE(cls(out), FindingClass::kUninitialised) << table(out);
    }
  }
}

TEST(Uninitialised, memory_that_led_to_ordinary_numbers_takes_no_blame_for_what_is_made_of_them) {
  // Given memory whose contents were not read, as where a function writes it by a pointer, and what is made of it
  const Numbers huge = finite().range(1, 3e38), ordinary = finite().range(1, 2);
  for (const auto& [made, blamed] : {std::pair(huge, true), {ordinary, false}, {ordinary.uncounted(), false}}) {
    TraceBuilder t;
    const Handle b = t.in("<loss>", Phase::kLoss).op("empty", {}, finite().unread());
    const Handle least = t.op("clamp_min", {{"self", b}}, made);
    const Handle divided = t.op("div", {{"self", t.value(finite())}, {"other", least}}, made);
    const Handle y = t.op("exp", {{"self", t.seen_as(divided, made, divided.id)}}, finite().inf(1));
    t.mark(TensorRole::kLoss, "loss", y);
    t.end_step();
    // when a later op overflows, then only numbers that are large already are laid on that memory.
    const Analysis a = analysis_of(t);
    EXPECT_EQ(a.findings.at(0).cls == FindingClass::kUninitialised, blamed) << table(a);
  }
}

TEST(Uninitialised, memory_of_ordinary_contents_takes_no_blame_for_what_overflows_further_on) {
  const Analysis a = with_buffer_given_to("fill_by_hand_", "self", ArgRole::kOverwritten, 1, finite());
  EXPECT_NE(a.findings.at(0).cls, FindingClass::kUninitialised) << table(a);
}

TEST(Uninitialised, memory_of_whole_numbers_has_no_format_to_overflow) {
  for (const DType dtype : {DType::kU8, DType::kI64, DType::kBool}) {
    TraceBuilder t;
    const Handle b = t.in("attn").op("empty", {}, finite().as(dtype).range(0, 255));
    const Handle y = t.op("embedding", {{"weight", t.value(finite())}, {"indices", b}}, finite().inf(1));
    t.mark(TensorRole::kLoss, "loss", y);
    t.end_step();
    EXPECT_EQ(analysis_of(t).findings.size(), 1u);
  }
}

Analysis reduced(const Numbers& mine, const Numbers& all) {
  TraceBuilder t;
  Handle g = t.in("fc1", Phase::kBackward).op("mm_backward", {{"grad_output", t.value(finite())}}, mine);
  const Handle sum = t.in("fc1", Phase::kComm).op("all_reduce", {{"self", g}}, all);
  t.mark(TensorRole::kBoundaryGradient, "fc1.weight", sum);
  t.end_step();
  return analysis_of(t);
}

TEST(Comm, bad_numbers_that_come_in_from_other_ranks_are_named_and_own_ones_are_not_laid_on_them) {
  EXPECT_EQ(table(reduced(finite(), finite().nan(2))), "comm | all_reduce | fc1 | comm | step 0 | appear | inferred\n");
  EXPECT_EQ(table(reduced(finite().nan(2), finite().nan(2))).substr(0, 22), "overflow | mm_backward");
  EXPECT_EQ(table(reduced(finite(), finite())), "clean\n");
}

TEST(Comm, what_a_call_was_given_bad_without_a_record_of_its_making_is_not_laid_on_it) {
  TraceBuilder t;
  // nobody knows who made it: the birth is at the call, and is no op
  const Handle sum = t.in("fc1", Phase::kComm).op("all_reduce", {{"self", t.value(finite().nan(2))}}, finite().nan(2));
  t.mark(TensorRole::kBoundaryGradient, "fc1.weight", sum);
  t.end_step();
  const Analysis a = analysis_of(t);
  ASSERT_EQ(a.findings.size(), 1u);
  EXPECT_NE(a.findings[0].cls, FindingClass::kComm) << table(a);
  EXPECT_EQ(a.findings[0].place.phase, Phase::kComm) << table(a);
}

// A bucket of gradients that goes between ranks as fp16, and is written back by a thread that is not heard. `garbage`:
// bad results before it that are freed.
Analysis cast_for_the_wire(bool exchanged, int garbage) {
  TraceBuilder t;
  const auto thrown_away = [&] {
    t.release(t.op("log", {{"self", t.value(finite(1).range(0, 0).zeros(1))}}, finite(1).inf(1)));
  };
  t.in("fc1", Phase::kBackward);
  for (int i = 0; i < garbage; ++i) thrown_away();
  const Handle bucket = t.op("mm", {{"self", t.value(finite(64))}}, finite(64).range(-1e6, 1e6));
  const Handle wire = t.op("_to_copy", {{"self", bucket}}, finite(64).as(DType::kF16).inf(3));
  if (exchanged) t.in("fc1", Phase::kComm).op("all_reduce", {{"self", wire}}, finite(64).as(DType::kF16).inf(3));
  t.in("fc1", Phase::kBackward);
  for (int i = 0; i < 4; ++i) thrown_away();
  Handle grad = t.value(finite(64));
  t.in_place("copy_", grad, {{"src", bucket}}, finite(64).inf(3));
  t.mark(TensorRole::kBoundaryGradient, "fc1.weight", grad);
  t.end_step();
  return analysis_of(t);
}

TEST(Comm, what_a_call_gave_is_followed_into_memory_that_another_thread_writes) {
  // what is known of 4,096 bad results is collected at once, here between the call and the copy
  for (const int garbage : {0, 4090, 4092, 4094, 4095, 4096}) {
    const Analysis a = cast_for_the_wire(true, garbage);
    ASSERT_EQ(a.findings.size(), 1u) << table(a);
    EXPECT_EQ(a.findings[0].place.op, "_to_copy") << garbage;
    EXPECT_EQ(a.findings[0].cls, FindingClass::kOverflow) << garbage;
  }
  // its twin: no call gave it, so the copy is where it is seen first
  EXPECT_NE(cast_for_the_wire(false, 0).findings.at(0).place.op, "_to_copy");
}

}  // namespace
}  // namespace nanhunt
