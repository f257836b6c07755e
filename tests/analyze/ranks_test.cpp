// SPDX-License-Identifier: Apache-2.0
// Several ranks at level ops: on which of them a fault began, and how it came to the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/analyze/world.h"

namespace nanhunt {
namespace {

using namespace testing_support;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

Numbers half(double largest) { return finite().range(-1, largest).as(DType::kF16); }
const Numbers kGood = half(1), kBad = half(1).inf(3);

// Two steps of data parallel training. `local` makes each rank's gradient in step 1, `sum` is what the reduction gives.
void train(World& w, const std::function<Handle(TraceBuilder&, std::size_t)>& local, const std::vector<Numbers>& sum) {
  for (int step = 0; step < 2; ++step) {
    std::vector<Handle> gradients;
    for (std::size_t rank = 0; rank < w.size(); ++rank) {
      const Handle x = w[rank].value(kGood);
      const Handle y = w[rank].in("fc1").op("mm", {{"self", x}}, kGood);
      w[rank].mark(TensorRole::kLoss, "loss", w[rank].in("<loss>", Phase::kLoss).op("mean", {{"self", y}}, finite(1)));
      w[rank].in("fc1", Phase::kBackward);
      gradients.push_back(step == 1 ? local(w[rank], rank) : w[rank].op("mul", {{"self", y}, {"other", y}}, kGood));
    }
    w.all_reduce(gradients, step == 1 ? sum : std::vector<Numbers>(w.size(), kGood));
    for (std::size_t rank = 0; rank < w.size(); ++rank) {
      w[rank].mark(TensorRole::kBoundaryGradient, "fc1.weight", gradients[rank]);
      w[rank].end_step();
    }
  }
}

// The product of these passes 65504.
Handle overflow(TraceBuilder& t) {
  const Handle a = t.value(half(300)), b = t.value(half(400));
  return t.op("mul", {{"self", a}, {"other", b}}, kBad);
}
Handle fine(TraceBuilder& t, double largest = 1) {
  const Handle a = t.value(kGood), b = t.value(half(largest));
  return t.op("mul", {{"self", a}, {"other", b}}, half(largest));
}

void born_on_one(World& w, std::size_t bad) {
  train(w, [&](TraceBuilder& t, std::size_t rank) { return rank == bad ? overflow(t) : fine(t); },
        std::vector<Numbers>(w.size(), kBad));
}

TEST(Ranks, what_is_born_on_one_and_reduced_is_one_finding_on_that_rank) {
  for (const std::size_t size : {2u, 4u}) {
    World w(in_order(size));
    born_on_one(w, 1);
    const Analysis a = w.analysis();
    ASSERT_EQ(a.findings.size(), 1u) << w.lines(a);
    const Finding& f = a.findings[0];
    EXPECT_EQ(w.lines(a), std::string("overflow | mul | fc1 | backward | step 1 | appear | observed @ 1 > ") +
                              (size == 2 ? "0" : "0 2 3") + " by allreduce\n");
    EXPECT_EQ(f.rank, 1u);
    EXPECT_EQ(f.occurrence_count, 1u);
    EXPECT_THAT(f.evidence, Contains(StartsWith("Born on rank 1; it came to rank")));
    // ... and the chain goes on over there
    std::set<std::uint32_t> seen;
    for (const ChainNode& node : f.chain.nodes) seen.insert(node.rank.value_or(99));
    EXPECT_EQ(seen.size(), size);
    EXPECT_EQ(f.chain.nodes.front().rank, 1u);
  }
}

TEST(Ranks, whose_gradients_are_finite_have_no_finding) {
  World w(in_order(4));
  train(w, [](TraceBuilder& t, std::size_t) { return fine(t); }, std::vector<Numbers>(4, kGood));
  EXPECT_EQ(w.lines(w.analysis()), "clean\n");
}

TEST(Ranks, two_that_are_bad_by_themselves_at_different_ops_are_two_findings) {
  World w(in_order(4));
  train(w,
        [](TraceBuilder& t, std::size_t rank) {
          if (rank == 3) return overflow(t);
          if (rank != 0) return fine(t);
          const Handle zero = t.value(half(1).zeros(2));
          return t.op("reciprocal", {{"self", zero}}, kBad);
        },
        std::vector<Numbers>(4, kBad));
  const Analysis a = w.analysis();
  EXPECT_EQ(w.lines(a),
            "divide_by_zero | reciprocal | fc1 | backward | step 1 | appear | observed @ 0 > 1 2 by allreduce\n"
            "overflow | mul | fc1 | backward | step 1 | appear | observed @ 3 > 1 2 by allreduce\n");
}

TEST(Ranks, that_are_all_bad_by_themselves_are_told_together_and_none_is_said_to_have_caught_it) {
  World w(in_order(4));
  train(w, [](TraceBuilder& t, std::size_t) { return overflow(t); }, std::vector<Numbers>(4, kBad));
  const Analysis a = w.analysis();
  EXPECT_EQ(w.lines(a), "overflow | mul | fc1 | backward | step 1 | appear | observed @ 0 1 2 3\n");
  EXPECT_THAT(a.findings[0].evidence, Contains(StartsWith("The same on ranks 0, 1, 2 and 3, each by itself")));
}

TEST(Ranks, whose_finite_shares_add_up_past_the_format_are_told_so_once) {
  World w(in_order(4));
  train(w, [](TraceBuilder& t, std::size_t) { return fine(t, 3e4); }, std::vector<Numbers>(4, kBad));
  const Analysis a = w.analysis();
  EXPECT_EQ(w.lines(a), "comm | c10d::allreduce_ | - | comm | step 1 | appear | observed @ 0 1 2 3\n");
  EXPECT_THAT(a.findings[0].title, HasSubstr("added up pass 65504, the largest fp16 number"));
  EXPECT_THAT(a.findings[0].explanation, HasSubstr("What each of ranks 0, 1, 2 and 3 gave was finite"));
  EXPECT_THAT(a.findings[0].explanation, HasSubstr("is 120000"));
}

TEST(Ranks, a_result_that_no_share_explains_is_a_failed_transfer) {
  World w(in_order(4));
  train(w, [](TraceBuilder& t, std::size_t) { return fine(t); }, {kGood, kBad, kGood, kGood});
  const Analysis a = w.analysis();
  EXPECT_EQ(w.lines(a), "comm | c10d::allreduce_ | - | comm | step 1 | appear | observed @ 1\n");
  EXPECT_THAT(a.findings[0].title, HasSubstr("that no rank gave"));
  EXPECT_THAT(a.findings[0].explanation, HasSubstr("the transfer itself failed"));
  EXPECT_THAT(a.findings[0].evidence, Contains("Rank 1 got bad numbers; ranks 0, 2 and 3 got finite ones."));
}

TEST(Ranks, one_of_which_there_is_no_trace_makes_everything_inferred) {
  World w(in_order(4));
  born_on_one(w, 2);
  // when the bad rank is the missing one
  const Analysis without_origin = w.analysis({2});
  EXPECT_EQ(w.lines(without_origin), "comm | c10d::allreduce_ | - | comm | step 1 | appear | inferred @ 0 1 3\n");
  EXPECT_THAT(without_origin.findings[0].evidence, Contains("There is no trace of rank 2."));
  EXPECT_THAT(without_origin.findings[0].explanation, HasSubstr("what rank 2 gave was bad"));
  EXPECT_THAT(without_origin.coverage.unwatched, Contains(StartsWith("1 of the run's 4 ranks: there is no trace")));
  // ... and when it is another
  EXPECT_EQ(w.lines(w.analysis({0})),
            "overflow | mul | fc1 | backward | step 1 | appear | inferred @ 2 > 1 3 by allreduce\n");
}

TEST(Ranks, bad_weights_broadcast_at_the_start_are_the_roots) {
  World w(in_order(4));
  std::vector<Handle> weights;
  for (std::size_t rank = 0; rank < 4; ++rank) {
    weights.push_back(w[rank].value(rank == 0 ? finite().nan(1) : finite()));
    w[rank].mark(TensorRole::kParameter, "fc1.weight", weights.back());
  }
  w.broadcast(0, weights, std::vector<Numbers>(4, finite().nan(1)));
  for (std::size_t rank = 0; rank < 4; ++rank) {
    w[rank].mark(TensorRole::kParameter, "fc1.weight", weights[rank]);
    const Handle y =
        w[rank].in("fc1").op("mm", {{"self", w[rank].value(finite())}, {"mat2", weights[rank]}}, finite().nan(8));
    w[rank].mark(TensorRole::kLoss, "loss", y);
    w[rank].end_step(std::nan(""));
  }
  EXPECT_EQ(w.lines(w.analysis()),
            "bad_state | <state> | fc1.weight | data | step 0 | unknown | observed @ 0 > 1 2 3 by broadcast\n");
}

TEST(Ranks, old_numbers_that_a_broadcast_writes_over_are_no_share) {
  // given bad contents on rank 1 where good ones of rank 0 go
  World w(in_order(2));
  std::vector<Handle> weights = {w[0].value(finite()), w[1].value(finite().nan(2))};
  w.broadcast(0, weights, {finite(), finite()});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    w[rank].mark(TensorRole::kParameter, "fc1.weight", weights[rank]);
    w[rank].end_step();
  }
  EXPECT_EQ(w.lines(w.analysis()), "clean\n");
}

// Two stages of a model: forward on rank 0, then on rank 1; the gradient goes back.
void pipeline(World& w, const Numbers& activation, const Numbers& loss, const Numbers& gradient) {
  const Handle a = w[0].value(half(300)), b = w[0].value(half(activation.pos_inf_count > 0 ? 400 : 1));
  const Handle y = w[0].in("stage0").op("mul", {{"self", a}, {"other", b}}, activation);
  const Handle got = w.send(0, 1, y, activation);
  const Handle z = w[1].in("stage1").op("sub", {{"self", got}, {"other", got}}, loss);
  w[1].mark(TensorRole::kLoss, "loss", z);
  const Handle dz = w[1].in("stage1", Phase::kBackward).op("mul", {{"self", z}, {"other", got}}, gradient);
  const Handle back = w.send(1, 0, dz, gradient);
  const Handle dw = w[0].in("stage0", Phase::kBackward).op("mul", {{"self", back}, {"other", b}}, gradient);
  w[0].mark(TensorRole::kBoundaryGradient, "stage0.weight", dw);
  for (std::size_t rank = 0; rank < 2; ++rank) w[rank].end_step();
}

TEST(Ranks, in_a_pipeline_badness_is_followed_through_send_and_receive_back_to_the_stage_that_made_it) {
  World w(in_order(2));
  pipeline(w, kBad, half(1).nan(3), half(1).nan(3));
  const Analysis a = w.analysis();
  EXPECT_EQ(w.lines(a), "overflow | mul | stage0 | forward | step 0 | appear | observed @ 0 > 1 by recv\n");
  EXPECT_THAT(a.findings[0].sinks, Contains("loss on rank 1"));
  World healthy(in_order(2));
  pipeline(healthy, kGood, kGood, kGood);
  EXPECT_EQ(healthy.lines(healthy.analysis()), "clean\n");
}

// Rank 1 says by a NaN that its loss is bad; `result` is what the ranks agree on.
void agree(World& w, Reduction reduction, const Numbers& result) {
  std::vector<Handle> flags;
  for (std::size_t rank = 0; rank < w.size(); ++rank) {
    const Handle zero = w[rank].value(finite(1).zeros(1));
    flags.push_back(w[rank].in("check").op("div",
                                           {{"self", zero}, {"other", rank == 1 ? zero : w[rank].value(finite(1))}},
                                           rank == 1 ? finite(1).nan(1) : finite(1)));
  }
  w.all_reduce(flags, std::vector<Numbers>(w.size(), result), reduction);
  for (std::size_t rank = 0; rank < w.size(); ++rank) w[rank].end_step();
}

TEST(Ranks, a_minimum_that_loses_a_nan_is_a_warning_and_one_that_keeps_it_is_none) {
  World lost(in_order(4));
  agree(lost, Reduction::kMin, finite(1));
  const Analysis a = lost.analysis();
  EXPECT_EQ(lost.lines(a), "warning comm | c10d::allreduce_ | - | comm | step 0 | disappear | observed @ 1\n");
  EXPECT_THAT(a.findings[0].title, HasSubstr("with MIN lost the NaN that rank 1 gave"));
  World kept(in_order(4));
  agree(kept, Reduction::kMin, finite(1).nan(1));
  EXPECT_EQ(kept.lines(kept.analysis()), "clean\n");
  World max(in_order(4));
  agree(max, Reduction::kMax, finite(1));
  EXPECT_EQ(max.analysis().findings.size(), 1u);
}

// A dynamic scaler skips step 0, in which rank 1 overflows at its scale, and lets the next ones pass at half of it.
void calibrate(World& w) {
  for (int step = 0; step < 3; ++step) {
    const double scale = step == 0 ? 65536 : 32768;
    std::vector<Handle> gradients;
    for (std::size_t rank = 0; rank < w.size(); ++rank) {
      ScalerRecord r;
      r.scale = scale;
      r.growth_interval = 2000;
      r.growth_factor = 2;
      r.backoff_factor = 0.5;
      if (step == 0) {
        r.action = ScalerAction::kCreate;
        w[rank].scaler(r, "torch.amp");
      }
      r.action = ScalerAction::kScale;
      w[rank].scaler(r);
      w[rank].in("fc1", Phase::kBackward);
      gradients.push_back(step == 0 && rank == 1 ? overflow(w[rank]) : fine(w[rank]));
    }
    w.all_reduce(gradients, std::vector<Numbers>(w.size(), step == 0 ? kBad : kGood));
    for (std::size_t rank = 0; rank < w.size(); ++rank) {
      w[rank].mark(TensorRole::kBoundaryGradient, "fc1.weight", gradients[rank]);
      ScalerRecord r;
      r.scale = scale;
      r.found_inf = step == 0;
      r.action = step == 0 ? ScalerAction::kSkip : ScalerAction::kStep;
      w[rank].scaler(r);
      r.action = ScalerAction::kUpdate;
      r.scale = 32768;
      w[rank].scaler(r);
      w[rank].end_step(1, scale, step == 0);
    }
  }
}

TEST(Ranks, an_overflow_that_the_scaler_calibrated_away_is_no_fault_on_any_of_them) {
  World w(in_order(4));
  calibrate(w);
  const Analysis a = w.analysis();
  EXPECT_EQ(a.verdict.status, VerdictStatus::kCalibrating) << w.lines(a);
  EXPECT_EQ(w.lines(a),
            "info scaler_calibration | mul | fc1 | backward | step 0 | appear | observed @ 1 > 0 2 3 by allreduce\n");
}

TEST(Ranks, sum_up_what_each_noted_as_not_watched) {
  World w(in_order(2));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    w[rank].note("Compiled modules", 3 + rank);
    w[rank].end_step();
  }
  w[1].note("Sparse tensors", 2);
  const Analysis a = w.analysis();
  EXPECT_THAT(a.coverage.unwatched, Contains("Compiled modules (7)"));
  EXPECT_THAT(a.coverage.unwatched, Contains("Sparse tensors (2)"));
  EXPECT_EQ(std::count_if(a.coverage.unwatched.begin(), a.coverage.unwatched.end(),
                          [](const std::string& line) { return line.starts_with("Compiled modules"); }),
            1);
}

TEST(Ranks, whose_later_steps_stay_bad_count_them_once) {
  World w(in_order(2));
  std::vector<Handle> weights = {w[0].value(kGood), w[1].value(kGood)};
  for (int step = 0; step < 5; ++step) {
    std::vector<Handle> gradients;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      w[rank].in("fc1", Phase::kBackward);
      gradients.push_back(step == 0 ? (rank == 0 ? overflow(w[rank]) : fine(w[rank]))
                                    : w[rank].op("mul", {{"self", weights[rank]}, {"other", weights[rank]}}, kBad));
    }
    w.all_reduce(gradients, {kBad, kBad});
    for (std::size_t rank = 0; rank < 2; ++rank) {
      w[rank].mark(TensorRole::kBoundaryGradient, "fc1.weight", gradients[rank]);
      w[rank].in("fc1.weight", Phase::kOptimizer).in_place("add_", weights[rank], {{"other", gradients[rank]}}, kBad);
      w[rank].mark(TensorRole::kParameter, "fc1.weight", weights[rank]);
      w[rank].end_step();
    }
  }
  const Analysis a = w.analysis();
  ASSERT_EQ(a.findings.size(), 1u) << w.lines(a);
  EXPECT_EQ(a.findings[0].occurrence_count, 1u);
  EXPECT_EQ(a.findings[0].bad_steps.count, 5u);
  EXPECT_EQ(a.findings[0].bad_steps.last, 4u);
  EXPECT_EQ(w.lines(a), "overflow | mul | fc1 | backward | step 0 | appear | observed @ 0 > 1 by allreduce\n");
}

TEST(Ranks, rows_of_calls_that_come_after_their_ops_are_understood_too) {
  World w(in_order(2));
  std::vector<Handle> g;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    w[rank].in("fc1", Phase::kBackward);
    g.push_back(rank == 0 ? overflow(w[rank]) : fine(w[rank]));
    CollectiveRecord record = w.call(rank, CollectiveKind::kAllReduce, Reduction::kSum);
    w[rank].in("", Phase::kComm).in_place("c10d::allreduce_", g[rank], {}, kBad);
    w[rank].mark(TensorRole::kBoundaryGradient, "fc1.weight", g[rank]);
    w[rank].collective_of_last_op(record);
    w[rank].end_step();
  }
  EXPECT_EQ(w.lines(w.analysis()),
            "overflow | mul | fc1 | backward | step 0 | appear | observed @ 0 > 1 by allreduce\n");
}

// The reduction of a bucket returns before it is done; its result is first read through the view of one gradient.
void reduce_later(World& w, std::size_t bad) {
  for (std::size_t rank = 0; rank < w.size(); ++rank) {
    w[rank].in("fc1", Phase::kBackward);
    Handle bucket = rank == bad ? overflow(w[rank]) : fine(w[rank]);
    w[rank].collective(w.call(rank, CollectiveKind::kAllReduce, Reduction::kSum));
    w[rank].in("", Phase::kComm).in_place("c10d::allreduce_", bucket, {}, kBad.unread());
    const Handle view = w[rank].seen_as(bucket, half(1).shape({4}).inf(2), bucket.id);
    Handle gradient = w[rank].value(half(1).shape({4}));
    w[rank].in("", Phase::kBackward).in_place("copy_", gradient, {{"src", view}}, half(1).shape({4}).inf(2));
    w[rank].mark(TensorRole::kBoundaryGradient, "fc1.weight", gradient);
    w[rank].end_step();
  }
}

TEST(Ranks, a_result_that_is_read_only_later_came_through_its_call_all_the_same) {
  World w(in_order(4));
  reduce_later(w, 2);
  EXPECT_EQ(w.lines(w.analysis()),
            "overflow | mul | fc1 | backward | step 0 | appear | observed @ 2 > 0 1 3 by allreduce\n");
  World none(in_order(4));
  reduce_later(none, 99);
  const Analysis a = none.analysis();
  EXPECT_EQ(none.lines(a), "comm | c10d::allreduce_ | - | comm | step 0 | appear | observed @ 0 1 2 3\n");
}

TEST(Ranks, that_disagree_on_what_a_call_was_are_not_matched) {
  World w(in_order(2));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    w[rank].in("fc1", Phase::kBackward);
    Handle g = rank == 0 ? overflow(w[rank]) : fine(w[rank]);
    w[rank].collective(
        w.call(rank, rank == 0 ? CollectiveKind::kAllReduce : CollectiveKind::kAllGather, Reduction::kSum));
    w[rank].in("", Phase::kComm).in_place("c10d::allreduce_", g, {}, kBad);
    w[rank].mark(TensorRole::kBoundaryGradient, "fc1.weight", g);
    w[rank].end_step();
  }
  EXPECT_EQ(w.lines(w.analysis()),
            "comm | c10d::allreduce_ | - | comm | step 0 | appear | inferred @ 1\n"
            "overflow | mul | fc1 | backward | step 0 | appear | observed @ 0\n");
}

// What ranks are called must not matter.
TEST(Ranks, renumbered_give_the_same_answer_renumbered) {
  const std::vector<std::pair<const char*, std::function<void(World&)>>> runs = {
      {"began on one", [](World& w) { born_on_one(w, 1); }},
      {"all by themselves",
       [](World& w) {
         train(
             w, [](TraceBuilder& t, std::size_t) { return overflow(t); }, std::vector<Numbers>(4, kBad));
       }},
      {"sum",
       [](World& w) {
         train(
             w, [](TraceBuilder& t, std::size_t) { return fine(t, 3e4); }, std::vector<Numbers>(4, kBad));
       }},
      {"transfer",
       [](World& w) {
         train(w, [](TraceBuilder& t, std::size_t) { return fine(t); }, {kGood, kBad, kGood, kBad});
       }},
      {"flag", [](World& w) { agree(w, Reduction::kMax, finite(1)); }},
      {"scaler", [](World& w) { calibrate(w); }},
      {"pipeline",
       [](World& w) {
         pipeline(w, kBad, half(1).nan(3), half(1).nan(3));
         for (std::size_t rank = 2; rank < 4; ++rank) w[rank].end_step();
       }},
  };
  for (const auto& [name, build] : runs) {
    World plain(in_order(4));
    build(plain);
    const std::string expected = plain.lines(plain.analysis());
    const std::string without = plain.lines(plain.analysis({1}));
    for (const std::vector<std::uint32_t>& numbers :
         {std::vector<std::uint32_t>{3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}}) {
      World renumbered(numbers);
      build(renumbered);
      EXPECT_EQ(renumbered.lines(renumbered.analysis()), expected) << name;
      EXPECT_EQ(renumbered.lines(renumbered.analysis({1})), without) << name << ", one missing";
    }
  }
}

}  // namespace
}  // namespace nanhunt
