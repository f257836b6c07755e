// SPDX-License-Identifier: Apache-2.0
// Fails the recorder's allocations one after the other: the run goes on, what is kept is consistent, and what is lost
// is counted.
#include <cmath>
#include <cstdlib>
#include <new>
#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "kernels/cpu/checksum.h"
#include "src/record/recorder.h"
#include "tests/record/support.h"

namespace {

thread_local long allocations_until_failure = -1;  // -1: never
thread_local long failures_until_recovery = -1;    // -1: never

void* allocate(std::size_t size) {
  if (allocations_until_failure == 0) {
    if (failures_until_recovery > 0 && --failures_until_recovery == 0) allocations_until_failure = -1;
    throw std::bad_alloc();
  }
  if (allocations_until_failure > 0) --allocations_until_failure;
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return allocate(size); }
void* operator new[](std::size_t size) { return allocate(size); }
// The library's own calls the first, but a sanitizer's does not.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return allocate(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace nanhunt::record {
namespace {

using testing::ScriptedWriter;
using testing::TestTensor;
using testing::WriterScript;

struct Events {
  TestTensor w{DType::kF16, {2, 2}, {1, 2, 3, 4}, 1};
  TestTensor v{DType::kF16, {2, 2}, {0, 1, 2, 3}, 2};
  TestTensor nan{DType::kF16, {2, 2}, {0, std::nan(""), 1, 1}, 3};
  TestTensor wt = w.t();
  std::vector<OpInput> t_in{{"self", w.value()}};
  std::vector<OpOutput> t_out{{"out", wt.value()}};
  std::vector<OpInput> div_in{{"self", v.value()}, {"other", w.value()}};
  std::vector<OpOutput> div_out{{"out", nan.value()}};
  std::vector<OpScalar> scalars{{"value", 0.5}};
  std::vector<std::int64_t> ids{1, 2, 3};
};

void record_all(Recorder& recorder, const Events& events) {
  OpEvent t;
  t.op = "t";
  t.module = "a_module_whose_name_is_too_long_for_the_small_string";
  t.inputs = events.t_in;
  t.outputs = events.t_out;
  recorder.on_op(t);
  OpEvent div;
  div.op = "div";
  div.module = "another_module_whose_name_is_too_long_to_be_short";
  div.inputs = events.div_in;
  div.outputs = events.div_out;
  div.scalars = events.scalars;
  recorder.on_op(div);
  recorder.on_batch({0, 0, events.ids});
  recorder.on_mark({0, 0, TensorRole::kLoss, "loss", events.nan.value()});
  recorder.on_step_end({});
  recorder.on_storage_released(2);
}

TEST(OutOfMemory, every_failed_allocation_costs_an_event_at_most) {
  const Events events;
  bool failed_somewhere = false;
  for (long failing = 0; failing < 200; ++failing) {
    // given
    auto script = std::make_shared<WriterScript>();
    auto recorder = make_recorder({}, std::make_unique<ScriptedWriter>(script));
    ASSERT_TRUE(recorder);
    // when one allocation fails, and everything is recorded again afterwards
    allocations_until_failure = failing;
    record_all(**recorder, events);
    const bool failed = allocations_until_failure == 0;
    allocations_until_failure = -1;
    failed_somewhere = failed_somewhere || failed;
    record_all(**recorder, events);
    ASSERT_TRUE((*recorder)->close());
    // then the second round is whole and nothing dangles
    const RecordBatch all = script->all();
    const RecorderCounters counters = (*recorder)->counters();
    EXPECT_EQ(counters.ops + counters.dropped_ops, 4u);
    EXPECT_EQ(all.ops.size(), counters.ops);
    EXPECT_GE(counters.ops, 2u);
    EXPECT_GE(all.marks.size(), 1u);
    EXPECT_TRUE(failed || counters.dropped_ops + counters.dropped_other == 0);
    std::uint64_t reported = 0;
    for (const DropRecord& drop : all.drops) reported += drop.ops;
    EXPECT_EQ(reported, counters.dropped_ops);
    std::set<StringId> strings{0};
    std::set<ValueId> values;
    for (const StringRecord& s : all.strings) EXPECT_TRUE(strings.insert(s.id).second);
    for (const ValueRecord& v : all.values) EXPECT_TRUE(values.insert(v.id).second);
    for (const OpArg& arg : all.inputs) EXPECT_TRUE(values.contains(arg.value)) << failing;
    for (const OpArg& arg : all.outputs) EXPECT_TRUE(values.contains(arg.value)) << failing;
    for (const OpRecord& op : all.ops) EXPECT_TRUE(strings.contains(op.op) && strings.contains(op.module));
    if (!failed) break;  // past the last allocation
  }
  EXPECT_TRUE(failed_somewhere);
}

// As record_all(), of contents that the host cannot read; what comes of them comes at the end, in another order.
void record_all_deferred(Recorder& recorder, const Events& events, std::uint64_t& number) {
  std::vector<std::pair<std::uint64_t, KnownContents>> coming;
  const auto late = [&](const TestTensor& tensor) {
    ValueView view = tensor.value();
    coming.emplace_back(++number, KnownContents{compute_stats(tensor.tensor(), StatsLevel::kSums), true,
                                                kernels::checksum_elements(tensor.tensor())});
    view.tensor.data = nullptr;
    view.late = number;
    return view;
  };
  const long left = std::exchange(allocations_until_failure, -1);
  std::vector<OpInput> div_in;
  for (const OpInput& in : events.div_in) div_in.push_back(in);
  for (std::size_t i = 0; i < div_in.size(); ++i) div_in[i].value = late(i == 0 ? events.v : events.w);
  const std::vector<OpOutput> div_out = {{"out", late(events.nan)}};
  const ValueView loss = late(events.nan);
  allocations_until_failure = left;
  OpEvent div;
  div.op = "div";
  div.module = "a_module_whose_name_is_too_long_for_the_small_string";
  div.inputs = div_in;
  div.outputs = div_out;
  div.late = ++number;
  recorder.on_op(div);
  recorder.on_mark({0, 0, TensorRole::kLoss, "loss", loss});
  const DeferredOperand operand{0, 0, 0};
  const DeferredElement element{0, true, 0, 1, {&operand, 1}};
  recorder.on_deferred_evidence(number, {.elements = {&element, 1}, .flushed = 0});
  for (auto it = coming.rbegin(); it != coming.rend(); ++it) recorder.on_deferred_contents(it->first, it->second);
  recorder.on_step_end({});
}

TEST(OutOfMemory, every_failed_allocation_of_late_statistics_costs_an_event_at_most) {
  const Events events;
  bool failed_somewhere = false;
  for (long failing = 0; failing < 300; ++failing) {
    auto script = std::make_shared<WriterScript>();
    auto recorder = make_recorder({}, std::make_unique<ScriptedWriter>(script));
    ASSERT_TRUE(recorder);
    std::uint64_t number = 0;
    Recorder& late = **recorder;
    allocations_until_failure = failing;
    record_all_deferred(late, events, number);
    const bool failed = allocations_until_failure == 0;
    allocations_until_failure = -1;
    failed_somewhere = failed_somewhere || failed;
    record_all_deferred(late, events, number);
    ASSERT_TRUE(late.close());
    const RecordBatch all = script->all();
    const RecorderCounters counters = late.counters();
    EXPECT_EQ(counters.ops + counters.dropped_ops, 2u);
    EXPECT_EQ(all.ops.size(), counters.ops);
    EXPECT_GE(counters.ops, 1u);
    std::set<ValueId> values;
    for (const ValueRecord& v : all.values) EXPECT_TRUE(values.insert(v.id).second) << failing;
    for (const OpArg& arg : all.inputs) EXPECT_TRUE(values.contains(arg.value)) << failing;
    for (const OpArg& arg : all.outputs) EXPECT_TRUE(values.contains(arg.value)) << failing;
    if (!failed) break;
  }
  EXPECT_TRUE(failed_somewhere);
}

// Fails the first write and leaves its thread without memory for the next `failures` allocations.
class StarvingWriter final : public TraceWriter {
 public:
  StarvingWriter(std::shared_ptr<WriterScript> script, long failures)
      : inner_(script), script_(std::move(script)), failures_(failures) {}
  Status write(const RecordBatch& batch, RecordBatch* unwritten) override {
    Status status = inner_.write(batch, unwritten);
    if (!status) {
      failures_until_recovery = failures_;
      allocations_until_failure = 0;
    }
    return status;
  }
  Status close() override { return inner_.close(); }
  const std::string& attempt_dir() const override { return inner_.attempt_dir(); }
  std::uint64_t bytes_written() const override { return 0; }

 private:
  ScriptedWriter inner_;
  std::shared_ptr<WriterScript> script_;
  long failures_;
};

TEST(OutOfMemory, names_of_a_lost_batch_survive_a_writer_that_runs_out_of_memory) {
  const Events events;
  for (long failures = 1; failures < 12; ++failures) {
    // given a write that fails, after which there is no memory for a while
    auto script = std::make_shared<WriterScript>();
    script->failures_left = 1;
    RecorderOptions options;
    options.flush_ms = 1 << 20;
    auto recorder = make_recorder(options, std::make_unique<StarvingWriter>(script, failures));
    ASSERT_TRUE(recorder);
    for (int round = 0; round < 30; ++round) {
      record_all(**recorder, events);
      (void)(*recorder)->flush();
    }
    (void)(*recorder)->close();
    // then every name that a row uses is there
    const RecordBatch all = script->all();
    ASSERT_GT(all.ops.size(), 0u) << failures;
    std::set<StringId> strings{0};
    std::set<LayoutId> layouts{0};
    for (const StringRecord& s : all.strings) EXPECT_TRUE(strings.insert(s.id).second);
    for (const LayoutRecord& l : all.layouts) EXPECT_TRUE(layouts.insert(l.id).second);
    for (const OpRecord& op : all.ops) EXPECT_TRUE(strings.contains(op.op) && strings.contains(op.module)) << failures;
    for (const ValueRecord& v : all.values) EXPECT_TRUE(layouts.contains(v.layout)) << failures;
    const RecorderCounters counters = (*recorder)->counters();
    EXPECT_EQ(all.ops.size() + counters.dropped_ops, 60u) << failures;
  }
}

}  // namespace
}  // namespace nanhunt::record
