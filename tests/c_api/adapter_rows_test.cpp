// SPDX-License-Identifier: Apache-2.0
// Numbers for names, layouts and calls, and rows of words.
#include "tests/c_api/adapter_fixture.h"

namespace nanhunt::c_api_tests {
namespace {

TEST_F(CAdapter, texts_layouts_and_calls_keep_their_numbers) {
  EXPECT_EQ(text(""), 0);
  EXPECT_EQ(text(nullptr), 0);
  const std::int64_t fc1 = text("fc1");
  EXPECT_GT(fc1, 0);
  EXPECT_NE(text("fc2"), fc1);
  EXPECT_EQ(text("fc1"), fc1);

  EXPECT_EQ(layout_, 0);
  const std::array<std::int64_t, 2> sizes = {2, 3}, dense = {3, 1}, across = {1, 2};
  const std::int64_t row_major = nanhunt_intern_layout(recorder_, NANHUNT_F32, 2, sizes.data(), nullptr);
  EXPECT_EQ(nanhunt_intern_layout(recorder_, NANHUNT_F32, 2, sizes.data(), dense.data()), row_major);
  EXPECT_NE(nanhunt_intern_layout(recorder_, NANHUNT_F32, 2, sizes.data(), across.data()), row_major);
  EXPECT_NE(nanhunt_intern_layout(recorder_, NANHUNT_F16, 2, sizes.data(), nullptr), row_major);
  EXPECT_GE(nanhunt_intern_layout(recorder_, NANHUNT_F16, 0, nullptr, nullptr), 0);

  const std::int64_t add = call("add", {"self", "other"}, {"out"}, {"alpha"});
  EXPECT_EQ(call("add", {"self", "other"}, {"out"}, {"alpha"}), add);
  EXPECT_NE(call("add", {"self"}, {"other", "out"}, {"alpha"}), add);
  EXPECT_NE(call("add", {"self", "other"}, {"out", "alpha"}), add);
  const std::array<std::int32_t, 2> roles = {NANHUNT_OVERWRITTEN, NANHUNT_READ};
  EXPECT_NE(call("add", {"self", "other"}, {"out"}, {"alpha"}, roles.data()), add);
}

TEST_F(CAdapter, wrong_things_get_no_number_and_a_reason) {
  const std::array<std::int64_t, 2> huge = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  const std::array<std::int64_t, 1> negative = {-1};
  EXPECT_EQ(nanhunt_intern_layout(recorder_, 10, 1, sizes_.data(), nullptr), -1);
  EXPECT_EQ(nanhunt_intern_layout(recorder_, NANHUNT_F32, 65, huge.data(), nullptr), -1);
  EXPECT_EQ(nanhunt_intern_layout(recorder_, NANHUNT_F32, -1, sizes_.data(), nullptr), -1);
  EXPECT_EQ(nanhunt_intern_layout(recorder_, NANHUNT_F32, 1, nullptr, nullptr), -1);
  EXPECT_EQ(nanhunt_intern_layout(recorder_, NANHUNT_F32, 1, negative.data(), nullptr), -1);
  EXPECT_EQ(nanhunt_intern_layout(recorder_, NANHUNT_F32, 2, huge.data(), nullptr), -1);
  EXPECT_THAT(nanhunt_last_error(), HasSubstr("2^48"));
  EXPECT_EQ(nanhunt_intern_text(nullptr, "x"), -1);
  EXPECT_EQ(nanhunt_intern_call(recorder_, nullptr), -1);

  nanhunt_call c{};
  c.struct_size = sizeof c;
  c.op = "add";
  c.input_count = 1;
  EXPECT_EQ(nanhunt_intern_call(recorder_, &c), -1) << "one slot, but no list";
  c.input_count = 0;
  c.output_count = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(nanhunt_intern_call(recorder_, &c), -1);
  c.output_count = 0;
  c.compute_dtype = -1;
  EXPECT_EQ(nanhunt_intern_call(recorder_, &c), -1);
  c.compute_dtype = 0;
  c.struct_size = 0;
  EXPECT_EQ(nanhunt_intern_call(recorder_, &c), -1);
  const std::array<std::int32_t, 1> no_role = {5};
  EXPECT_EQ(call("add", {"self"}, {"out"}, {}, no_role.data()), -1);
}

TEST_F(CAdapter, rows_up_to_the_wrong_one_are_recorded) {
  Words words = log_row(x_.data(), y_.data(), 1);
  append(words, {NANHUNT_ROW_RELEASE, 2});
  Words wrong = log_row(x_.data(), y_.data(), 3);
  wrong[1] = 99;
  append(words, wrong);
  append(words, log_row(x_.data(), y_.data(), 5));
  EXPECT_EQ(record(words), NANHUNT_USAGE);
  EXPECT_THAT(nanhunt_last_error(), HasSubstr("row 2 (from 0): there is no call number 99"));
  EXPECT_EQ(ops(), 1u);
  EXPECT_EQ(nanhunt_recorder_next_seq(recorder_), 1u);
  EXPECT_EQ(record(log_row(x_.data(), y_.data(), 5)), NANHUNT_OK) << "the recorder goes on";
  EXPECT_EQ(ops(), 2u);
  EXPECT_THAT(close_and_read().ends_of_life, SizeIs(1));
}

TEST_F(CAdapter, wrong_words_are_refused_with_a_reason) {
  const Words good = log_row(x_.data(), y_.data(), 1);
  const auto with = [&](std::size_t at, std::int64_t word) {
    Words row = good;
    row[at] = word;
    return row;
  };
  expect_wrong(with(0, 0), "no kind of row 0");
  expect_wrong(with(0, 5), "no kind of row 5");
  expect_wrong(with(1, -1), "no call number -1");
  expect_wrong(with(2, -1), "step");
  expect_wrong(with(2, std::int64_t{1} << 32), "step");
  expect_wrong(with(3, -1), "micro_batch");
  expect_wrong(with(4, 11), "phase");
  expect_wrong(with(5, 1000), "no text number 1000");
  expect_wrong(with(6, -1), "call site");
  expect_wrong(with(10, 1), "no layout number 1");
  expect_wrong(with(14, -1), "no layout number -1");
  expect_wrong(with(8, 7), "has a version and no storage");
  for (std::size_t size = 1; size < good.size(); ++size) {
    expect_wrong({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)}, "are left");
  }
  expect_wrong({NANHUNT_ROW_MARK, 8, 0, 0, 0, 0, 0, 0, 0}, "mark");
  expect_wrong({NANHUNT_ROW_MARK, 0, 0, 0, 99, 0, 0, 0, 0}, "path");
  expect_wrong({NANHUNT_ROW_MARK, 0, 0, 0, 0, 0, 0, 0}, "are left");
  expect_wrong({NANHUNT_ROW_RELEASE}, "are left");
  expect_wrong({NANHUNT_ROW_CHECK, 0, 0, 0, 0}, "are left");
  EXPECT_EQ(nanhunt_record_rows(recorder_, nullptr, 3), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_record_rows(nullptr, good.data(), good.size()), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_record_rows(recorder_, nullptr, 0), NANHUNT_OK);
  EXPECT_EQ(ops(), 0u);
}

TEST_F(CAdapter, the_highest_version_and_a_large_storage_stay_apart) {
  const std::int64_t last = (1 << 24) - 1, storage = (std::int64_t{1} << 39) - 1;
  Words row = {NANHUNT_ROW_OP, log_, 0, 0, NANHUNT_PHASE_FORWARD, 0, 0};
  append(row, value(x_.data(), storage, last));
  append(row, value(y_.data(), storage - 1, 0));
  ASSERT_EQ(record(row), NANHUNT_OK);
  const RecordBatch all = close_and_read();
  ASSERT_THAT(all.values, SizeIs(2));
  EXPECT_EQ(all.values[0].storage, static_cast<std::uint64_t>(storage));
  EXPECT_EQ(all.values[0].version, 16777215u);
  EXPECT_EQ(all.values[1].storage, static_cast<std::uint64_t>(storage - 1));
}

TEST_F(CAdapter, a_tensor_without_elements_needs_no_address) {
  const std::array<std::int64_t, 1> none = {0};
  layout_ = nanhunt_intern_layout(recorder_, NANHUNT_F32, 1, none.data(), nullptr);
  ASSERT_EQ(record(log_row(nullptr, nullptr, 1)), NANHUNT_OK);
  const RecordBatch all = close_and_read();
  ASSERT_THAT(all.values, SizeIs(2));
  EXPECT_TRUE(all.values[0].has_stats);
  EXPECT_EQ(all.values[1].stats.numel, 0);
}

TEST_F(CAdapter, of_contents_that_are_gone_it_may_be_told_that_they_were_finite) {
  Words row = {NANHUNT_ROW_OP, log_, 0, 0, NANHUNT_PHASE_FORWARD, 0, 0};
  append(row, {NANHUNT_WAS_FINITE, identity(1, 0), 0, layout_});
  append(row, {0, identity(2, 0), 0, layout_});
  ASSERT_EQ(record(row), NANHUNT_OK);
  const RecordBatch all = close_and_read();
  ASSERT_THAT(all.values, SizeIs(2));
  EXPECT_TRUE(all.values[0].has_stats);
  EXPECT_EQ(all.values[0].stats.level, StatsLevel::kFinite);
  EXPECT_FALSE(all.values[0].stats.any_nonfinite);
  EXPECT_FALSE(all.values[1].has_stats);
}

TEST_F(CAdapter, inputs_are_read_again_unless_they_are_trusted) {
  for (const bool trust : {false, true}) {
    SCOPED_TRACE(trust);
    nanhunt_recorder_options how = options();
    how.trust_inputs = trust ? 1 : 0;
    open(how);
    x_ = {1, 2};
    ASSERT_EQ(record(log_row(x_.data(), y_.data(), 1)), NANHUNT_OK);
    x_[1] = 3;  // nobody saw it
    Words check = {NANHUNT_ROW_CHECK, 0};
    append(check, value(x_.data(), 1));
    ASSERT_EQ(record(check), NANHUNT_OK);
    EXPECT_THAT(close_and_read().changed, SizeIs(trust ? 0 : 1));
  }
}

// The same run, told twice.
class TwoTellings : public CAdapter {
 protected:
  static constexpr float kInf = std::numeric_limits<float>::infinity();

  void tell_by_structs() {
    const std::array<std::int64_t, 2> sizes = {2, 1}, strides = {1, 1};
    const auto value_of = [&](const float* data, std::uint64_t storage, std::uint32_t version) {
      return nanhunt_value{data, NANHUNT_F32, 2, sizes.data(), strides.data(), storage, version, 3};
    };
    const std::array<nanhunt_input, 3> in = {{{"self", value_of(a_.data(), 7, 0), NANHUNT_OVERWRITTEN},
                                              {"tensor1", value_of(a_.data(), 8, 0), NANHUNT_READ},
                                              {"tensor2", value_of(b_.data(), 9, 1), NANHUNT_SAVED}}};
    const nanhunt_output out = {"out", value_of(c_.data(), 7, 1)};
    const nanhunt_scalar scalar = {"value", 0.5};
    nanhunt_op op{};
    op.struct_size = sizeof op;
    op.step = 4;
    op.micro_batch = 1;
    op.phase = NANHUNT_PHASE_OPTIMIZER;
    op.module = "fc1.weight";
    op.op = "addcmul_";
    op.call_site = "train.py:12";
    op.compute_dtype = NANHUNT_F64;
    op.inputs = in.data();
    op.input_count = in.size();
    op.outputs = &out;
    op.output_count = 1;
    op.scalars = &scalar;
    op.scalar_count = 1;
    ASSERT_EQ(nanhunt_record_op(recorder_, &op), NANHUNT_OK);
    nanhunt_mark mark{sizeof mark, 4, 1, NANHUNT_STATE, "fc1.weight.exp_avg_sq", out.value};
    ASSERT_EQ(nanhunt_record_mark(recorder_, &mark), NANHUNT_OK);
    ASSERT_EQ(nanhunt_record_release(recorder_, 9), NANHUNT_OK);
  }

  void tell_by_rows() {
    const std::array<std::int64_t, 2> sizes = {2, 1}, strides = {1, 1};
    const std::array<std::int32_t, 3> roles = {NANHUNT_OVERWRITTEN, NANHUNT_READ, NANHUNT_SAVED};
    nanhunt_call c{};
    const std::array<const char*, 3> slots = {"self", "tensor1", "tensor2"};
    const char* const out = "out";
    const char* const scalar = "value";
    c = {sizeof c, NANHUNT_F64, "addcmul_", slots.data(), roles.data(), 3, &out, 1, &scalar, 1};
    const std::int64_t addcmul = nanhunt_intern_call(recorder_, &c);
    const std::int64_t layout = nanhunt_intern_layout(recorder_, NANHUNT_F32, 2, sizes.data(), strides.data());
    Words words = {NANHUNT_ROW_OP, addcmul, 4, 1, NANHUNT_PHASE_OPTIMIZER, text("fc1.weight"), text("train.py:12")};
    append(words, {address(a_.data()), identity(7, 0), 3, layout});
    append(words, {address(a_.data()), identity(8, 0), 3, layout});
    append(words, {address(b_.data()), identity(9, 1), 3, layout});
    append(words, {address(c_.data()), identity(7, 1), 3, layout});
    append(words, {std::bit_cast<std::int64_t>(0.5)});
    append(words, {NANHUNT_ROW_MARK, NANHUNT_STATE, 4, 1, text("fc1.weight.exp_avg_sq")});
    append(words, {address(c_.data()), identity(7, 1), 3, layout});
    append(words, {NANHUNT_ROW_RELEASE, 9});
    ASSERT_EQ(record(words), NANHUNT_OK) << nanhunt_last_error();
  }

  // Numbers of names replaced by the names; which number a name has is not part of the meaning.
  static std::string name(const RecordBatch& all, nanhunt::StringId id) {
    for (const auto& row : all.strings) {
      if (row.id == id) return row.text;
    }
    return id == 0 ? "" : "?";
  }
  static std::string told(const RecordBatch& all) {
    std::string out;
    const auto args = [&](const std::vector<nanhunt::OpArg>& list, std::uint32_t first, std::uint32_t count) {
      for (std::uint32_t i = first; i < first + count; ++i) {
        out += " " + name(all, list[i].slot) + "=" + std::to_string(list[i].value) + "/" +
               std::to_string(static_cast<int>(list[i].role));
      }
    };
    for (const auto& op : all.ops) {
      out += "op " + std::to_string(op.seq) + " " + std::to_string(op.step) + " " + std::to_string(op.micro_batch) +
             " " + std::to_string(static_cast<int>(op.phase)) + " " + name(all, op.module) + " " + name(all, op.op) +
             " " + name(all, op.call_site) + " " + std::to_string(static_cast<int>(op.compute_dtype));
      args(all.inputs, op.first_input, op.input_count);
      args(all.outputs, op.first_output, op.output_count);
      for (std::uint32_t i = op.first_scalar; i < op.first_scalar + op.scalar_count; ++i) {
        out += " " + name(all, all.scalars[i].name) + ":" + std::to_string(all.scalars[i].value);
      }
      out += "\n";
    }
    for (const auto& mark : all.marks) {
      out += "mark " + std::to_string(mark.seq) + " " + std::to_string(static_cast<int>(mark.kind)) + " " +
             name(all, mark.path) + " " + std::to_string(mark.value) + "\n";
    }
    for (const auto& row : all.evidence) {
      out += "evidence " + std::to_string(row.value) + " " + std::to_string(row.flat_index);
      for (const auto& operand : row.operands) {
        out += " " + name(all, operand.slot) + ":" + std::to_string(operand.number);
      }
      out += "\n";
    }
    return out;
  }

  std::array<float, 2> a_ = {1, 1e30F}, b_ = {2, 1e30F}, c_ = {1, kInf};
};

TEST_F(TwoTellings, the_same_run_by_structs_and_by_rows_is_the_same_trace) {
  open();
  tell_by_structs();
  const RecordBatch by_structs = close_and_read();
  open();
  tell_by_rows();
  EXPECT_EQ(nanhunt_recorder_anomalies(recorder_), 1u);
  const RecordBatch by_rows = close_and_read();
  EXPECT_THAT(told(by_structs), HasSubstr("evidence"));
  EXPECT_EQ(told(by_structs), told(by_rows));
  ASSERT_THAT(by_rows.values, SizeIs(by_structs.values.size()));
  for (std::size_t i = 0; i < by_rows.values.size(); ++i) {
    nanhunt::ValueRecord a = by_structs.values[i], b = by_rows.values[i];
    a.layout = b.layout = 0;
    EXPECT_EQ(a, b) << i;
  }
  EXPECT_EQ(by_structs.ends_of_life, by_rows.ends_of_life);
  EXPECT_EQ(by_structs.histograms, by_rows.histograms);
}

}  // namespace
}  // namespace nanhunt::c_api_tests
