// SPDX-License-Identifier: Apache-2.0
// Bytes that lie: nothing crashes, nothing is allocated on a file's word, and what is wrong is said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "src/autopsy/loose_json.h"
#include "src/autopsy/protobuf_fields.h"
#include "tests/autopsy/log_files.h"

namespace nanhunt::autopsy_testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(Hostile, a_varint_of_eleven_bytes_ends_the_message) {
  const std::string message(11, '\xff');
  autopsy::ProtobufFields fields(message);
  autopsy::ProtobufField field;
  EXPECT_FALSE(fields.next(field));
  EXPECT_TRUE(fields.damaged());
}

TEST(Hostile, a_field_longer_than_its_message_ends_it) {
  const std::string message = varint((1u << 3) | 2u) + varint(0xffffffffffffffffu) + "abc";
  autopsy::ProtobufFields fields(message);
  autopsy::ProtobufField field;
  EXPECT_FALSE(fields.next(field));
  EXPECT_TRUE(fields.damaged());
}

TEST(Hostile, groups_and_field_zero_are_mistakes) {
  for (const char key : {'\x0b', '\x0c', '\x00', '\x06'}) {
    const std::string message(1, key);
    autopsy::ProtobufFields fields(message);
    autopsy::ProtobufField field;
    EXPECT_FALSE(fields.next(field));
    EXPECT_TRUE(fields.damaged());
  }
}

TEST(Hostile, a_record_of_a_length_beyond_the_file_is_damage) {
  std::string head(8, '\xff');
  const std::string framed = tfrecord(head);
  // A right checksum over a length that lies: that of the data field is the one of these eight bytes.
  const std::string file = head + framed.substr(framed.size() - 4) + "rest";
  EXPECT_THAT(evidence_of("events.out.tfevents.1", file).sources[0].damage, HasSubstr("ends within a record"));
}

TEST(Hostile, nesting_beyond_64_levels_ends_the_reading) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  const auto end = autopsy::read_loose_json(deep, [](std::string_view, const autopsy::LooseValue&) {});
  EXPECT_FALSE(end.whole);
  EXPECT_LT(end.length, 100u);
}

TEST(Hostile, a_key_that_is_nan_and_steps_that_are_not_finite_order_nothing) {
  const auto evidence =
      evidence_of("m.jsonl", "{\"nan\": 3, \"step\": NaN, \"loss\": 1}\n{\"step\": 1e999, \"loss\": 1}\n");
  for (const autopsy::Series& series : evidence.series) EXPECT_NE(series.unit, autopsy::Unit::kStep);
}

TEST(Hostile, a_head_of_a_million_columns_is_cut_and_said) {
  std::string file;
  for (int i = 0; i < 1'000'000; ++i) file += "loss" + std::to_string(i) + ",";
  file += "\n1,2,3\n";
  EXPECT_THAT(evidence_of("a.csv", file).sources[0].damage, Not(IsEmpty()));
}

TEST(Hostile, series_beyond_the_bound_are_cut) {
  std::string line = "{\"step\":1";
  for (int i = 0; i < 2000; ++i) line += ",\"loss." + std::to_string(i) + ".loss\":1";
  const auto evidence = evidence_of("a.jsonl", line + "}\n");
  EXPECT_LE(evidence.series.size(), 256u);
  EXPECT_TRUE(evidence.cut);
  EXPECT_EQ(autopsy::judge(evidence).outcome,
            autopsy::Outcome::kDamaged);  // what was not read may be what is looked for
}

TEST(Hostile, numbers_out_of_range_are_infinite_or_zero) {
  EXPECT_EQ(autopsy::parse_number("1e999"), std::numeric_limits<double>::infinity());
  EXPECT_EQ(autopsy::parse_number("-1e999"), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(autopsy::parse_number("1e-999"), 0.0);
  for (const std::string_view text : {"", "-", "1x", "nanny", "0x10", "--1", "1 2"})
    EXPECT_EQ(autopsy::parse_number(text), std::nullopt) << text;
}

}  // namespace
}  // namespace nanhunt::autopsy_testing
