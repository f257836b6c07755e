// SPDX-License-Identifier: Apache-2.0
// Contents of a device that are trusted: what an op reads is not read again where it is known under its identity.
#include <algorithm>

#include "tests/c_api/device_rows_fixture.h"

namespace nanhunt::c_api_tests {
namespace {

class CDeviceTrust : public CDeviceRows {
 protected:
  void SetUp() override {
    CDeviceRows::SetUp();
    open_trusting();
  }
  void open_trusting() {
    nanhunt_recorder_options how = options();
    how.trust_inputs = 1;
    open(how);
    stream_ = nanhunt_device_stream(recorder_, 0, kStream);
  }
  Words view_row(const void* memory, std::int64_t storage, std::int64_t layout) {
    const std::array<std::int32_t, 1> roles = {NANHUNT_READ};
    Words row = {NANHUNT_ROW_OP, call("view", {"self"}, {"out"}, {}, roles.data()), 0, 0, NANHUNT_PHASE_LOSS, 0, 0};
    append(row, value_on(memory, storage));
    append(row, {away(memory), identity(storage, 0), 0, NANHUNT_ON_STREAM(layout, stream_)});
    return row;
  }
  static const ValueRecord& value_of(const RecordBatch& all, std::uint64_t storage, std::size_t nth = 0) {
    for (const ValueRecord& value : all.values) {
      if (value.storage == storage && nth-- == 0) return value;
    }
    static const ValueRecord none;
    ADD_FAILURE() << "no such value of storage " << storage;
    return none;
  }
};

TEST_F(CDeviceTrust, what_an_op_made_is_not_read_again_by_the_ops_that_take_it) {
  ASSERT_EQ(record(log_row_on(x_.data(), y_.data(), 1)), NANHUNT_OK) << nanhunt_last_error();
  EXPECT_EQ(counts().asked, 5u) << "two tensors, their check, the elements and the origins of one";

  // When what it made goes into another op, before and after it has come.
  for (const std::int64_t later : {0, 1}) {
    const std::uint64_t asked = counts().asked, launches = counts().launches;
    const std::array<float, 2> z = {0, 0};
    Words row = {NANHUNT_ROW_OP, log_, 0, 0, NANHUNT_PHASE_LOSS, 0, 0};
    append(row, value_on(y_.data(), 2));
    append(row, value_on(z.data(), 5 + later));
    ASSERT_EQ(record(row), NANHUNT_OK) << nanhunt_last_error();
    EXPECT_EQ(counts().asked, asked + 4u) << "the output, its check, its elements and origins";
    EXPECT_EQ(counts().launches, launches + 3u);
    ASSERT_EQ(nanhunt_recorder_flush(recorder_), NANHUNT_OK);
  }

  // Then it is known to both.
  const RecordBatch all = close_and_read();
  ASSERT_THAT(all.ops, SizeIs(3));
  EXPECT_EQ(std::ranges::count(all.values, 2u, &ValueRecord::storage), 1);
  EXPECT_EQ(value_of(all, 2).stats.neg_inf, 1);
  EXPECT_TRUE(value_of(all, 5).has_stats && value_of(all, 6).has_stats);
}

TEST_F(CDeviceTrust, histograms_and_elements_of_a_birth_show_what_was_not_read_again) {
  // Given two ops, the second of which makes an infinity of what the first made; of the host and of the device.
  const std::array<float, 2> two = {1, 4}, roots = {0, 2}, logs = {-kInf, 0.7F};
  ASSERT_EQ(record(log_row(two.data(), roots.data(), 1)), NANHUNT_OK) << nanhunt_last_error();
  ASSERT_EQ(record(log_row(roots.data(), logs.data(), 2)), NANHUNT_OK) << nanhunt_last_error();
  ASSERT_EQ(record(log_row_on(two.data(), roots.data(), 11)), NANHUNT_OK) << nanhunt_last_error();
  ASSERT_EQ(record(log_row_on(roots.data(), logs.data(), 12)), NANHUNT_OK) << nanhunt_last_error();

  const RecordBatch all = close_and_read();

  ASSERT_THAT(all.histograms, SizeIs(4)) << "of input and output, twice";
  for (const std::size_t i : {0u, 1u}) {
    EXPECT_EQ(all.histograms[2 + i].min_exponent, all.histograms[i].min_exponent);
    EXPECT_EQ(all.histograms[2 + i].bins, all.histograms[i].bins);
  }
  ASSERT_THAT(all.evidence, SizeIs(2));
  EXPECT_EQ(all.evidence[1].flat_index, all.evidence[0].flat_index);
  EXPECT_EQ(all.evidence[1].operands[0].number, all.evidence[0].operands[0].number);
}

TEST_F(CDeviceTrust, a_view_of_what_is_known_takes_no_launch) {
  ASSERT_EQ(record(log_row_on(x_.data(), y_.data(), 1)), NANHUNT_OK) << nanhunt_last_error();
  const std::array<std::int64_t, 2> sizes = {2, 1};
  const std::int64_t column = nanhunt_intern_layout(recorder_, NANHUNT_F32, 2, sizes.data(), nullptr);
  const std::uint64_t asked = counts().asked, launches = counts().launches;

  ASSERT_EQ(record(view_row(y_.data(), 2, column)), NANHUNT_OK) << nanhunt_last_error();

  EXPECT_EQ(counts().asked, asked);
  EXPECT_EQ(counts().launches, launches);
  const RecordBatch all = close_and_read();
  ASSERT_EQ(std::ranges::count(all.values, 2u, &ValueRecord::storage), 2);
  EXPECT_EQ(value_of(all, 2, 1).base, value_of(all, 2).id);
  EXPECT_EQ(value_of(all, 2, 1).stats, value_of(all, 2).stats);
}

TEST_F(CDeviceTrust, a_view_of_what_was_found_changed_is_read_again) {
  // Given a matrix and its transposed view, both read, one number of which goes bad unseen.
  std::array<float, 4> w = {1, 2, 3, 4}, out = {1, 2, 3, 4};
  const std::array<std::int64_t, 2> sizes = {2, 2}, turned = {1, 2};
  const std::int64_t plain = nanhunt_intern_layout(recorder_, NANHUNT_F32, 2, sizes.data(), nullptr),
                     other = nanhunt_intern_layout(recorder_, NANHUNT_F32, 2, sizes.data(), turned.data());
  const auto there = [&](const void* memory, std::int64_t storage, std::int64_t layout) {
    return Words{away(memory), identity(storage, 0), 0, NANHUNT_ON_STREAM(layout, stream_)};
  };
  const auto log_of = [&](std::int64_t layout, std::int64_t made) {
    Words row = {NANHUNT_ROW_OP, log_, 0, 0, NANHUNT_PHASE_LOSS, 0, 0};
    append(row, there(w.data(), 1, layout));
    append(row, there(out.data(), made, plain));
    return row;
  };
  ASSERT_EQ(record(log_of(plain, 2)), NANHUNT_OK) << nanhunt_last_error();
  ASSERT_EQ(record(log_of(other, 3)), NANHUNT_OK) << nanhunt_last_error();
  w[0] = out[0] = std::nanf("");

  // When the matrix is checked, and its view goes into an op.
  Words check = {NANHUNT_ROW_CHECK, 0};
  append(check, there(w.data(), 1, plain));
  ASSERT_EQ(record(check), NANHUNT_OK) << nanhunt_last_error();
  ASSERT_EQ(record(log_of(other, 4)), NANHUNT_OK) << nanhunt_last_error();

  // Then what the op made did not begin in it.
  const RecordBatch all = close_and_read();
  EXPECT_THAT(all.changed, SizeIs(1));
  EXPECT_EQ(value_of(all, 4).stats.nan, 1);
  EXPECT_THAT(all.evidence, IsEmpty());
  EXPECT_THAT(all.histograms, IsEmpty());
}

TEST_F(CDeviceTrust, a_part_of_what_goes_in_is_read_where_it_comes_out) {
  // Given an op of nobody's schema that writes over its input and gives back the first half, twice.
  std::array<float, 2> w = {1, 2};
  const std::array<std::int64_t, 1> one = {1};
  const std::int64_t half = nanhunt_intern_layout(recorder_, NANHUNT_F32, 1, one.data(), nullptr);
  const std::array<std::int32_t, 1> roles = {NANHUNT_READ};
  const std::int64_t scale = call("scale", {"self"}, {"out"}, {}, roles.data());
  for (const float made : {3.0F, kInf}) {
    w[0] = made;
    Words row = {NANHUNT_ROW_OP, scale, 0, 0, NANHUNT_PHASE_LOSS, 0, 0};
    append(row, value_on(w.data(), 1));
    append(row, {away(w.data()), identity(1, 0), 0, NANHUNT_ON_STREAM(half, stream_)});
    ASSERT_EQ(record(row), NANHUNT_OK) << nanhunt_last_error();
  }
  const RecordBatch all = close_and_read();
  EXPECT_EQ(all.values.back().stats.pos_inf, 1);
  EXPECT_THAT(all.evidence, SizeIs(1));
}

TEST_F(CDeviceTrust, what_an_op_writes_over_or_makes_anew_is_read) {
  ASSERT_EQ(record(log_row_on(x_.data(), y_.data(), 1)), NANHUNT_OK) << nanhunt_last_error();
  ASSERT_EQ(nanhunt_recorder_flush(recorder_), NANHUNT_OK);
  y_ = {1, kInf};

  // When an op makes new contents of the same identity, out of others.
  ASSERT_EQ(record(log_row_on(x_.data(), y_.data(), 1)), NANHUNT_OK) << nanhunt_last_error();

  const RecordBatch all = close_and_read();
  EXPECT_EQ(value_of(all, 2).stats.neg_inf, 1);
  EXPECT_EQ(value_of(all, 2, 1).stats.pos_inf, 1);
}

TEST_F(CDeviceTrust, what_was_lost_is_read_again) {
  // Given contents whose reading never comes.
  nanhunt_emulated_set("never", 1);
  ASSERT_EQ(record(log_row_on(x_.data(), y_.data(), 1)), NANHUNT_OK) << nanhunt_last_error();
  end_step(0);
  const std::uint64_t asked = counts().asked;

  // When an op takes them while nobody knows that yet, and one after.
  ASSERT_EQ(record(log_row_on(x_.data(), y_.data(), 1)), NANHUNT_OK) << nanhunt_last_error();
  EXPECT_EQ(counts().asked, asked + 4u);
  const RecordBatch all = close_and_read();

  // Then they are unknown, and nobody is blamed.
  EXPECT_FALSE(value_of(all, 1).has_stats);
  EXPECT_THAT(all.evidence, IsEmpty());
}

TEST_F(CDeviceTrust, what_was_made_in_a_capture_is_read_with_its_next_use) {
  nanhunt_emulated_set("capturing", 1);
  ASSERT_EQ(record(log_row_on(x_.data(), y_.data(), 1)), NANHUNT_OK) << nanhunt_last_error();
  nanhunt_emulated_set("capturing", 0);
  const std::array<float, 2> z = {0, 0};

  ASSERT_EQ(record(log_row_on(y_.data(), z.data(), 2)), NANHUNT_OK) << nanhunt_last_error();

  EXPECT_EQ(counts().asked, 5u) << "both tensors";
  const RecordBatch all = close_and_read();
  EXPECT_EQ(value_of(all, 3).stats.zero, 2);
}

}  // namespace
}  // namespace nanhunt::c_api_tests
