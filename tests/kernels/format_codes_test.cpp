// SPDX-License-Identifier: Apache-2.0
// The limits on codes that classification and the what-if level rest on, against the conversions, code by code.
#include <cmath>

#include "tests/kernels/stats_support.h"

namespace nanhunt::kernels {
namespace {

double value_of(DType dtype, std::uint64_t code) { return load_as_f64(dtype, &code); }

TEST(FormatCodes, classes_follow_the_values_for_every_short_code) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kE4M3FN, DType::kE5M2}) {
    const FormatCodes& f = format_codes(dtype);
    for (std::uint64_t m = 0; m < f.sign; ++m) {
      const double x = value_of(dtype, m);
      ASSERT_EQ(m >= f.first_nan, std::isnan(x));
      ASSERT_EQ(m >= f.first_nonfinite, !std::isfinite(x));
      ASSERT_EQ(m < f.min_normal, x < format_limits(dtype).min_normal);
      if (m != 0 && std::isfinite(x)) {
        ASSERT_EQ(f.binade(m), std::ilogb(x) - std::ilogb(value_of(dtype, 1)));
        ASSERT_LT(f.binade(m), f.binades());
      }
    }
  }
}

TEST(FormatCodes, what_if_limits_agree_with_real_casts_for_every_short_code) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kE4M3FN, DType::kE5M2}) {
    const FormatCodes& f = format_codes(dtype);
    for (std::size_t t = 0; t < kWhatIfFormats.size(); ++t) {
      const double min_normal = format_limits(kWhatIfFormats[t]).min_normal;
      for (std::uint64_t m = 0; m < f.first_nonfinite; ++m) {
        const double there = round_to(kWhatIfFormats[t], value_of(dtype, m));
        ASSERT_EQ(m < f.thresholds[3 * t], there == 0);
        ASSERT_EQ(m < f.thresholds[3 * t + 1], there < min_normal);
        ASSERT_EQ(m < f.thresholds[3 * t + 2], std::isfinite(there));
      }
    }
  }
}

TEST(FormatCodes, what_if_limits_of_long_formats_are_exact) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const FormatCodes& f = format_codes(dtype);
    EXPECT_EQ(value_of(dtype, f.first_nonfinite), INFINITY);
    // fp16: above 2^-25, from 2^-14 - 2^-25 (a tie that goes up), from 65520
    EXPECT_GT(value_of(dtype, f.thresholds[0]), 0x1p-25);
    EXPECT_EQ(value_of(dtype, f.thresholds[0] - 1), 0x1p-25);
    EXPECT_EQ(value_of(dtype, f.thresholds[1]), 0x1p-14 - 0x1p-25);
    EXPECT_EQ(value_of(dtype, f.thresholds[2]), 65520);
    // E4M3FN: 464 is a tie that still goes down to 448
    EXPECT_EQ(value_of(dtype, f.thresholds[8] - 1), 464);
    // E5M2
    EXPECT_EQ(value_of(dtype, f.thresholds[11]), 61440);
  }
}

}  // namespace
}  // namespace nanhunt::kernels
