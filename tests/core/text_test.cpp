// SPDX-License-Identifier: Apache-2.0
#include "src/core/text.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace nanhunt {
namespace {

TEST(FormatNumber, is_short_and_reads_back_as_the_same_double) {
  EXPECT_EQ(format_number(65504), "65504");
  EXPECT_EQ(format_number(0.1), "0.1");
  EXPECT_EQ(format_number(1e-8), "1e-08");
  EXPECT_EQ(format_number(-0.0), "-0");
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    const double x = std::bit_cast<double>(random());
    if (std::isfinite(x)) {
      EXPECT_EQ(std::stod(format_number(std::abs(x) < 1e-300 ? 1.5 : x)), std::abs(x) < 1e-300 ? 1.5 : x);
    }
  }
}

TEST(FormatNumber, names_what_is_not_finite) {
  EXPECT_EQ(format_number(std::numeric_limits<double>::quiet_NaN()), "NaN");
  EXPECT_EQ(format_number(-std::numeric_limits<double>::quiet_NaN()), "NaN");
  EXPECT_EQ(format_number(std::numeric_limits<double>::infinity()), "Infinity");
  EXPECT_EQ(format_number(-std::numeric_limits<double>::infinity()), "-Infinity");
}

TEST(Printable, leaves_ordinary_text_alone) {
  EXPECT_EQ(printable(""), "");
  EXPECT_EQ(printable("encoder.block.2.attn [8x128] \\ \"'"), "encoder.block.2.attn [8x128] \\ \"'");
  EXPECT_EQ(printable("größe 層 \xF0\x9F\x94\xA5"), "größe 層 \xF0\x9F\x94\xA5");
}

TEST(Printable, disarms_terminal_escapes_and_control_characters) {
  EXPECT_EQ(printable("\x1b[31mred\x07"), "\\x1b[31mred\\x07");
  EXPECT_EQ(printable("a\nb\tc\r\x7f"), "a\\x0ab\\x09c\\x0d\\x7f");
  EXPECT_EQ(printable(std::string_view("\0x", 2)), "\\x00x");
  EXPECT_EQ(printable("\xC2\x9B"
                      "31m"),
            "\\u{9b}31m");  // CSI as one C1 control
}

TEST(Printable, disarms_bidirectional_and_invisible_characters) {
  EXPECT_EQ(printable("a\xE2\x80\xAE"
                      "b"),
            "a\\u{202e}b");  // right-to-left override
  EXPECT_EQ(printable("\xE2\x81\xA6\xE2\x80\xA8\xE2\x80\x8B"), "\\u{2066}\\u{2028}\\u{200b}");
  EXPECT_EQ(printable("\xEF\xBB\xBF"), "\\u{feff}");
  EXPECT_EQ(printable("\xF3\xA0\x81\x81"), "\\u{e0041}");  // a tag character
}

TEST(Printable, escapes_bytes_that_are_not_utf8) {
  EXPECT_EQ(printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(printable("\xC0\xAF"), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xed\\xa0\\x80");           // surrogate
  EXPECT_EQ(printable("\xF4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // above U+10FFFF
  EXPECT_EQ(printable("\xE5\xB1"), "\\xe5\\xb1");                    // cut short
}

}  // namespace
}  // namespace nanhunt
