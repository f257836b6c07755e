// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/simd.h"

#include <cstdlib>

namespace nanhunt::kernels {
namespace {

TEST(Simd, every_path_has_a_name_that_parses_back) {
  for (const Simd simd : kAllSimd) EXPECT_EQ(parse_simd(simd_name(simd)), simd);
  EXPECT_EQ(parse_simd("AVX512"), std::nullopt);
  EXPECT_EQ(parse_simd(""), std::nullopt);
}

TEST(Simd, the_active_path_is_one_that_this_cpu_can_run) {
  EXPECT_TRUE(simd_supported(Simd::kScalar));
  EXPECT_TRUE(simd_supported(active_simd()));
  const char* wish = std::getenv("NANHUNT_SIMD");
  if (wish != nullptr && parse_simd(wish).has_value()) {
    EXPECT_LE(active_simd(), *parse_simd(wish));
  }
}

}  // namespace
}  // namespace nanhunt::kernels
