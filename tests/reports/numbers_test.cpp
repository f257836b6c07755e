// SPDX-License-Identifier: Apache-2.0
#include "reports/views/numbers.h"
#include "src/core/text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace nanhunt::reports {
namespace {

TEST(Numbers, counts_are_grouped_by_thousands) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(std::numeric_limits<std::uint64_t>::max()), "18,446,744,073,709,551,615");
  EXPECT_EQ(format_signed_count(std::numeric_limits<std::int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(Numbers, values_keep_six_digits_and_short_exponents) {
  EXPECT_EQ(format_short(65504), "65504");
  EXPECT_EQ(format_short(1e-8), "1e-8");
  EXPECT_EQ(format_short(1.00000011920929), "1.00000012");
  EXPECT_EQ(format_short(5.9604e-08), "5.9604e-8");
  EXPECT_EQ(format_short(1e20), "1e20");
  EXPECT_EQ(format_short(15e-324), "1.4822e-323");
  EXPECT_EQ(format_short(-0.0), "-0");
  EXPECT_EQ(format_short(std::nan("")), "NaN");
  EXPECT_EQ(format_short(std::numeric_limits<double>::infinity()), "+Inf");
  EXPECT_EQ(format_short(-std::numeric_limits<double>::infinity()), "-Inf");
}

TEST(Numbers, shares_never_round_some_to_none_or_to_all) {
  EXPECT_EQ(format_share(0, 10), "0 of 10 (0 %)");
  EXPECT_EQ(format_share(10, 10), "10 of 10 (100 %)");
  EXPECT_EQ(format_share(1, 8192), "1 of 8,192 (0.01 %)");
  EXPECT_EQ(format_share(1, 1'000'000), "1 of 1,000,000 (< 0.01 %)");
  EXPECT_EQ(format_share(999'999, 1'000'000), "999,999 of 1,000,000 (> 99 %)");
  EXPECT_EQ(format_share(3, 0), "3 of 0");
}

TEST(Numbers, sizes_are_told_in_binary_units) {
  EXPECT_EQ(format_bytes(1), "1 byte");
  EXPECT_EQ(format_bytes(1023), "1,023 bytes");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(64ull << 20), "64 MiB");
}

TEST(Numbers, clipped_text_ends_at_a_character) {
  EXPECT_EQ(clip("abc", 3), "abc");
  EXPECT_EQ(clip("abcd", 3), "abc…");
  EXPECT_EQ(clip("aé", 2), "a…");
  EXPECT_EQ(clip(std::string(1'000'000, 'x'), 10), "xxxxxxxxxx…");
  EXPECT_EQ(clip("\x1b", 10), "\\x1b");
}

TEST(Numbers, a_word_of_a_command_is_quoted_where_a_shell_would_read_it_otherwise) {
  EXPECT_EQ(shell_word("runs/a-1_b.nht"), "runs/a-1_b.nht");
  EXPECT_EQ(shell_word("my run"), "'my run'");
  EXPECT_EQ(shell_word("it's $HOME"), "'it'\\''s $HOME'");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(Numbers, powers_of_two_beyond_what_is_read_at_sight_are_written_as_such) {
  EXPECT_EQ(format_short(std::ldexp(1, -24)), "2^-24");
  EXPECT_EQ(format_short(-std::ldexp(1, 24)), "-2^24");
  EXPECT_EQ(format_short(std::ldexp(1, -10)), "0.000976562");
  EXPECT_EQ(format_short(65536), "65536");
  EXPECT_EQ(format_short(1e-8), "1e-8");
}

TEST(Numbers, dimensions_of_a_scalar_are_empty_brackets) {
  EXPECT_EQ(format_dims({}), "[]");
  EXPECT_EQ(format_dims({2, 3}), "[2, 3]");
  EXPECT_EQ(format_dims({1, 2, 3}, 2), "[1, 2, …]");
}

}  // namespace
}  // namespace nanhunt::reports
