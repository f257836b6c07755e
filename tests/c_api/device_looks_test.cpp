// SPDX-License-Identifier: Apache-2.0
// What is looked at on a device apart from rows, and rows that name it.
#include <array>

#include "tests/c_api/device_rows_fixture.h"

namespace nanhunt::c_api_tests {
namespace {

TEST_F(CDeviceRows, what_was_looked_at_stands_for_contents_that_are_gone) {
  Words both = value_on(y_.data(), 2);
  append(both, value_on(x_.data(), 1));
  const std::uint64_t look = nanhunt_device_look(recorder_, both.data(), 1, 2);
  ASSERT_NE(look, 0u) << nanhunt_last_error();
  std::array<std::uint8_t, 2> bits{};
  EXPECT_EQ(nanhunt_device_looked(recorder_, look, bits.data(), 2), 0) << "it is on its way";
  ASSERT_EQ(nanhunt_device_settle(recorder_), NANHUNT_OK);
  ASSERT_EQ(nanhunt_device_looked(recorder_, look, bits.data(), 2), 1);
  EXPECT_EQ(bits, (std::array<std::uint8_t, 2>{NANHUNT_HAS_NEG_INF, 0}));
  std::array<nanhunt_stats, 2> stats{};
  for (nanhunt_stats& one : stats) one.struct_size = sizeof one;
  ASSERT_EQ(nanhunt_device_look_stats(recorder_, look, stats.data(), 2), NANHUNT_OK) << nanhunt_last_error();
  EXPECT_EQ(stats[0].neg_inf, 1);
  EXPECT_EQ(stats[1].zero, 1);

  Words row = {NANHUNT_ROW_OP, log_, 0, 0, NANHUNT_PHASE_LOSS, 0, 0};
  const std::int64_t looked = NANHUNT_ON_STREAM(layout_, NANHUNT_LOOKS);
  append(row, {NANHUNT_LOOKED_AT(look, 1), identity(1, 0), 0, looked});
  append(row, {NANHUNT_LOOKED_AT(look, 0), identity(2, 0), 0, looked});
  y_ = {1, 2};
  ASSERT_EQ(record(row), NANHUNT_OK) << nanhunt_last_error();
  ASSERT_EQ(nanhunt_device_forget_look(recorder_, look), NANHUNT_OK);
  EXPECT_EQ(nanhunt_device_looked(recorder_, look, bits.data(), 2), -1) << "it is forgotten";
  EXPECT_EQ(nanhunt_recorder_origins(recorder_), 1u);

  const RecordBatch all = close_and_read();
  ASSERT_THAT(all.values, SizeIs(2));
  EXPECT_EQ(all.values[0].stats.zero, 1);
  EXPECT_EQ(all.values[1].stats.neg_inf, 1);
}

TEST_F(CDeviceRows, what_is_finite_is_not_counted_unless_that_is_asked_for) {
  const Words x = value_on(x_.data(), 1);
  const std::uint64_t look = nanhunt_device_look(recorder_, x.data(), 1, 1);
  const std::uint64_t counted = nanhunt_device_look(recorder_, x.data(), 0, 1);
  ASSERT_EQ(nanhunt_device_settle(recorder_), NANHUNT_OK);
  std::uint8_t bits = 9;
  ASSERT_EQ(nanhunt_device_looked(recorder_, look, &bits, 1), 1);
  ASSERT_EQ(nanhunt_device_looked(recorder_, counted, &bits, 1), 1);
  EXPECT_EQ(bits, 0);
  nanhunt_stats stats{};
  stats.struct_size = sizeof stats;
  ASSERT_EQ(nanhunt_device_look_stats(recorder_, look, &stats, 1), NANHUNT_OK);
  EXPECT_EQ(stats.numel, -1);
  ASSERT_EQ(nanhunt_device_look_stats(recorder_, counted, &stats, 1), NANHUNT_OK);
  EXPECT_EQ(stats.sum_sq, 16);
}

TEST_F(CDeviceRows, what_a_look_did_not_read_is_not_known) {
  std::array<float, 4> gaps = {kInf, 1, 2, 1};
  constexpr std::int64_t kTwo[] = {2}, kEverySecond[] = {2};
  const std::int64_t wide = nanhunt_intern_layout(recorder_, NANHUNT_F32, 1, kTwo, kEverySecond);
  Words words = {away(gaps.data()), identity(3, 0), 0, NANHUNT_ON_STREAM(wide, stream_)};
  append(words, value_on(x_.data(), 1));
  const std::uint64_t look = nanhunt_device_look(recorder_, words.data(), 1, 2);
  ASSERT_EQ(nanhunt_device_settle(recorder_), NANHUNT_OK);
  std::array<std::uint8_t, 2> bits{};
  ASSERT_EQ(nanhunt_device_looked(recorder_, look, bits.data(), 2), 1) << nanhunt_last_error();
  EXPECT_EQ(bits, (std::array<std::uint8_t, 2>{NANHUNT_HAS_POS_INF, NANHUNT_HAS_NOT_SAID}));
}

TEST_F(CDeviceRows, a_long_step_asks_for_more_than_there_is_room_for_at_once) {
  nanhunt_emulated_set("copies_later", 1);
  Words words;
  for (int i = 0; i < 100; ++i) append(words, value_on(x_.data(), 1));
  for (int i = 0; i < 900; ++i) ASSERT_NE(nanhunt_device_look(recorder_, words.data(), 50, 100), 0u) << i;
  EXPECT_EQ(counts().lost, 0u);
}

TEST_F(CDeviceRows, a_look_at_what_it_cannot_read_is_refused) {
  EXPECT_EQ(nanhunt_device_look(recorder_, nullptr, 1, 1), 0u);
  const Words here = {address(x_.data()), identity(1, 0), 0, layout_};
  EXPECT_EQ(nanhunt_device_look(recorder_, here.data(), 1, 1), 0u);
  EXPECT_THAT(nanhunt_last_error(), HasSubstr("expected the stream of the first"));
  EXPECT_EQ(nanhunt_device_looked(recorder_, 77, nullptr, 0), -1);
}

}  // namespace
}  // namespace nanhunt::c_api_tests
