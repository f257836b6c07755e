// SPDX-License-Identifier: Apache-2.0
// Rows whose contents lie where only a device can read them.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <set>
#include <thread>

#include "tests/c_api/device_rows_fixture.h"

namespace nanhunt::c_api_tests {
namespace {

TEST_F(CDeviceRows, contents_of_a_device_are_told_as_those_of_the_host_are) {
  // Given the same op once in memory of the host and once in that of a device.
  ASSERT_EQ(record(log_row(x_.data(), y_.data(), 1)), NANHUNT_OK) << nanhunt_last_error();
  ASSERT_EQ(record(log_row_on(x_.data(), y_.data(), 11)), NANHUNT_OK) << nanhunt_last_error();

  const RecordBatch all = close_and_read();

  ASSERT_THAT(all.ops, SizeIs(2));
  ASSERT_THAT(all.values, SizeIs(4));
  for (const std::size_t i : {0u, 1u}) {
    EXPECT_TRUE(all.values[2 + i].has_stats);
    EXPECT_EQ(all.values[2 + i].stats, all.values[i].stats) << i;
  }
}

// Any op, once of the host and once of the device.
struct Operand {
  const void* data;
  std::int32_t dtype;
  std::vector<std::int64_t> sizes;
  std::int64_t storage, version = 0;
};

class CDeviceElements : public CDeviceRows {
 protected:
  Words words_of(const Operand& operand, bool on_device) {
    const std::int64_t layout = nanhunt_intern_layout(
        recorder_, operand.dtype, static_cast<std::int32_t>(operand.sizes.size()), operand.sizes.data(), nullptr);
    const std::int64_t storage = operand.storage + (on_device ? 100 : 0);
    return {on_device ? away(operand.data) : address(operand.data), identity(storage, operand.version), 0,
            on_device ? NANHUNT_ON_STREAM(layout, stream_) : layout};
  }
  void record_twice(std::int64_t op, std::int64_t phase, const std::vector<Operand>& values,
                    const std::vector<double>& scalars = {}) {
    for (const bool on_device : {false, true}) {
      Words row = {NANHUNT_ROW_OP, op, 0, 0, phase, 0, 0};
      for (const Operand& value : values) append(row, words_of(value, on_device));
      for (const double scalar : scalars) row.push_back(std::bit_cast<std::int64_t>(scalar));
      ASSERT_EQ(record(row), NANHUNT_OK) << nanhunt_last_error();
    }
  }
};

TEST_F(CDeviceElements, a_bad_element_is_told_with_what_met_in_it) {
  // y = a / b, b broadcast over the rows of a.
  const std::array<float, 6> a = {1, 2, 3, 4, 0, 6}, y = {1, kInf, 1, 4, std::nanf(""), 2};
  const std::array<float, 3> b = {1, 0, 3};
  record_twice(
      call("div", {"self", "other"}, {"out"}), NANHUNT_PHASE_FORWARD,
      {{a.data(), NANHUNT_F32, {2, 3}, 1}, {b.data(), NANHUNT_F32, {3}, 2}, {y.data(), NANHUNT_F32, {2, 3}, 3}});

  const RecordBatch all = close_and_read();

  ASSERT_THAT(all.evidence, SizeIs(4)) << "an infinity and a NaN each";
  for (const std::size_t i : {0u, 1u}) {
    const auto &host = all.evidence[i], &there = all.evidence[2 + i];
    EXPECT_EQ(there.flat_index, host.flat_index);
    EXPECT_EQ(std::isnan(there.number), std::isnan(host.number));
    ASSERT_EQ(there.operands.size(), host.operands.size());
    ASSERT_THAT(host.operands, SizeIs(2));
    for (const std::size_t k : {0u, 1u}) {
      EXPECT_EQ(there.operands[k].slot, host.operands[k].slot);
      EXPECT_EQ(there.operands[k].flat_index, host.operands[k].flat_index);
      EXPECT_EQ(there.operands[k].number, host.operands[k].number);
    }
  }
}

TEST_F(CDeviceElements, histograms_of_a_birth_are_those_of_the_host) {
  const std::array<float, 6> a = {1, 2, 3, 4, 0, 6}, y = {1, kInf, 1, 4, std::nanf(""), 2};
  const std::array<float, 3> b = {1, 0, 3};
  const std::int64_t div = call("div", {"self", "other"}, {"out"});
  const Operand x{a.data(), NANHUNT_F32, {2, 3}, 1}, by{b.data(), NANHUNT_F32, {3}, 2};
  record_twice(div, NANHUNT_PHASE_FORWARD, {x, by, {y.data(), NANHUNT_F32, {2, 3}, 3}});
  // Nothing begins of what is bad already, nor where nothing is.
  record_twice(div, NANHUNT_PHASE_FORWARD,
               {{y.data(), NANHUNT_F32, {2, 3}, 3}, by, {y.data(), NANHUNT_F32, {2, 3}, 4}});
  record_twice(div, NANHUNT_PHASE_FORWARD, {x, by, {a.data(), NANHUNT_F32, {2, 3}, 5}});
  // Of rows of one call, each has its own.
  Words rows;
  for (const std::int64_t storage : {6, 7}) {
    append(rows, {NANHUNT_ROW_OP, div, 0, 0, NANHUNT_PHASE_FORWARD, 0, 0});
    append(rows, words_of(x, true));
    append(rows, words_of(by, true));
    append(rows, words_of({storage == 6 ? a.data() : y.data(), NANHUNT_F32, {2, 3}, storage}, true));
  }
  ASSERT_EQ(record(rows), NANHUNT_OK) << nanhunt_last_error();

  const RecordBatch all = close_and_read();

  ASSERT_THAT(all.histograms, SizeIs(9));
  for (std::size_t i = 0; i < 3; ++i) {
    for (const std::size_t there : {3 + i, 6 + i}) {
      EXPECT_EQ(all.histograms[there].min_exponent, all.histograms[i].min_exponent);
      EXPECT_EQ(all.histograms[there].bins, all.histograms[i].bins);
    }
    EXPECT_EQ(all.histograms[3 + i].seq, 1u);
    EXPECT_EQ(all.histograms[6 + i].seq, 7u);
  }
  EXPECT_THAT(note_with(all, "histograms"), IsEmpty());
}

TEST_F(CDeviceElements, values_lost_to_zero_are_counted) {
  const std::array<float, 4> a = {1e-30f, 0, 1e-30f, 2}, b = {1e-30f, 1, 1e-20f, 3}, y = {0, 0, 0, 6};
  record_twice(call("mul", {"self", "other"}, {"out"}), NANHUNT_PHASE_FORWARD,
               {{a.data(), NANHUNT_F32, {4}, 1}, {b.data(), NANHUNT_F32, {4}, 2}, {y.data(), NANHUNT_F32, {4}, 3}});
  // Numbers of the host met in it, too.
  const float half = 1e-30f;
  const std::int64_t mul = call("mul", {"self", "other"}, {"out"});
  Words row = {NANHUNT_ROW_OP, mul, 0, 0, NANHUNT_PHASE_FORWARD, 0, 0};
  append(row, words_of({a.data(), NANHUNT_F32, {4}, 1}, true));
  append(row, words_of({&half, NANHUNT_F32, {}, 7}, false));
  append(row, words_of({y.data(), NANHUNT_F32, {4}, 8}, true));
  ASSERT_EQ(record(row), NANHUNT_OK) << nanhunt_last_error();

  const RecordBatch all = close_and_read();

  ASSERT_THAT(all.values, SizeIs(8));
  EXPECT_EQ(all.values[2].flushed, 2);
  EXPECT_EQ(all.values[5].flushed, 2);
  EXPECT_EQ(all.values[7].flushed, 2);
}

TEST_F(CDeviceElements, updates_that_change_nothing_are_counted) {
  // p += -1 * g in bf16, where three of four changes are too small.
  const std::array<std::uint16_t, 4> p = {0x3f80, 0x3f80, 0x3f80, 0x3f00}, g = {0x3a80, 0x3a80, 0x3a80, 0x3f00};
  const std::array<std::int32_t, 2> roles = {NANHUNT_OVERWRITTEN, NANHUNT_READ};
  const std::int64_t add = call("add_", {"self", "other"}, {"self"}, {"alpha"}, roles.data());
  const Operand old{p.data(), NANHUNT_BF16, {4}, 1, 0}, change{g.data(), NANHUNT_BF16, {4}, 2},
      made{p.data(), NANHUNT_BF16, {4}, 1, 1};
  record_twice(add, NANHUNT_PHASE_OPTIMIZER, {old, change, made}, {-1.0});
  // Two of one call: each is counted.
  Words rows;
  for (const std::int64_t storage : {11, 21}) {
    append(rows, {NANHUNT_ROW_OP, add, 1, 0, NANHUNT_PHASE_OPTIMIZER, 0, 0});
    append(rows, words_of({p.data(), NANHUNT_BF16, {4}, storage, 0}, true));
    append(rows, words_of({g.data(), NANHUNT_BF16, {4}, storage + 1}, true));
    append(rows, words_of({p.data(), NANHUNT_BF16, {4}, storage, 1}, true));
    rows.push_back(std::bit_cast<std::int64_t>(-1.0));
  }
  ASSERT_EQ(record(rows), NANHUNT_OK) << nanhunt_last_error();

  const RecordBatch all = close_and_read();

  ASSERT_THAT(all.ops, SizeIs(4));
  ASSERT_EQ(all.ops[0].scalar_count, 4u) << "alpha, and what was counted";
  for (const std::size_t op : {1u, 2u, 3u}) {
    ASSERT_EQ(all.ops[op].scalar_count, 4u) << op;
    for (std::uint32_t k = 0; k < 4; ++k) {
      const auto &host = all.scalars[all.ops[0].first_scalar + k], &there = all.scalars[all.ops[op].first_scalar + k];
      EXPECT_EQ(there.name, host.name);
      EXPECT_EQ(there.value, host.value) << op << " " << k;
    }
  }
  EXPECT_EQ(all.scalars[all.ops[0].first_scalar + 2].value, 3);
}

TEST_F(CDeviceRows, contents_that_changed_unseen_are_told_as_those_of_the_host_are) {
  for (const bool trust : {false, true}) {
    SCOPED_TRACE(trust);
    nanhunt_recorder_options how = options();
    how.trust_inputs = trust ? 1 : 0;
    std::filesystem::remove_all(run_);
    open(how);
    stream_ = nanhunt_device_stream(recorder_, 0, kStream);
    // Given an op whose output and input change behind everybody's back, once of the host and once of the device.
    for (const bool there : {false, true}) {
      std::array<float, 2> x = {1, 4}, y = {0, 2}, z = {0, 2};
      const std::int64_t first = there ? 11 : 1;
      const auto log = [&](const void* from, const void* to, std::int64_t storage) {
        return record(there ? log_row_on(from, to, storage) : log_row(from, to, storage));
      };
      ASSERT_EQ(log(x.data(), y.data(), first), NANHUNT_OK) << nanhunt_last_error();
      y[1] = kInf;
      ASSERT_EQ(log(y.data(), z.data(), first + 1), NANHUNT_OK) << nanhunt_last_error();
      ASSERT_EQ(log(y.data(), z.data(), first + 1), NANHUNT_OK) << "the same again: no change of the input";
      // When what an op will write over is checked before it does.
      Words check = {NANHUNT_ROW_CHECK, 0};
      append(check, there ? value_on(x.data(), first) : value(x.data(), first));
      ASSERT_EQ(record(check), NANHUNT_OK) << nanhunt_last_error();
      x[0] = 7;
      ASSERT_EQ(record(check), NANHUNT_OK) << nanhunt_last_error();
    }

    const RecordBatch all = close_and_read();

    if (trust) {
      EXPECT_THAT(all.changed, IsEmpty());
      continue;
    }
    ASSERT_THAT(all.changed, SizeIs(4)) << "y and x, of the host and of the device";
    for (const std::size_t i : {0u, 1u}) {
      const auto &host = all.changed[i], &away = all.changed[2 + i];
      EXPECT_EQ(away.since_seq, host.since_seq + 3);
      EXPECT_EQ(away.since_step, host.since_step);
      const auto of = [&](ValueId id) -> const ValueRecord& {
        return *std::ranges::find(all.values, id, &ValueRecord::id);
      };
      EXPECT_EQ(of(away.after).stats, of(host.after).stats);
      EXPECT_EQ(of(away.before).stats, of(host.before).stats);
    }
  }
}

TEST_F(CDeviceRows, of_trusted_contents_a_check_tells_what_went_bad_and_counts_what_stayed_finite) {
  nanhunt_recorder_options how = options();
  how.trust_inputs = 1;
  open(how);
  stream_ = nanhunt_device_stream(recorder_, 0, kStream);
  // Given what two ops made, both of it known when it changes: one becomes infinite, the other another number.
  std::array<float, 2> x = {1, 4}, bad = {0, 2}, other = {0, 2};
  ASSERT_EQ(record(log_row_on(x.data(), bad.data(), 1, 3)), NANHUNT_OK) << nanhunt_last_error();
  ASSERT_EQ(record(log_row_on(x.data(), other.data(), 11, 3)), NANHUNT_OK) << nanhunt_last_error();
  bad[1] = kInf;
  other[1] = 3;

  // When each is checked, twice.
  for (const std::int64_t step : {4, 5}) {
    for (const auto& [storage, memory] : {std::pair{2, bad.data()}, {12, other.data()}}) {
      Words check = {NANHUNT_ROW_CHECK, step};
      append(check, value_on(memory, storage));
      ASSERT_EQ(record(check), NANHUNT_OK) << nanhunt_last_error();
    }
  }
  const RecordBatch all = close_and_read();

  // Then the one is told once, with the step in which it was last seen whole, and the other counted once.
  ASSERT_THAT(all.changed, SizeIs(1));
  EXPECT_EQ(all.changed[0].step, 4u);
  EXPECT_EQ(all.changed[0].since_step, 3u);
  const auto of = [&](ValueId id) { return std::ranges::find(all.values, id, &ValueRecord::id); };
  EXPECT_EQ(of(all.changed[0].before)->stats.inf(), 0);
  EXPECT_EQ(of(all.changed[0].after)->stats.inf(), 1);
  EXPECT_EQ(note_with(all, "left finite"), "1 writes that nothing watched made, which left finite what they wrote");
}

TEST_F(CDeviceRows, what_a_mark_saw_is_no_change_for_a_check_of_trusted_contents) {
  nanhunt_recorder_options how = options();
  how.trust_inputs = 1;
  open(how);
  stream_ = nanhunt_device_stream(recorder_, 0, kStream);
  std::array<float, 2> x = {1, 4}, y = {0, 2};
  ASSERT_EQ(record(log_row_on(x.data(), y.data(), 1)), NANHUNT_OK) << nanhunt_last_error();
  y[1] = kInf;  // by an optimizer of somebody's own
  Words mark = {NANHUNT_ROW_MARK, static_cast<std::int64_t>(TensorRole::kParameter), 0, 0, 0};
  append(mark, value_on(y.data(), 2));
  ASSERT_EQ(record(mark), NANHUNT_OK) << nanhunt_last_error();

  Words check = {NANHUNT_ROW_CHECK, 1};
  append(check, value_on(y.data(), 2));
  ASSERT_EQ(record(check), NANHUNT_OK) << nanhunt_last_error();

  EXPECT_THAT(close_and_read().changed, IsEmpty());
}

TEST_F(CDeviceRows, nothing_waits_before_the_end) {
  nanhunt_emulated_set("copies_later", 1);
  for (std::uint32_t step = 0; step < 6; ++step) {
    ASSERT_EQ(record(log_row_on(x_.data(), y_.data(), 10 + 2 * step, step)), NANHUNT_OK) << nanhunt_last_error();
    end_step(step);
  }

  EXPECT_EQ(counts().asked, 30u) << "in each step two tensors, their check, the elements and the origins of one";
  EXPECT_EQ(counts().told, 25u) << "those of the last step are on their way";
  EXPECT_EQ(counts().waits, 0u);
  EXPECT_EQ(nanhunt_emulated_count("waits"), 0);
  EXPECT_EQ(nanhunt_recorder_anomalies(recorder_), 5u);
  ASSERT_EQ(nanhunt_recorder_flush(recorder_), NANHUNT_OK);
  EXPECT_EQ(counts().told, 30u);
  EXPECT_EQ(counts().waits, 1u);
  const RecordBatch all = close_and_read();
  EXPECT_THAT(note_with(all, "waiting"), HasSubstr("1 what waiting costs: readings of a device"));
}

TEST_F(CDeviceRows, who_settles_knows_all_origins_so_far_and_waits_once) {
  ASSERT_EQ(record(log_row_on(x_.data(), y_.data(), 1)), NANHUNT_OK) << nanhunt_last_error();
  EXPECT_EQ(nanhunt_recorder_origins(recorder_), 0u) << "it is on its way";
  ASSERT_EQ(nanhunt_device_settle(recorder_), NANHUNT_OK);
  EXPECT_EQ(nanhunt_recorder_origins(recorder_), 1u);
  EXPECT_EQ(counts().waits, 1u);
  ASSERT_EQ(nanhunt_device_settle(recorder_), NANHUNT_OK);
  EXPECT_EQ(counts().waits, 1u) << "nothing was being read";
  EXPECT_EQ(nanhunt_device_settle(nullptr), NANHUNT_USAGE);
}

TEST_F(CDeviceRows, a_hold_that_ends_later_is_decided_about_without_a_wait) {
  nanhunt_emulated_set("copies_later", 1);
  for (std::uint32_t step = 0; step < 6; ++step) {
    ASSERT_EQ(nanhunt_recorder_hold(recorder_, NANHUNT_HOLD), NANHUNT_OK);
    ASSERT_EQ(record(log_row_on(x_.data(), y_.data(), 10 + 2 * step, step)), NANHUNT_OK) << nanhunt_last_error();
    ASSERT_EQ(nanhunt_recorder_hold(recorder_, NANHUNT_LATER), NANHUNT_OK);
    EXPECT_EQ(nanhunt_recorder_hold_is_due(recorder_), step > 0) << step;
    if (step == 0) continue;
    EXPECT_EQ(nanhunt_recorder_origins(recorder_), step) << "of those that are due";
    ASSERT_EQ(nanhunt_recorder_add_to_hold(recorder_, 1), NANHUNT_OK);
    end_step(step - 1);
    ASSERT_EQ(nanhunt_recorder_add_to_hold(recorder_, 0), NANHUNT_OK);
    ASSERT_EQ(nanhunt_recorder_decide_hold(recorder_, step == 3 ? NANHUNT_KEEP : NANHUNT_DROP), NANHUNT_OK);
  }
  EXPECT_EQ(counts().waits, 0u);
  EXPECT_EQ(nanhunt_recorder_origins_that_last(recorder_), 0u);
  EXPECT_EQ(nanhunt_recorder_decide_hold(recorder_, NANHUNT_HOLD), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_recorder_decide_hold(nullptr, NANHUNT_KEEP), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_recorder_hold_is_due(nullptr), 0);
  const RecordBatch all = close_and_read();
  std::set<std::uint32_t> steps;
  for (const OpRecord& op : all.ops) steps.insert(op.step);
  EXPECT_THAT(steps, ::testing::ElementsAre(2, 5)) << "the one that was kept, and the last, about which nobody decided";
}

TEST_F(CDeviceRows, single_elements_are_left_alone_where_that_is_asked_for) {
  ASSERT_EQ(nanhunt_device_read_elements(recorder_, 0), NANHUNT_OK);
  ASSERT_EQ(record(log_row_on(x_.data(), y_.data(), 1)), NANHUNT_OK) << nanhunt_last_error();
  EXPECT_EQ(counts().launches, 1u);
  ASSERT_EQ(nanhunt_device_read_elements(recorder_, 1), NANHUNT_OK);
  ASSERT_EQ(record(log_row_on(x_.data(), y_.data(), 7)), NANHUNT_OK) << nanhunt_last_error();
  EXPECT_GT(counts().launches, 2u);
  EXPECT_EQ(nanhunt_device_read_elements(nullptr, 0), NANHUNT_USAGE);
}

TEST_F(CDeviceRows, nobody_settles_a_stream_that_is_captured) {
  ASSERT_EQ(record(log_row_on(x_.data(), y_.data(), 1)), NANHUNT_OK) << nanhunt_last_error();
  nanhunt_emulated_set("capturing", 1);
  EXPECT_EQ(nanhunt_device_settle(recorder_), NANHUNT_OK);
  EXPECT_EQ(counts().waits, 0u);
  nanhunt_emulated_set("capturing", 0);
}

TEST_F(CDeviceRows, an_op_is_read_in_three_launches_and_what_was_read_is_compared) {
  ASSERT_EQ(record(log_row_on(x_.data(), y_.data(), 1)), NANHUNT_OK) << nanhunt_last_error();
  EXPECT_EQ(counts().launches, 3u) << "one compares and reads both tensors, one is for elements, one for origins";
  EXPECT_EQ(counts().asked, 5u);

  // When the output is the next op's input, which overwrites nothing.
  ASSERT_EQ(record(log_row_on(y_.data(), x_.data(), 2)), NANHUNT_OK) << nanhunt_last_error();

  EXPECT_EQ(counts().asked, 10u);
  EXPECT_EQ(counts().launches, 6u);
  const RecordBatch all = close_and_read();
  EXPECT_THAT(all.values, SizeIs(3));
  EXPECT_THAT(all.changed, IsEmpty());
}

TEST_F(CDeviceRows, rows_of_one_call_are_read_together_even_where_the_last_one_is_wrong) {
  Words rows = log_row_on(x_.data(), y_.data(), 1);
  append(rows, log_row_on(x_.data(), y_.data(), 3));
  append(rows, {99});

  expect_wrong(rows, "row 2 (from 0): there is no kind of row 99");

  EXPECT_EQ(counts().launches, 1u + 2 * 2u) << "one for all tensors, two for each output";
  EXPECT_EQ(counts().asked, 9u);
  const RecordBatch all = close_and_read();
  EXPECT_THAT(all.values, SizeIs(4));
  EXPECT_TRUE(std::ranges::all_of(all.values, [](const ValueRecord& value) { return value.has_stats; }));
}

TEST_F(CDeviceRows, a_view_with_gaps_is_read_where_it_is) {
  // Given the transposed view of a matrix of the device.
  const std::array<float, 6> m = {1, 2, 3, 4, kInf, 6};
  const std::array<std::int64_t, 2> sizes = {3, 2}, strides = {1, 3};
  const std::int64_t turned = nanhunt_intern_layout(recorder_, NANHUNT_F32, 2, sizes.data(), strides.data());

  Words row = {NANHUNT_ROW_MARK, NANHUNT_PARAMETER, 0, 0, text("w"), away(m.data()), identity(5, 0), 0,
               NANHUNT_ON_STREAM(turned, stream_)};
  ASSERT_EQ(record(row), NANHUNT_OK) << nanhunt_last_error();

  const RecordBatch all = close_and_read();
  ASSERT_THAT(all.values, SizeIs(1));
  EXPECT_EQ(all.values[0].stats.pos_inf, 1);
  EXPECT_EQ(all.values[0].stats.first_nonfinite, 3) << "in the order of the view";
  EXPECT_EQ(all.values[0].stats.sum, 16);
}

TEST_F(CDeviceRows, what_is_lost_is_unknown_and_blames_nobody) {
  nanhunt_emulated_set("never", 1);
  ASSERT_EQ(record(log_row_on(x_.data(), y_.data(), 1)), NANHUNT_OK) << nanhunt_last_error();
  end_step(0);

  const nanhunt_device_counts before = counts();
  const RecordBatch all = close_and_read();

  EXPECT_EQ(before.told, 0u);
  ASSERT_THAT(all.values, SizeIs(2));
  EXPECT_FALSE(all.values[0].has_stats || all.values[1].has_stats);
  EXPECT_THAT(all.evidence, IsEmpty());
  EXPECT_THAT(note_with(all, "lost"), Not(IsEmpty()));
}

TEST_F(CDeviceRows, a_device_that_fails_ends_nothing) {
  ASSERT_EQ(record(log_row_on(x_.data(), y_.data(), 1)), NANHUNT_OK) << nanhunt_last_error();
  nanhunt_emulated_set("fails", 1);
  end_step(0);
  end_step(1);
  ASSERT_EQ(record(log_row_on(x_.data(), y_.data(), 3, 2)), NANHUNT_OK) << nanhunt_last_error();
  end_step(2);

  EXPECT_EQ(counts().lost, 10u);
  const RecordBatch all = close_and_read();
  EXPECT_THAT(all.ops, SizeIs(2));
  EXPECT_THAT(note_with(all, "readings of a device that were lost"), HasSubstr("10 "));
}

TEST_F(CDeviceRows, nothing_is_read_while_a_graph_is_captured) {
  nanhunt_emulated_set("capturing", 1);
  ASSERT_EQ(record(log_row_on(x_.data(), y_.data(), 1)), NANHUNT_OK) << nanhunt_last_error();
  end_step(0);
  EXPECT_EQ(nanhunt_device_stream(recorder_, 0, kStream + 1), -1);
  EXPECT_THAT(nanhunt_last_error(), HasSubstr("graph"));
  ASSERT_EQ(nanhunt_recorder_flush(recorder_), NANHUNT_OK);
  EXPECT_EQ(nanhunt_emulated_count("launches"), 0);
  EXPECT_EQ(nanhunt_emulated_count("waits"), 0);
  EXPECT_EQ(counts().captured, 2u);

  nanhunt_emulated_set("capturing", 0);

  EXPECT_EQ(nanhunt_device_stream(recorder_, 0, kStream + 1), 2) << "refused for that moment alone";
  const RecordBatch all = close_and_read();
  EXPECT_FALSE(all.values[0].has_stats);
  EXPECT_THAT(note_with(all, "captured"), HasSubstr("2 tensors of a device"));
}

TEST_F(CDeviceRows, streams_have_numbers_and_what_cannot_be_read_says_why) {
  EXPECT_EQ(nanhunt_device_stream(recorder_, 0, kStream), 1);
  EXPECT_EQ(nanhunt_device_stream(recorder_, 0, 78), 2);
  EXPECT_EQ(nanhunt_device_stream(recorder_, 1, kStream), -1);
  EXPECT_THAT(nanhunt_last_error(), HasSubstr("no emulated device 1"));
  EXPECT_EQ(nanhunt_device_stream(recorder_, -1, kStream), -1);
  EXPECT_THAT(nanhunt_last_error(), HasSubstr("expected 0 or more"));
  for (std::uint64_t stream = 100; stream < 114; ++stream) EXPECT_GT(nanhunt_device_stream(recorder_, 0, stream), 0);
  EXPECT_EQ(nanhunt_device_stream(recorder_, 0, 200), -1);
  EXPECT_THAT(nanhunt_last_error(), HasSubstr("16 streams"));
  nanhunt_emulated_set("fails", 1);
  open();
  EXPECT_EQ(nanhunt_device_stream(recorder_, 0, kStream), -1);
  EXPECT_THAT(nanhunt_last_error(), HasSubstr("the emulated device fails"));
}

TEST_F(CDeviceRows, a_stream_that_is_not_there_is_refused_before_anything_is_recorded) {
  Words row = log_row_on(x_.data(), y_.data(), 1);
  row.back() = NANHUNT_ON_STREAM(layout_, 2);

  expect_wrong(row, "row 0 (from 0): output: there is no stream number 2");

  EXPECT_EQ(ops(), 0u);
  EXPECT_EQ(counts().asked, 0u);
  // Nor is anything of it left for the next row.
  ASSERT_EQ(record(log_row_on(x_.data(), y_.data(), 1)), NANHUNT_OK) << nanhunt_last_error();
  EXPECT_EQ(counts().asked, 5u);
}

TEST_F(CDeviceRows, two_streams_of_one_op_are_read_each_on_its_own) {
  const std::int64_t other = nanhunt_device_stream(recorder_, 0, 78);
  Words row = log_row_on(x_.data(), y_.data(), 1);
  row.back() = NANHUNT_ON_STREAM(layout_, other);
  ASSERT_EQ(record(row), NANHUNT_OK) << nanhunt_last_error();

  EXPECT_EQ(counts().launches, 1u + 3u);
  const RecordBatch all = close_and_read();
  ASSERT_THAT(all.values, SizeIs(2));
  EXPECT_EQ(all.values[0].stats.zero, 1);
  EXPECT_EQ(all.values[1].stats.neg_inf, 1);
}

TEST_F(CDeviceRows, what_does_not_read_on_streams_refuses_them) {
  const Words pair = {away(x_.data()), NANHUNT_ON_STREAM(layout_, stream_)};
  nanhunt_reading reading{};
  std::size_t bad = 0;
  EXPECT_EQ(nanhunt_read(recorder_, pair.data(), 1, NANHUNT_READ_NORM, &reading, &bad), NANHUNT_USAGE);
  // A check of what did not change is silent.
  ASSERT_EQ(record(log_row_on(x_.data(), y_.data(), 1)), NANHUNT_OK) << nanhunt_last_error();
  Words check = {NANHUNT_ROW_CHECK, 0};
  append(check, value_on(y_.data(), 2));
  EXPECT_EQ(record(check), NANHUNT_OK) << nanhunt_last_error();
  const RecordBatch all = close_and_read();
  EXPECT_THAT(all.changed, IsEmpty());
}

TEST_F(CDeviceRows, shares_of_a_collective_and_changed_contents_are_read_there) {
  const std::array<std::uint32_t, 2> ranks = {0, 1};
  const Words share = value_on(y_.data(), 1);
  nanhunt_collective given{};
  given.struct_size = sizeof given;
  given.seq = ~0ull;
  given.group = "world";
  given.ranks = ranks.data();
  given.rank_count = ranks.size();
  given.shares = share.data();
  given.share_count = 1;
  ASSERT_EQ(nanhunt_record_collective(recorder_, &given), NANHUNT_OK) << nanhunt_last_error();
  y_[1] = kInf;
  ASSERT_EQ(nanhunt_record_changed(recorder_, 0, share.data(), ~0ull, 0, 0), NANHUNT_OK) << nanhunt_last_error();

  const RecordBatch all = close_and_read();

  ASSERT_THAT(all.values, SizeIs(2));
  EXPECT_EQ(all.values[0].stats.inf(), 1);
  EXPECT_EQ(all.values[1].stats.inf(), 2);
}

TEST_F(CDeviceRows, nothing_comes_before_the_recorder_expects_it) {
  // Given one event with more tensors than a launch and a copy take, on a device that is done at once.
  nanhunt_emulated_set("copies_later", 0);
  constexpr std::size_t kShares = 3000;
  const std::array<std::uint32_t, 1> ranks = {0};
  Words shares;
  for (std::size_t i = 0; i < kShares; ++i) append(shares, value_on(x_.data(), static_cast<std::int64_t>(i + 1)));
  nanhunt_collective given{};
  given.struct_size = sizeof given;
  given.seq = ~0ull;
  given.group = "world";
  given.ranks = ranks.data();
  given.rank_count = ranks.size();
  given.shares = shares.data();
  given.share_count = kShares;
  ASSERT_EQ(nanhunt_record_collective(recorder_, &given), NANHUNT_OK) << nanhunt_last_error();

  const RecordBatch all = close_and_read();

  ASSERT_THAT(all.values, SizeIs(kShares));
  EXPECT_EQ(std::ranges::count_if(all.values, [](const ValueRecord& value) { return value.has_stats; }), kShares);
}

std::atomic<int> at_the_device{0};  // 1: a thread is there, 2: it may go on
void stay_at_the_device(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
  if (at_the_device.exchange(1) == 2) at_the_device.store(2);
  at_the_device.notify_all();
  at_the_device.wait(1);
}

TEST_F(CDeviceRows, a_forked_child_waits_for_no_thread_and_no_device) {
  // Given results under way, and a thread that holds the device's lock while the process forks.
  ASSERT_EQ(record(log_row_on(x_.data(), y_.data(), 1)), NANHUNT_OK) << nanhunt_last_error();
  at_the_device = 0;
  nanhunt_emulated_memory(&stay_at_the_device);
  const Words row = {NANHUNT_ROW_OP, log_, 0, 0, NANHUNT_PHASE_LOSS, 0, 0,
                     address(x_.data()), identity(11, 0), 0, NANHUNT_ON_STREAM(layout_, stream_),
                     address(y_.data()), identity(12, 0), 0, NANHUNT_ON_STREAM(layout_, stream_)};
  std::thread other([&] { EXPECT_EQ(record(row), NANHUNT_OK) << nanhunt_last_error(); });
  at_the_device.wait(0);

  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    const std::int64_t before = nanhunt_emulated_count("waits");
    nanhunt_device_counts none{};
    none.struct_size = sizeof none;
    bool fine = record(row) == NANHUNT_OK && nanhunt_record_release(recorder_, 1) == NANHUNT_OK;
    fine = fine && nanhunt_device_counters(recorder_, &none) == NANHUNT_OK && none.asked == 0;
    fine = fine && nanhunt_device_stream(recorder_, 0, kStream) == -1;
    fine = fine && nanhunt_recorder_flush(recorder_) == NANHUNT_OK && nanhunt_recorder_close(recorder_) == NANHUNT_OK;
    _exit(fine && nanhunt_emulated_count("waits") == before ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  at_the_device = 2;
  at_the_device.notify_all();
  other.join();

  EXPECT_EQ(status, 0) << "it did wait, or was refused";
  EXPECT_EQ(close_and_read().ops.size(), 2u);
}

TEST_F(CDeviceRows, parts_that_the_recorder_forgot_are_read_again) {
  // Given an op on each of more parts of one storage than the recorder keeps, and then on the first again.
  constexpr std::int64_t kParts = 600;
  const std::vector<float> x(2 * kParts, 1), y(2 * kParts, 0);
  for (std::int64_t i = 0; i <= kParts; ++i) {
    const std::int64_t offset = 2 * (i % kParts);
    Words row = log_row_on(x.data() + offset, y.data() + offset, 1);
    row[9] = offset;
    row[12] = identity(2 + i, 0);  // each output in a storage of its own
    ASSERT_EQ(record(row), NANHUNT_OK) << nanhunt_last_error();
  }

  const RecordBatch all = close_and_read();

  EXPECT_TRUE(std::ranges::all_of(all.values, [](const ValueRecord& value) { return value.has_stats; }));
}

}  // namespace
}  // namespace nanhunt::c_api_tests
