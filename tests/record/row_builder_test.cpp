// SPDX-License-Identifier: Apache-2.0
#include "src/record/rows/row_builder.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nanhunt/recorder.h"
#include "tests/record/support.h"

namespace nanhunt::record {
namespace {

using testing::add_op;
using ::testing::ElementsAre;
using testing::TestTensor;

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

class RowBuilderTest : public ::testing::Test {
 protected:
  const RecordBatch& batch() const { return builder.rows().batch; }
  const ValueRecord& value(ValueId id) const {
    for (const ValueRecord& v : batch().values) {
      if (v.id == id) return v;
    }
    throw std::out_of_range("no such value");
  }
  std::string text(StringId id) const {
    for (const StringRecord& s : batch().strings) {
      if (s.id == id) return s.text;
    }
    return "";
  }
  RowBuilder builder{{}};
};

TEST_F(RowBuilderTest, an_op_leaves_its_inputs_outputs_and_names) {
  // given
  const TestTensor a(DType::kF32, {2}, {1, 2}, 10), b(DType::kF32, {2}, {3, 4}, 11), c(DType::kF32, {2}, {4, 6}, 12);
  // when
  const bool anomalous = add_op(builder, "add", {{"self", a}, {"other", b}}, {{"out", c}}, {{"alpha", 1}});
  // then
  EXPECT_FALSE(anomalous);
  ASSERT_EQ(batch().ops.size(), 1u);
  const OpRecord& op = batch().ops[0];
  EXPECT_EQ(op.seq, 0u);
  EXPECT_EQ(op.step, 3u);
  EXPECT_EQ(text(op.op), "add");
  EXPECT_EQ(text(op.module), "fc1");
  EXPECT_EQ(op.call_site, 0u);
  ASSERT_EQ(batch().inputs.size(), 2u);
  EXPECT_EQ(text(batch().inputs[1].slot), "other");
  EXPECT_EQ(batch().scalars.size(), 1u);
  ASSERT_EQ(batch().values.size(), 3u);
  EXPECT_EQ(batch().values[0].id, 1u);
  EXPECT_EQ(batch().values[0].producer, kNoSeq);
  EXPECT_EQ(batch().values[2].producer, 0u);
  EXPECT_EQ(batch().values[2].stats.amax, 6);
  EXPECT_EQ(batch().layouts.size(), 1u);
}

TEST_F(RowBuilderTest, a_value_seen_again_keeps_its_id_and_is_not_written_twice) {
  const TestTensor a(DType::kF32, {1}, {1}, 10), b(DType::kF32, {1}, {1}, 11), c(DType::kF32, {1}, {1}, 12);
  add_op(builder, "neg", {{"self", a}}, {{"out", b}});
  add_op(builder, "neg", {{"self", b}}, {{"out", c}});
  add_op(builder, "add", {{"self", b}, {"other", c}}, {{"out", TestTensor(DType::kF32, {1}, {2}, 13)}});
  EXPECT_EQ(batch().inputs[1].value, batch().outputs[0].value);
  EXPECT_EQ(batch().inputs[2].value, batch().outputs[0].value);
  EXPECT_EQ(batch().values.size(), 4u);
}

TEST_F(RowBuilderTest, an_in_place_write_makes_a_new_value_that_has_the_old_one_among_its_inputs) {
  // given
  TestTensor p(DType::kF32, {2}, {1, 2}, 10);
  const TestTensor g(DType::kF32, {2}, {1, 1}, 11);
  builder.add_mark({0, 0, TensorRole::kParameter, "fc1.weight", p.value()});
  // when
  p.write({2, 3});
  add_op(builder, "add_", {{"self", p.old_version(), ArgRole::kOverwritten}, {"other", g}}, {{"out", p}});
  // then
  ASSERT_EQ(batch().inputs.size(), 2u);
  EXPECT_EQ(batch().inputs[0].value, batch().marks[0].value);
  EXPECT_EQ(batch().inputs[0].role, ArgRole::kOverwritten);
  EXPECT_NE(batch().outputs[0].value, batch().inputs[0].value);
  const ValueRecord& written = value(batch().outputs[0].value);
  EXPECT_EQ(written.version, 1u);
  EXPECT_EQ(written.base, 0u);
  EXPECT_EQ(written.stats.max, 3);
}

TEST_F(RowBuilderTest, an_unseen_old_version_has_no_statistics) {
  TestTensor p(DType::kF32, {1}, {1}, 10);
  p.write({2});
  add_op(builder, "fill_", {{"self", p.old_version(), ArgRole::kOverwritten}}, {{"out", p}});
  EXPECT_FALSE(value(batch().inputs[0].value).has_stats);
  EXPECT_EQ(value(batch().inputs[0].value).producer, kNoSeq);
}

TEST_F(RowBuilderTest, a_view_ops_output_has_its_input_as_base) {
  const TestTensor w(DType::kF32, {2, 3}, {1, 2, 3, 4, 5, 6}, 10);
  add_op(builder, "t", {{"self", w}}, {{"out", w.t()}});
  const ValueRecord& view = value(batch().outputs[0].value);
  EXPECT_EQ(view.base, batch().inputs[0].value);
  EXPECT_EQ(view.producer, 0u);
  EXPECT_EQ(view.stats, compute_stats(w.t().tensor(), StatsLevel::kSums));
}

TEST_F(RowBuilderTest, a_partial_view_has_its_own_statistics) {
  const TestTensor w(DType::kF32, {4}, {1, 2, 3, 40}, 10);
  add_op(builder, "narrow", {{"self", w}}, {{"out", w.view({2}, {1}, 2)}});
  const ValueRecord& view = value(batch().outputs[0].value);
  EXPECT_EQ(view.offset, 2);
  EXPECT_EQ(view.stats.numel, 2);
  EXPECT_EQ(view.stats.min, 3);
}

TEST_F(RowBuilderTest, a_transposed_bad_tensor_knows_where_its_own_first_bad_element_is) {
  const TestTensor w(DType::kF32, {2, 2}, {1, 2, kNan, 4}, 10);
  add_op(builder, "t", {{"self", w}}, {{"out", w.t()}});
  EXPECT_EQ(value(batch().inputs[0].value).stats.first_nonfinite, 2);
  EXPECT_EQ(value(batch().outputs[0].value).stats.first_nonfinite, 1);
}

TEST_F(RowBuilderTest, an_unseen_view_of_a_known_value_has_it_as_base) {
  const TestTensor w(DType::kF32, {4}, {1, 2, 3, 4}, 10);
  builder.add_mark({0, 0, TensorRole::kParameter, "w", w.value()});
  builder.add_mark({0, 0, TensorRole::kParameter, "w.part", w.view({2}, {1}, 1).value()});
  EXPECT_EQ(value(2).base, 1u);
  EXPECT_EQ(value(2).producer, kNoSeq);
}

TEST_F(RowBuilderTest, a_view_of_another_dtype_is_another_value) {
  const TestTensor a(DType::kF32, {2}, {1, 2}, 10);
  const TestTensor same_bytes(DType::kI32, {2}, {1, 2}, 10);
  builder.add_mark({0, 0, TensorRole::kBuffer, "a", a.value()});
  builder.add_mark({0, 0, TensorRole::kBuffer, "b", same_bytes.value()});
  EXPECT_EQ(batch().values.size(), 2u);
  EXPECT_NE(value(1).layout, value(2).layout);
}

TEST_F(RowBuilderTest, a_tensor_without_identity_is_a_new_value_each_time) {
  const TestTensor a(DType::kF32, {1}, {1}, 0);
  builder.add_mark({0, 0, TensorRole::kBuffer, "a", a.value()});
  builder.add_mark({0, 0, TensorRole::kBuffer, "a", a.value()});
  EXPECT_EQ(batch().values.size(), 2u);
  EXPECT_EQ(builder.table().values(), 0u);
}

TEST_F(RowBuilderTest, a_released_storage_is_forgotten_and_told) {
  // given
  const TestTensor a(DType::kF32, {1}, {1}, 10), b(DType::kF32, {1}, {1}, 11);
  add_op(builder, "neg", {{"self", a}}, {{"out", b}});
  // when
  builder.add_release(10);
  builder.add_release(10);
  builder.add_release(999);
  // then
  EXPECT_THAT(batch().ends_of_life, ElementsAre(EndOfLifeRecord{10, 1}));
  EXPECT_EQ(builder.table().storages(), 1u);
}

TEST_F(RowBuilderTest, long_lived_storages_do_not_grow_with_every_write_or_view) {
  TestTensor p(DType::kF32, {4}, {1, 2, 3, 4}, 10);
  for (int i = 0; i < 100; ++i) {
    p.write({1, 2, 3, 4});
    add_op(builder, "add_", {{"self", p.old_version(), ArgRole::kOverwritten}}, {{"out", p}});
  }
  EXPECT_LE(builder.table().values(), 5u);
  for (int i = 0; i < 2000; ++i) {
    add_op(builder, "narrow", {{"self", p}}, {{"out", p.view({1}, {i + 1}, 0)}});
  }
  EXPECT_LE(builder.table().values(), 257u);
}

TEST_F(RowBuilderTest, storages_whose_end_is_hidden_are_forgotten_the_least_recently_used_first) {
  // given
  RowBuilder small({StatsLevel::kSums, 0, 0, true, {.storages = 100, .values_per_storage = 8, .versions = 2}});
  const TestTensor parameter(DType::kF32, {1}, {1}, 1);
  // when
  for (std::uint64_t s = 2; s < 1000; ++s) {
    add_op(small, "neg", {{"self", parameter}}, {{"out", TestTensor(DType::kF32, {1}, {1}, s)}});
  }
  // then
  EXPECT_LE(small.table().storages(), 101u);
  const RecordBatch& b = small.rows().batch;
  for (const OpArg& in : b.inputs) EXPECT_EQ(in.value, 1u);  // the parameter was never forgotten
  EXPECT_TRUE(b.ends_of_life.empty());  // they live on: only the recorder forgot them
  // when one that was forgotten ends after all, and one that is known
  small.add_release(2);
  small.add_release(1);
  // then the file is told, for it holds rows of both
  EXPECT_THAT(b.ends_of_life, ElementsAre(EndOfLifeRecord{2, 998}, EndOfLifeRecord{1, 998}));
}

TEST_F(RowBuilderTest, names_without_end_take_a_bounded_table_and_the_rest_is_counted) {
  // given a run that puts the step into a name of 4000 letters
  StringInterner strings;
  RecordBatch rows;
  const auto name_of = [](int step) { return std::to_string(step).append(4000, 'x'); };
  StringId known = 0;
  std::size_t bytes = 0;
  for (int step = 0; step < 20'000; ++step) {
    rows.strings.clear();
    const StringId id = strings.intern(name_of(step), rows);
    if (step == 0) known = id;
    for (const StringRecord& row : rows.strings) bytes += row.text.size();
  }
  // then
  EXPECT_LE(bytes, kMaxInternedBytes);
  EXPECT_GT(strings.refused(), 10'000u);
  EXPECT_EQ(strings.intern(name_of(0), rows), known);  // what is known stays known
}

TEST_F(RowBuilderTest, layouts_without_end_take_a_bounded_table) {
  LayoutInterner layouts;
  RecordBatch rows;
  std::vector<std::int64_t> sizes(60, 1), strides(60, 1);
  for (std::int64_t step = 1; step < 40'000; ++step) {
    rows.layouts.clear();
    sizes[0] = step;
    layouts.intern({nullptr, DType::kF32, sizes, strides}, rows);
  }
  EXPECT_GT(layouts.refused(), 5'000u);
}

TEST_F(RowBuilderTest, the_end_of_a_storage_that_was_never_seen_is_not_told) {
  builder.add_release(77);
  EXPECT_TRUE(batch().ends_of_life.empty());
}

TEST_F(RowBuilderTest, marks_batches_steps_and_experiments_are_kept) {
  const TestTensor loss(DType::kF32, {}, {kInf}, 10);
  const std::vector<std::int64_t> ids = {7, 9};
  builder.add_batch({2, 1, ids});
  builder.add_mark({2, 1, TensorRole::kLoss, "loss", loss.value()});
  builder.add_step({2, true, kInf, 0.5, 1024}, 77);
  ExperimentRecord experiment;
  experiment.fix = "fp32-masters";
  builder.add_experiment(experiment);
  EXPECT_THAT(batch().sample_ids, ElementsAre(SampleIdsRecord{2, 1, {7, 9}}));
  ASSERT_EQ(batch().marks.size(), 1u);
  EXPECT_EQ(batch().marks[0].seq, 0u);
  EXPECT_EQ(text(batch().marks[0].path), "loss");
  EXPECT_EQ(value(1).stats.pos_inf, 1);
  EXPECT_THAT(batch().steps, ElementsAre(StepRecord{2, true, kInf, 0.5, 1024, 0, 77}));
  EXPECT_EQ(batch().experiments.size(), 1u);
}

TEST_F(RowBuilderTest, evidence_shows_the_first_inf_and_the_first_nan_and_what_met_there) {
  // given 0/0 at element 1 and 2/0 at element 2
  const TestTensor a(DType::kF16, {3}, {1, 0, 2}, 10), b(DType::kF16, {3}, {1, 0, 0}, 11);
  const TestTensor out(DType::kF16, {3}, {1, kNan, kInf}, 12);
  // when
  EXPECT_TRUE(add_op(builder, "div", {{"self", a}, {"other", b}}, {{"out", out}}));
  // then
  ASSERT_EQ(batch().evidence.size(), 2u);
  const EvidenceRecord& inf = batch().evidence[0];
  const EvidenceRecord& nan = batch().evidence[1];
  EXPECT_EQ(inf.flat_index, 2);
  EXPECT_EQ(inf.number, kInf);
  ASSERT_EQ(inf.operands.size(), 2u);
  EXPECT_EQ(text(inf.operands[0].slot), "self");
  EXPECT_EQ(inf.operands[0].number, 2);
  EXPECT_EQ(inf.operands[1].number, 0);
  EXPECT_EQ(nan.flat_index, 1);
  EXPECT_TRUE(std::isnan(nan.number));
  EXPECT_EQ(nan.value, batch().outputs[0].value);
}

TEST_F(RowBuilderTest, inf_turned_into_nan_is_evidence_but_a_carried_nan_is_not) {
  const TestTensor inf(DType::kF32, {1}, {kInf}, 10), zero(DType::kF32, {1}, {0}, 11);
  const TestTensor nan(DType::kF32, {1}, {kNan}, 12), carried(DType::kF32, {1}, {kNan}, 13);
  const TestTensor carried_inf(DType::kF32, {1}, {-kInf}, 14);
  add_op(builder, "neg", {{"self", inf}}, {{"out", carried_inf}});
  EXPECT_EQ(batch().evidence.size(), 0u);
  add_op(builder, "mul", {{"self", inf}, {"other", zero}}, {{"out", nan}});
  EXPECT_EQ(batch().evidence.size(), 1u);
  add_op(builder, "neg", {{"self", nan}}, {{"out", carried}});
  EXPECT_EQ(batch().evidence.size(), 1u);
}

TEST_F(RowBuilderTest, junk_that_an_op_writes_over_is_not_held_against_it) {
  for (const char* name : {"fill_", "copy_"}) {
    // given memory full of NaN, recorded as such
    RowBuilder fresh{{}};
    TestTensor p(DType::kF32, {2}, {kNan, kInf}, 10);
    const TestTensor source(DType::kF32, {2}, {1, 2}, 11);
    fresh.add_mark({0, 0, TensorRole::kBuffer, "junk", p.value()});
    // when the op writes an infinity over it that its other input did not hold
    p.write({1, kInf});
    add_op(fresh, name, {{"self", p.old_version(), ArgRole::kOverwritten}, {"src", source}}, {{"out", p}});
    // then it is a birth
    EXPECT_EQ(fresh.rows().batch.evidence.size(), 1u) << name;
    EXPECT_EQ(fresh.rows().batch.histograms.size(), 2u) << name;
  }
}

TEST_F(RowBuilderTest, an_op_that_reads_what_it_writes_over_carries_its_badness) {
  TestTensor p(DType::kF32, {2}, {kNan, kInf}, 10);
  const TestTensor other(DType::kF32, {2}, {1, 2}, 11);
  builder.add_mark({0, 0, TensorRole::kBuffer, "running_mean", p.value()});
  p.write({kNan, kInf});
  add_op(builder, "add_", {{"self", p.old_version(), ArgRole::kOverwritten}, {"other", other}}, {{"out", p}});
  EXPECT_TRUE(batch().evidence.empty());
  EXPECT_TRUE(batch().histograms.empty());
}

TEST_F(RowBuilderTest, a_birth_leaves_histograms_of_what_went_in_and_what_came_out) {
  // given 4 * 2^15 = 2^17, beyond fp16
  const TestTensor a(DType::kF16, {3}, {4, 0.5, 0}, 10), b(DType::kF16, {3}, {32768, 1, 1}, 11);
  const TestTensor out(DType::kF16, {3}, {kInf, 0.5, 0}, 12);
  // when
  add_op(builder, "mul", {{"self", a}, {"other", b}}, {{"out", out}});
  // then
  ASSERT_EQ(batch().histograms.size(), 3u);
  const HistogramRecord& first = batch().histograms[0];
  EXPECT_EQ(first.seq, 0u);
  EXPECT_EQ(first.value, batch().inputs[0].value);
  EXPECT_EQ(first.min_exponent, -1);
  EXPECT_THAT(first.bins, ElementsAre(1, 0, 0, 1));
  EXPECT_EQ(batch().histograms[1].min_exponent, 0);
  EXPECT_EQ(batch().histograms[1].bins.size(), 16u);
  EXPECT_EQ(batch().histograms[2].value, batch().outputs[0].value);
  EXPECT_THAT(batch().histograms[2].bins, ElementsAre(1));
}

TEST_F(RowBuilderTest, an_inf_that_turns_into_nan_leaves_histograms_a_carried_one_does_not) {
  const TestTensor inf(DType::kF32, {1}, {kInf}, 10), zero(DType::kF32, {1}, {0}, 11);
  const TestTensor nan(DType::kF32, {1}, {kNan}, 12), carried(DType::kF32, {1}, {kNan}, 13);
  const TestTensor carried_inf(DType::kF32, {1}, {-kInf}, 14), clean(DType::kF32, {1}, {0}, 15);
  add_op(builder, "neg", {{"self", inf}}, {{"out", carried_inf}});
  add_op(builder, "neg", {{"self", zero}}, {{"out", clean}});
  EXPECT_TRUE(batch().histograms.empty());
  add_op(builder, "mul", {{"self", inf}, {"other", zero}}, {{"out", nan}});
  EXPECT_EQ(batch().histograms.size(), 3u);
  add_op(builder, "neg", {{"self", nan}}, {{"out", carried}});
  EXPECT_EQ(batch().histograms.size(), 3u);
}

TEST_F(RowBuilderTest, histograms_leave_out_old_contents_masks_indices_and_repeats) {
  TestTensor p(DType::kF32, {2}, {1, 2}, 10);
  const TestTensor x(DType::kF32, {2}, {1, 2}, 11), mask(DType::kBool, {2}, {1, 0}, 12);
  const TestTensor index(DType::kI64, {2}, {1, 0}, 13), gone = TestTensor(DType::kF32, {2}, {1, 1}, 14).without_data();
  const TestTensor old = p;
  builder.add_mark({0, 0, TensorRole::kParameter, "p", old.value()});
  p.write({kInf, 2});  // in the same memory: `old` now shows what came out
  add_op(builder, "index_put_",
         {{"self", old, ArgRole::kOverwritten},
          {"x", x},
          {"x again", x},
          {"mask", mask, ArgRole::kMask},
          {"index", index, ArgRole::kIndex},
          {"gone", gone}},
         {{"out", p}});
  ASSERT_EQ(batch().histograms.size(), 2u);
  EXPECT_EQ(batch().histograms[0].value, batch().inputs[1].value);
  EXPECT_EQ(batch().histograms[1].value, batch().outputs[0].value);
}

TEST_F(RowBuilderTest, histograms_stay_within_their_budget) {
  RowBuilder small({StatsLevel::kSums, 256, 3, {}});
  const TestTensor a(DType::kF32, {1}, {0}, 10), bad(DType::kF32, {1}, {kInf}, 11), more(DType::kF32, {1}, {kInf}, 12);
  add_op(small, "log", {{"self", a}}, {{"out", bad}});
  add_op(small, "log", {{"self", a}}, {{"out", more}});
  EXPECT_EQ(small.rows().batch.histograms.size(), 3u);
}

TEST_F(RowBuilderTest, evidence_stays_within_its_budget) {
  RowBuilder small({StatsLevel::kSums, 1, 3, {}});
  const TestTensor a(DType::kF32, {1}, {1}, 10), bad(DType::kF32, {2}, {kNan, kInf}, 11);
  add_op(small, "log", {{"self", a}}, {{"out", bad}});
  EXPECT_EQ(small.rows().batch.evidence.size(), 1u);
}

TEST_F(RowBuilderTest, flushed_elements_are_counted_for_products) {
  const TestTensor g(DType::kF16, {3}, {1e-5, 0, 1}, 10), v(DType::kF16, {3}, {0, 0, 1}, 11);
  add_op(builder, "mul", {{"self", g}, {"other", g}}, {{"out", v}});
  EXPECT_EQ(value(batch().outputs[0].value).flushed, 1);
}

TEST_F(RowBuilderTest, below_counts_it_still_tells_nan_from_inf) {
  RowBuilder low({StatsLevel::kFinite, 0, 0, {}});
  add_op(low, "neg", {}, {{"out", TestTensor(DType::kF32, {2}, {kNan, kInf}, 10)}});
  EXPECT_EQ(low.rows().batch.values[0].stats.nan, 1);
  EXPECT_EQ(low.rows().batch.values[0].stats.pos_inf, 1);
}

TEST_F(RowBuilderTest, an_integer_output_is_no_anomaly_and_an_empty_one_is_recorded) {
  EXPECT_FALSE(add_op(builder, "argmax", {}, {{"out", TestTensor(DType::kI64, {2}, {1, 2}, 10)}}));
  EXPECT_FALSE(add_op(builder, "narrow", {}, {{"out", TestTensor(DType::kF16, {0, 3}, {}, 11)}}));
  EXPECT_EQ(value(2).stats.numel, 0);
}

TEST_F(RowBuilderTest, names_past_the_limit_are_refused_and_counted) {
  StringInterner few(2);
  RecordBatch rows;
  EXPECT_EQ(few.intern("a", rows), 1u);
  EXPECT_EQ(few.intern("", rows), 0u);
  EXPECT_EQ(few.intern("b", rows), 2u);
  EXPECT_EQ(few.intern("c", rows), 0u);
  EXPECT_EQ(few.intern("a", rows), 1u);
  EXPECT_EQ(few.refused(), 1u);
  EXPECT_EQ(rows.strings.size(), 2u);
}

TEST_F(RowBuilderTest, thinning_keeps_what_is_bad_and_all_it_needs) {
  // given a clean op, a bad one that reads its output, and a clean one elsewhere
  const TestTensor a(DType::kF32, {1}, {1}, 10), b(DType::kF32, {1}, {-1}, 11), bad(DType::kF32, {1}, {kNan}, 12);
  const TestTensor c(DType::kF32, {1}, {1}, 13), d(DType::kF32, {1}, {2}, 14);
  add_op(builder, "neg", {{"self", a}}, {{"out", b}});
  add_op(builder, "sqrt", {{"self", b}}, {{"out", bad}});
  add_op(builder, "exp", {{"self", c}}, {{"out", d}}, {{"base", 2.5}});
  builder.add_mark({0, 0, TensorRole::kLoss, "loss", bad.value()});
  builder.add_mark({0, 0, TensorRole::kParameter, "a", a.value()});
  builder.add_release(14);
  builder.add_release(12);
  // when
  const Dropped dropped = builder.thin_rows();
  // then
  EXPECT_EQ(dropped.ops, 2u);
  EXPECT_EQ(dropped.values, 3u);
  EXPECT_EQ(dropped.other, 1u);
  ASSERT_EQ(batch().ops.size(), 1u);
  EXPECT_EQ(text(batch().ops[0].op), "sqrt");
  EXPECT_EQ(batch().ops[0].first_input, 0u);
  ASSERT_EQ(batch().inputs.size(), 1u);
  EXPECT_EQ(value(batch().inputs[0].value).stats.min, -1);
  EXPECT_EQ(batch().marks.size(), 1u);
  EXPECT_EQ(batch().evidence.size(), 1u);
  EXPECT_THAT(batch().ends_of_life, ElementsAre(EndOfLifeRecord{12, 3}));
  EXPECT_NE(text(1), "");  // every name is still there
  EXPECT_TRUE(batch().scalars.empty());
}

TEST_F(RowBuilderTest, a_value_whose_row_was_dropped_is_written_again_when_it_is_needed) {
  // given
  const TestTensor w(DType::kF32, {2, 1}, {1, 2}, 10), out(DType::kF32, {1}, {3}, 11);
  add_op(builder, "t", {{"self", w}}, {{"out", w.t()}});
  const ValueId base = batch().inputs[0].value, view = batch().outputs[0].value;
  builder.thin_rows();
  ASSERT_TRUE(batch().values.empty());
  // when
  add_op(builder, "mm", {{"self", w.t()}}, {{"out", out}});
  // then
  ASSERT_EQ(batch().values.size(), 3u);
  EXPECT_EQ(batch().values[0].id, base);
  EXPECT_EQ(batch().values[1].id, view);
  EXPECT_EQ(batch().values[1].producer, 0u);
  EXPECT_EQ(batch().values[2].id, 3u);
}

TEST_F(RowBuilderTest, a_storage_with_rows_in_an_earlier_batch_ends_in_the_file_even_when_thinned) {
  const TestTensor a(DType::kF32, {1}, {1}, 10);
  builder.add_mark({0, 0, TensorRole::kParameter, "a", a.value()});
  builder.begin_batch({});
  builder.add_release(10);
  builder.thin_rows();
  EXPECT_EQ(batch().ends_of_life.size(), 1u);
}

TEST_F(RowBuilderTest, what_a_rank_gives_is_read_before_the_call_writes_over_it) {
  // given a share in which something is not finite, told with its call
  TestTensor g(DType::kF32, {2}, {1, kInf}, 10);
  const std::vector<std::uint32_t> ranks = {0, 1, 2};
  const std::vector<ValueView> shares = {g.value()};
  CollectiveEvent call;
  call.seq = builder.next_seq();
  call.step = 3;
  call.group = "dp";
  call.call = 5;
  call.reduction = Reduction::kSum;
  call.ranks = ranks;
  call.shares = shares;
  builder.add_collective(call);
  // when the op has run in place
  g.write({kNan, kNan});
  const TestTensor old = g.old_version();
  add_op(builder, "allreduce_", {{"tensors", old, ArgRole::kOverwritten}}, {{"out", g}});
  // then the op's input is the share as it was
  ASSERT_EQ(batch().collectives.size(), 1u);
  EXPECT_EQ(batch().collectives[0].seq, batch().ops[0].seq);
  EXPECT_EQ(text(batch().collectives[0].group), "dp");
  EXPECT_EQ(batch().collectives[0].ranks, ranks);
  EXPECT_EQ(value(batch().inputs[0].value).stats.pos_inf, 1);
  EXPECT_EQ(value(batch().outputs[0].value).stats.nan, 2);
}

TEST_F(RowBuilderTest, kernels_are_rows_of_the_op_that_launched_them_however_late_they_come) {
  // given two ops
  const TestTensor a(DType::kF32, {1}, {1}, 10), b(DType::kF32, {1}, {1}, 11), c(DType::kF32, {1}, {1}, 12);
  add_op(builder, "relu", {{"self", a}}, {{"out", b}});
  add_op(builder, "relu", {{"self", b}}, {{"out", c}});
  // when the kernels of the first are told, and one that belongs to no op and has no name
  builder.add_kernel({batch().ops[0].seq, 3, "relu_kernel", false, 2, 1, 1500});
  builder.add_kernel({kNoSeq, 3, "", true, 1, 0, 0});
  // then
  ASSERT_EQ(batch().kernels.size(), 2u);
  EXPECT_EQ(batch().kernels[0].seq, batch().ops[0].seq);
  EXPECT_EQ(text(batch().kernels[0].name), "relu_kernel");
  EXPECT_EQ(batch().kernels[0].timed, 1u);
  EXPECT_EQ(batch().kernels[0].duration_ns, 1500);
  EXPECT_EQ(batch().kernels[1].name, 0u);
  EXPECT_TRUE(batch().kernels[1].own);
}

}  // namespace
}  // namespace nanhunt::record
