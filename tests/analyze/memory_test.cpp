// SPDX-License-Identifier: Apache-2.0
// However long a run is, the analyzer holds what is alive and a bounded rest.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "src/analyze/graph/value_graph.h"
#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using analyze::Names;
using analyze::ValueGraph;

// Makes the records of one step at a time: 4 ops, one of which overflows into an unselected branch.
class EndlessRun {
 public:
  EndlessRun() {
    for (const char* text : {"exp", "where", "sum", "addcdiv_", "fc", "self", "w"}) {
      strings_.push_back({static_cast<StringId>(strings_.size() + 1), text});
    }
  }

  RecordBatch step(bool bad_weight) {
    RecordBatch b;
    b.strings = strings_;
    const std::uint64_t first_storage = storage_;
    const ValueId exp = value(b, ++storage_, 0, finite_numbers(8, 0, 1));
    op(b, 1, {{weight_, ArgRole::kRead}}, exp);
    const ValueId selected = value(b, ++storage_, 0, finite_numbers(8, was_bad_ ? 8 : 0, 0));
    op(b, 2, {{exp, ArgRole::kRead}, {weight_, ArgRole::kRead}}, selected);
    const ValueId loss = value(b, ++storage_, 0, finite_numbers(1, was_bad_ ? 1 : 0, 0));
    op(b, 3, {{selected, ArgRole::kRead}}, loss);
    mark(b, TensorRole::kLoss, loss);
    const ValueId weight = value(b, 1, version_++, finite_numbers(8, bad_weight ? 8 : 0, 0));
    op(b, 4, {{weight_, ArgRole::kOverwritten}}, weight);
    weight_ = weight;
    was_bad_ = bad_weight;
    mark(b, TensorRole::kParameter, weight_);
    for (std::uint64_t s = first_storage + 1; s <= storage_; ++s) b.ends_of_life.push_back({s, seq_});
    b.steps.push_back({step_++, false, 1, 1e-3, 1, seq_, 0});
    return b;
  }

 private:
  static TensorStats finite_numbers(std::int64_t numel, std::int64_t nan, std::int64_t inf) {
    TensorStats s;
    s.level = StatsLevel::kSums;
    s.numel = numel;
    s.nan = nan;
    s.pos_inf = inf;
    s.any_nonfinite = nan + inf > 0;
    s.first_nonfinite = s.any_nonfinite ? 0 : -1;
    return s;
  }
  ValueId value(RecordBatch& b, std::uint64_t storage, std::uint32_t version, const TensorStats& stats) {
    ValueRecord v;
    v.id = next_value_++;
    v.storage = storage;
    v.version = version;
    v.producer = seq_;
    v.has_stats = true;
    v.stats = stats;
    b.values.push_back(v);
    return v.id;
  }
  void op(RecordBatch& b, StringId name, const std::vector<std::pair<ValueId, ArgRole>>& inputs, ValueId out) {
    OpRecord o;
    o.seq = seq_++;
    o.step = step_;
    o.module = 5;
    o.op = name;
    o.first_input = static_cast<std::uint32_t>(b.inputs.size());
    o.input_count = static_cast<std::uint32_t>(inputs.size());
    for (const auto& [id, role] : inputs) b.inputs.push_back({id, 6, role});
    o.first_output = static_cast<std::uint32_t>(b.outputs.size());
    o.output_count = 1;
    b.outputs.push_back({out, 6, ArgRole::kRead});
    b.ops.push_back(o);
  }
  void mark(RecordBatch& b, TensorRole kind, ValueId id) { b.marks.push_back({seq_, step_, 0, kind, 7, id}); }

  std::vector<StringRecord> strings_;
  ValueId next_value_ = 1, weight_ = 0;
  std::uint64_t storage_ = 1, seq_ = 0;
  std::uint32_t version_ = 0, step_ = 0;
  bool was_bad_ = false;
};

TEST(Memory, stays_bounded_over_100000_steps) {
  // given 100,000 steps, each with an Inf that does no harm, and NaN weights in the second half
  EndlessRun run;
  const auto analyzer = Analyzer::make();
  Names names;
  ValueGraph graph(names);
  std::size_t values = 0, births = 0, sets = 0, nodes = 0;
  for (int step = 0; step < 100000; ++step) {
    const RecordBatch batch = run.step(step >= 50000);
    analyzer->add(batch);
    if (step == 0) {
      for (const StringRecord& record : batch.strings) names.add(record);
    }
    for (const ValueRecord& value : batch.values) graph.add_value(value);
    for (const OpRecord& op : batch.ops) graph.on_op(batch, op);
    for (const MarkRecord& mark : batch.marks) graph.on_mark(mark);
    for (const EndOfLifeRecord& end : batch.ends_of_life) graph.on_end_of_life(end.storage);
    for (const StepRecord& record : batch.steps) graph.on_step_end(record, {});
    const ValueGraph::Footprint now = graph.footprint();
    values = std::max(values, now.values);
    births = std::max(births, now.births);
    sets = std::max(sets, now.label_sets);
    nodes = std::max(nodes, now.nodes);
  }
  // then what is held never grew with the run
  EXPECT_LE(values, 9000u);
  EXPECT_LE(births, 20000u);
  EXPECT_LE(sets, 70000u);
  EXPECT_LE(nodes, 100000u);
  // and the answer is there: the first NaN, and the 50,000 steps that it made bad
  TraceHealth health;
  health.clean_end = true;
  const Analysis a = analyzer->finish(RunInfo{}, health);
  ASSERT_EQ(a.findings.size(), 1u);
  EXPECT_EQ(a.findings[0].place.step, 50000u);
  EXPECT_EQ(a.findings[0].occurrence_count, 1u);
  EXPECT_EQ(a.findings[0].bad_steps.count, 50000u);
  EXPECT_EQ(a.coverage.steps, 100000u);
  EXPECT_LE(a.timeline.size(), 4096u);
}

TEST(Memory, ids_of_a_made_up_trace_cost_no_more_than_its_rows) {
  RecordBatch b;
  for (std::uint64_t i = 0; i < 3000; ++i) {
    ValueRecord v;
    v.id = ~0ull - i * 0x0101010101ull;
    v.storage = i << 40;
    v.base = v.id;  // of itself
    v.layout = 0xFFFFFFF0u;
    v.has_stats = true;
    v.stats.level = StatsLevel::kSums;
    v.stats.numel = -5;
    v.stats.nan = std::numeric_limits<std::int64_t>::max();
    v.stats.pos_inf = std::numeric_limits<std::int64_t>::max();
    v.stats.any_nonfinite = true;
    v.stats.first_nonfinite = std::numeric_limits<std::int64_t>::max();
    v.flushed = std::numeric_limits<std::int64_t>::max();
    b.values.push_back(v);
    b.inputs.push_back({v.id, 0xFFFFFFFFu, ArgRole::kRead});
    b.outputs.push_back({v.id, 7, ArgRole::kRead});
    OpRecord o;
    o.seq = ~0ull - i;
    o.op = o.module = 0xFFFFFF00u + static_cast<StringId>(i);
    o.first_input = static_cast<std::uint32_t>(i * 1000);
    o.input_count = 0xFFFFFFFFu;
    o.first_output = 0xFFFFFFFFu;
    o.output_count = 1;
    o.scalar_count = 5;
    b.ops.push_back(o);
    b.marks.push_back({i, static_cast<std::uint32_t>(~0u - i), 0, TensorRole::kBatch, 1u << 31, v.id});
    b.marks.push_back({~0ull, static_cast<std::uint32_t>(i), 0, TensorRole::kParameter, 0, v.id});
    b.ends_of_life.push_back({i << 40, ~0ull - i});
    b.evidence.push_back({~0ull - i, v.id, -7, 0, {{0, v.id, -1, 0}}});
    b.layouts.push_back(
        {static_cast<LayoutId>(i + 1), DType::kF16, {-1, 0, std::numeric_limits<std::int64_t>::max()}, {}});
    b.steps.push_back({static_cast<std::uint32_t>(~0u - i), true, std::nan(""), 0, 0, ~0ull - i, 0});
  }
  const auto analyzer = Analyzer::make();
  analyzer->add(b);
  analyzer->add(b);
  const Analysis a = analyzer->finish(RunInfo{}, TraceHealth{});
  EXPECT_LE(a.findings.size(), 64u);
}

}  // namespace
}  // namespace nanhunt
