// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/pickle/pickle.h"

#include <gtest/gtest.h>

#include <string>

namespace nanhunt::checkpoint {
namespace {

using namespace std::string_literals;

const PickleValue& root_of(const Pickle& pickle) { return pickle.at(pickle.root); }

TEST(Pickle, numbers_of_every_opcode_are_read) {
  // given a tuple of 1, -2, 300, 2^40, -1 of one byte, 0.5, True and None, by the opcodes of their sizes
  const std::string bytes =
      "\x80\x02(K\x01J\xfe\xff\xff\xffM\x2c\x01\x8a\x06\x00\x00\x00\x00\x00\x01\x8a\x01\xff"
      "G\x3f\xe0\x00\x00\x00\x00\x00\x00\x88Nt."s;
  // when
  const auto read = parse_pickle(bytes);
  // then
  ASSERT_TRUE(read.is_ok()) << read.status().message();
  const PickleValue& tuple = root_of(*read);
  ASSERT_EQ(tuple.kind, PickleKind::kTuple);
  ASSERT_EQ(tuple.items.size(), 8u);
  const std::int64_t expected[] = {1, -2, 300, std::int64_t{1} << 40, -1};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(read->at(tuple.items[i]).integer, expected[i]) << i;
  EXPECT_EQ(read->at(tuple.items[5]).real, 0.5);
  EXPECT_EQ(read->at(tuple.items[6]).kind, PickleKind::kBool);
  EXPECT_EQ(read->at(tuple.items[7]).kind, PickleKind::kNone);
  EXPECT_EQ(read->bytes, bytes.size());
}

TEST(Pickle, text_of_protocol_0_is_read) {
  const auto read = parse_pickle("(dp0\nS'a'\nF1.5\nsV\xc3\xa4\nI01\nsS'n'\nL7L\ns.");
  ASSERT_TRUE(read.is_ok()) << read.status().message();
  const PickleValue& dict = root_of(*read);
  ASSERT_EQ(dict.items.size(), 6u);
  EXPECT_EQ(read->at(dict.items[0]).text, "a");
  EXPECT_EQ(read->at(dict.items[1]).real, 1.5);
  EXPECT_EQ(read->at(dict.items[3]).kind, PickleKind::kBool);
  EXPECT_EQ(read->at(dict.items[5]).integer, 7);
}

TEST(Pickle, a_call_is_kept_by_name_and_not_made) {
  const auto read = parse_pickle("cos\nsystem\n(S'touch /tmp/x'\ntR.");
  ASSERT_TRUE(read.is_ok());
  const PickleValue& object = root_of(*read);
  ASSERT_EQ(object.kind, PickleKind::kObject);
  EXPECT_EQ(read->at(object.items[0]).text, "os.system");
  EXPECT_EQ(read->globals, std::vector<std::string>{"os.system"});
}

TEST(Pickle, an_ordered_dict_is_a_dict_and_its_attributes_are_left_out) {
  const auto read = parse_pickle(
      "\x80\x02"
      "ccollections\nOrderedDict\n)Rq\x00X\x01\x00\x00\x00"
      "aK\x05s}b."s);
  ASSERT_TRUE(read.is_ok());
  const PickleValue& dict = root_of(*read);
  ASSERT_EQ(dict.kind, PickleKind::kDict);
  ASSERT_EQ(dict.items.size(), 2u);
  EXPECT_EQ(read->at(dict.items[1]).integer, 5);
}

TEST(Pickle, an_integer_beyond_64_bits_is_known_to_be_one) {
  const auto read = parse_pickle("\x80\x02\x8a\x0a\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a."s);
  ASSERT_TRUE(read.is_ok());
  EXPECT_TRUE(root_of(*read).big);
}

TEST(Pickle, one_that_is_cut_anywhere_is_damaged_and_its_whole_is_not) {
  const std::string whole =
      "\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01"
      "a\x94]\x94(K\x01K\x02"
      "es."s;
  ASSERT_TRUE(parse_pickle(whole).is_ok());
  for (std::size_t n = 0; n < whole.size(); ++n)
    EXPECT_EQ(parse_pickle(whole.substr(0, n)).status().code(), StatusCode::kDamaged) << n;
}

TEST(Pickle, what_pops_more_than_there_is_is_refused) {
  for (const std::string& bytes :
       {"0."s, "a."s, "s."s, "R."s, "t."s, "(R."s, "K\x01("s + "R."s, "b."s, "g0\n."s, "2."s, "Q."s, "\x93."s})
    EXPECT_EQ(parse_pickle(bytes).status().code(), StatusCode::kUnreadable) << bytes;
}

TEST(Pickle, more_objects_than_the_limit_are_refused) {
  EXPECT_EQ(parse_pickle("(" + std::string(4'100'000, ']') + "l.").status().code(), StatusCode::kUnreadable);
  EXPECT_TRUE(parse_pickle("(" + std::string(400'000, ']') + "l.").is_ok());
}

}  // namespace
}  // namespace nanhunt::checkpoint
