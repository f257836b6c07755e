// SPDX-License-Identifier: Apache-2.0
// Every vector path against the scalar reference: the same bits in every field, at every level.
#include <cmath>
#include <functional>
#include <random>

#include "tests/kernels/stats_support.h"

namespace nanhunt {
namespace {

using kernels::compute_stats_on;
using kernels::Simd;
using testing_support::describe;
using testing_support::kFloats;
using testing_support::kLevels;
using testing_support::OwnedTensor;

void expect_paths_agree(DType dtype, OwnedTensor& tensor, const std::string& what) {
  for (const StatsLevel level : kLevels) {
    const TensorStats want = compute_stats_on(Simd::kScalar, tensor.view(), level);
    for (const Simd simd : testing_support::supported_paths()) {
      const TensorStats got = compute_stats_on(simd, tensor.view(), level);
      ASSERT_TRUE(got == want) << what << ", " << tensor.count() << " elements of " << describe(dtype, simd, level)
                               << "\n zero " << got.zero << " / " << want.zero << ", nan " << got.nan << " / "
                               << want.nan << ", subnormal " << got.subnormal << " / " << want.subnormal << ", sum "
                               << got.sum << " / " << want.sum << ", amax " << got.amax << " / " << want.amax;
    }
  }
}

TEST(TensorStatsPaths, every_short_code_alone_is_classified_the_same) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kE4M3FN, DType::kE5M2}) {
    const std::uint64_t codes = std::uint64_t{1} << (8 * dtype_size(dtype));
    OwnedTensor tensor(dtype, std::size_t{32});  // one whole unit of the vector kernels
    for (std::uint64_t code = 0; code < codes; ++code) {
      for (std::size_t i = 0; i < 32; ++i) tensor.set_code(i, code);
      const TensorStats want = compute_stats_on(Simd::kScalar, tensor.view(), StatsLevel::kHistogram);
      for (const Simd simd : testing_support::supported_paths()) {
        ASSERT_TRUE(compute_stats_on(simd, tensor.view(), StatsLevel::kHistogram) == want)
            << describe(dtype, simd, StatsLevel::kHistogram) << " code " << code;
      }
    }
  }
}

TEST(TensorStatsPaths, all_short_codes_together_agree) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kE4M3FN, DType::kE5M2}) {
    const std::size_t codes = std::size_t{1} << (8 * dtype_size(dtype));
    OwnedTensor tensor(dtype, codes);
    for (std::size_t code = 0; code < codes; ++code) tensor.set_code(code, code);
    expect_paths_agree(dtype, tensor, "all codes");
    const TensorStats s = compute_stats(tensor.view(), StatsLevel::kHistogram);
    EXPECT_EQ(s.zero, 2);
    EXPECT_EQ(s.sum, 0);
    EXPECT_EQ(s.inf(), format_limits(dtype).has_inf ? 2 : 0);
    EXPECT_EQ(s.amax, format_limits(dtype).max_finite);
    EXPECT_EQ(s.amin_nonzero, format_limits(dtype).min_subnormal);
  }
}

struct Recipe {
  std::string name;
  std::function<double(std::mt19937_64&)> value;
};

// Ordinary data, and data made to hit each branch: subnormals, one sign, wide ranges, every class mixed.
std::vector<Recipe> recipes() {
  const auto normal = [](std::mt19937_64& random) { return std::normal_distribution<double>()(random); };
  return {
      {"normal", normal},
      {"normal with non-finite values",
       [=](std::mt19937_64& random) {
         const std::uint64_t die = random() % 500;
         return die == 0 ? NAN : die == 1 ? INFINITY : die == 2 ? -INFINITY : normal(random);
       }},
      {"tiny", [=](std::mt19937_64& random) { return normal(random) * 1e-6; }},
      {"half zeros", [=](std::mt19937_64& random) { return random() % 2 == 0 ? 0.0 : normal(random); }},
      {"negative", [=](std::mt19937_64& random) { return -std::abs(normal(random)); }},
      {"negative zeros and subnormals",
       [=](std::mt19937_64& random) { return random() % 3 == 0 ? -0.0 : std::abs(normal(random)) * 1e-7; }},
      {"80 binades",
       [=](std::mt19937_64& random) { return normal(random) * std::exp2(static_cast<double>(random() % 80) - 40); }},
      {"around the smallest numbers of fp32 and bf16",
       [=](std::mt19937_64& random) { return normal(random) * std::exp2(-120 - static_cast<double>(random() % 30)); }},
      {"around the largest numbers",
       [=](std::mt19937_64& random) { return normal(random) * std::exp2(static_cast<double>(random() % 1030)); }},
  };
}

TEST(TensorStatsPaths, vectors_equal_the_reference_on_random_and_adversarial_data) {
  std::mt19937_64 random(1);
  for (const DType dtype : kFloats) {
    for (const std::size_t count : {1u, 5u, 31u, 32u, 33u, 64u, 100u, 511u, 4097u, 16384u, 16385u, 33000u}) {
      for (const Recipe& recipe : recipes()) {
        OwnedTensor tensor(dtype, count, count % 4);
        for (std::size_t i = 0; i < count; ++i) tensor.set(i, recipe.value(random));
        expect_paths_agree(dtype, tensor, recipe.name);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(TensorStatsPaths, vectors_equal_the_reference_on_random_bits) {
  std::mt19937_64 random(2);
  for (const DType dtype : kFloats) {
    for (const std::size_t count : {50u, 1000u, 40000u}) {
      OwnedTensor tensor(dtype, count, 1);
      for (std::size_t i = 0; i < count; ++i) tensor.set_code(i, random());
      expect_paths_agree(dtype, tensor, "random bits");
      if (HasFatalFailure()) return;
    }
  }
}

TEST(TensorStatsPaths, one_odd_element_in_a_large_block_is_seen_at_every_place) {
  for (const DType dtype : kFloats) {
    const FormatLimits& limits = format_limits(dtype);
    for (const double odd : {double{NAN}, limits.min_subnormal, -limits.max_finite, 0.0, limits.min_normal}) {
      for (const std::size_t at : {0u, 17u, 1023u, 2048u, 2079u}) {
        OwnedTensor tensor(dtype, std::size_t{2080});
        for (std::size_t i = 0; i < tensor.count(); ++i) tensor.set(i, 1.5);
        tensor.set(at, odd);
        expect_paths_agree(dtype, tensor, "one odd element");
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(TensorStatsPaths, the_same_tensor_gives_the_same_bits_twice_and_at_every_alignment) {
  std::mt19937_64 random(4);
  for (const DType dtype : kFloats) {
    std::vector<TensorStats> all;
    const auto seed = random();
    for (std::size_t misalignment = 0; misalignment < 8; ++misalignment) {
      OwnedTensor tensor(dtype, std::size_t{20000}, misalignment);
      std::mt19937_64 values(seed);
      for (std::size_t i = 0; i < tensor.count(); ++i) tensor.set(i, std::normal_distribution<double>()(values));
      all.push_back(compute_stats(tensor.view(), StatsLevel::kHistogram));
      all.push_back(compute_stats(tensor.view(), StatsLevel::kHistogram));
    }
    for (const TensorStats& s : all) EXPECT_TRUE(s == all[0]) << dtype_name(dtype);
  }
}

}  // namespace
}  // namespace nanhunt
