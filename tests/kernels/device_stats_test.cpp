// SPDX-License-Identifier: Apache-2.0
// The device's tensor_stats kernel, run on the CPU, against the CPU's statistics: every format, edge, length,
// alignment.
#include <functional>
#include <random>
#include <set>

#include "tests/kernels/device_stats_support.h"

namespace nanhunt {
namespace {

using kernels::cuda::for_float_dtype;
using kernels::cuda::StatsFormat;
using testing_support::device_agrees;
using testing_support::emulated_stats;
using testing_support::kFloats;
using testing_support::kDeviceLevels;
using testing_support::OwnedTensor;

TEST(DeviceStats, knows_the_formats_as_the_cpu_finds_them) {
  for (const DType dtype : kFloats) {
    const kernels::FormatCodes& codes = kernels::format_codes(dtype);
    for_float_dtype(dtype, [&]<DType kDType>() {
      using Format = StatsFormat<kDType>;
      EXPECT_EQ(static_cast<std::size_t>(Format::kBytes), dtype_size(dtype));
      EXPECT_EQ(Format::kMantissa, codes.mantissa_bits);
      EXPECT_EQ(Format::kBinades, codes.binades());
      EXPECT_EQ(Format::kFirstNonfinite, codes.first_nonfinite);
      EXPECT_EQ(Format::kFirstNan, codes.first_nan);
      EXPECT_EQ(kernels::cuda::min_normal<kDType>(), codes.min_normal);
      for (int i = 0; i < kernels::cuda::kThresholds; ++i) {
        EXPECT_EQ(Format::threshold(i), codes.thresholds[i]) << dtype_name(dtype) << " threshold " << i;
      }
      EXPECT_LE(kernels::kDetailThresholds + static_cast<std::size_t>(Format::kBinades), kernels::kDetailWords);
    });
  }
}

TEST(DeviceStats, reads_lanes_as_the_cpu_reads_elements) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kE4M3FN, DType::kE5M2}) {
    const kernels::FormatCodes& codes = kernels::format_codes(dtype);
    for_float_dtype(dtype, [&]<DType kDType>() {
      if constexpr (StatsFormat<kDType>::kBytes <= 2) {
        constexpr int kShift = kernels::cuda::LaneFormat<kDType>::kShift;
        for (std::uint32_t code = 0; code < 2 * codes.sign; ++code) {
          if ((code & ~codes.sign) >= codes.first_nonfinite) continue;
          const double value = kernels::cuda::lane_value<kDType>(code << kShift) * kernels::cuda::sum_scale<kDType>();
          ASSERT_EQ(value, load_as_f64(dtype, &code)) << dtype_name(dtype) << " code " << code;
        }
      }
    });
  }
}

// Codes at which something changes, and their neighbours, with both signs.
std::vector<std::uint64_t> edge_codes(DType dtype) {
  const kernels::FormatCodes& f = kernels::format_codes(dtype);
  std::set<std::uint64_t> magnitudes = {0, 1, 2, f.sign - 1, f.sign - 2, f.first_nan + (f.first_nan >> 1) % 7};
  std::vector<std::uint64_t> limits(f.thresholds, f.thresholds + kernels::kWhatIfThresholds);
  limits.insert(limits.end(), {f.min_normal, f.first_nonfinite, f.first_nan, f.min_normal * 2, f.min_normal * 3});
  for (const std::uint64_t limit : limits) {
    for (const std::uint64_t near : {limit - 1, limit, limit + 1}) magnitudes.insert(near & (f.sign - 1));
  }
  std::vector<std::uint64_t> codes;
  for (const std::uint64_t magnitude : magnitudes) codes.insert(codes.end(), {magnitude, magnitude | f.sign});
  return codes;
}

TEST(DeviceStats, every_edge_of_every_format_counts_as_on_the_cpu) {
  for (const DType dtype : kFloats) {
    const std::vector<std::uint64_t> edges = edge_codes(dtype);
    OwnedTensor all(dtype, edges.size());
    for (std::size_t i = 0; i < edges.size(); ++i) all.set_code(i, edges[i]);
    for (const StatsLevel level : kDeviceLevels) {
      EXPECT_TRUE(device_agrees(all.view(), level)) << dtype_name(dtype) << " all edges, level " << int(level);
    }
    for (const std::uint64_t edge : edges) {
      for (const std::size_t count : {1u, 40u}) {  // alone; filling every lane
        OwnedTensor one(dtype, count);
        for (std::size_t i = 0; i < count; ++i) one.set_code(i, edge);
        ASSERT_TRUE(device_agrees(one.view(), StatsLevel::kHistogram)) << dtype_name(dtype) << " code " << edge;
      }
      OwnedTensor among(dtype, std::size_t{37});  // at each place of a vector among ordinary numbers
      for (std::size_t i = 0; i < 37; ++i) among.set(i, i % 2 == 0 ? 1.5 : -0.75);
      among.set_code(edge % 37, edge);
      ASSERT_TRUE(device_agrees(among.view(), StatsLevel::kHistogram)) << dtype_name(dtype) << " code " << edge;
    }
  }
}

TEST(DeviceStats, all_short_codes_together_count_as_on_the_cpu) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kE4M3FN, DType::kE5M2}) {
    const std::size_t codes = std::size_t{1} << (8 * dtype_size(dtype));
    OwnedTensor tensor(dtype, codes);
    for (std::size_t code = 0; code < codes; ++code) tensor.set_code(code, code);
    for (const StatsLevel level : kDeviceLevels) {
      EXPECT_TRUE(device_agrees(tensor.view(), level)) << dtype_name(dtype) << " level " << int(level);
    }
  }
}

TEST(DeviceStats, agrees_at_every_length_from_0_to_4097) {
  std::mt19937_64 random(3);
  for (const DType dtype : kFloats) {
    const std::size_t step = dtype == DType::kF16 || dtype == DType::kF32 ? 1 : 29;
    OwnedTensor tensor(dtype, std::size_t{4097});
    for (std::size_t i = 0; i < tensor.count(); ++i) tensor.set(i, std::normal_distribution<double>()(random) * 1e-3);
    const TensorView whole = tensor.view();
    for (std::size_t count = 0; count <= 4097; count += step) {
      const std::int64_t sizes[] = {static_cast<std::int64_t>(count)};
      const TensorView view{whole.data, dtype, sizes, whole.strides};
      ASSERT_TRUE(device_agrees(view, StatsLevel::kHistogram)) << dtype_name(dtype) << " of " << count;
      if (count % 97 == 0) {
        for (const StatsLevel level : kDeviceLevels) {
          ASSERT_TRUE(device_agrees(view, level)) << dtype_name(dtype) << " of " << count << " level " << int(level);
        }
      }
    }
  }
}

TEST(DeviceStats, gives_the_same_bits_at_every_alignment) {
  for (const DType dtype : kFloats) {
    for (const std::size_t count : {1u, 7u, 100u, 5000u, 40000u}) {
      TensorStats aligned;
      for (std::size_t misalignment = 0; misalignment < 18; ++misalignment) {
        OwnedTensor tensor(dtype, count, misalignment);  // its end is the end of its memory
        std::mt19937_64 random(5);
        for (std::size_t i = 0; i < count; ++i) tensor.set(i, std::normal_distribution<double>()(random));
        if (count > 3) tensor.set(count - 2, INFINITY);
        const TensorStats got = emulated_stats(tensor.view(), StatsLevel::kHistogram);
        if (misalignment == 0) aligned = got;
        ASSERT_TRUE(got == aligned) << dtype_name(dtype) << " of " << count << " at " << misalignment;
      }
    }
  }
}

struct Recipe {
  std::string name;
  std::function<double(std::mt19937_64&)> value;
};
std::vector<Recipe> recipes() {
  const auto normal = [](std::mt19937_64& random) { return std::normal_distribution<double>()(random); };
  return {
      {"normal", normal},
      {"with non-finite values",
       [=](std::mt19937_64& random) {
         const std::uint64_t die = random() % 50;
         return die == 0 ? NAN : die == 1 ? INFINITY : die == 2 ? -INFINITY : normal(random);
       }},
      {"nothing finite", [](std::mt19937_64& random) { return random() % 2 == 0 ? NAN : INFINITY; }},
      {"negative infinities only", [](std::mt19937_64&) { return -INFINITY; }},
      {"tiny", [=](std::mt19937_64& random) { return normal(random) * 1e-6; }},
      {"half zeros", [=](std::mt19937_64& random) { return random() % 2 == 0 ? 0.0 : normal(random); }},
      {"negative and NaN",
       [=](std::mt19937_64& random) { return random() % 9 == 0 ? NAN : -std::abs(normal(random)); }},
      {"negative zeros", [](std::mt19937_64&) { return -0.0; }},
      {"negative zeros and subnormals",
       [=](std::mt19937_64& random) { return random() % 3 == 0 ? -0.0 : std::abs(normal(random)) * 1e-7; }},
      {"80 binades",
       [=](std::mt19937_64& random) { return normal(random) * std::exp2(static_cast<double>(random() % 80) - 40); }},
      {"around the largest numbers",
       [=](std::mt19937_64& random) { return normal(random) * std::exp2(static_cast<double>(random() % 1030)); }},
  };
}

TEST(DeviceStats, agrees_on_ordinary_and_adversarial_data) {
  std::mt19937_64 random(1);
  for (const DType dtype : kFloats) {
    for (const std::size_t count : {13u, 1000u, 33001u, 150000u}) {
      for (const Recipe& recipe : recipes()) {
        OwnedTensor tensor(dtype, count);
        for (std::size_t i = 0; i < count; ++i) tensor.set(i, recipe.value(random));
        for (const StatsLevel level : kDeviceLevels) {
          ASSERT_TRUE(device_agrees(tensor.view(), level))
              << dtype_name(dtype) << " " << recipe.name << " of " << count << " level " << int(level);
        }
      }
      OwnedTensor bits(dtype, count);
      for (std::size_t i = 0; i < count; ++i) bits.set_code(i, random());
      ASSERT_TRUE(device_agrees(bits.view(), StatsLevel::kHistogram)) << dtype_name(dtype) << " random bits";
    }
  }
}

TEST(DeviceStats, sums_of_fp64_beyond_its_range_are_what_the_whole_is) {
  const double big = 1.5e308;
  for (const std::vector<double>& values :
       {std::vector<double>{big, big, -big, -big, 1.0}, {big, big}, {-big, -big, -big}, {big, -big, big}}) {
    OwnedTensor tensor(DType::kF64, values.size());
    for (std::size_t i = 0; i < values.size(); ++i) tensor.set(i, values[i]);
    const TensorStats got = emulated_stats(tensor.view(), StatsLevel::kSums);
    const TensorStats want = compute_stats(tensor.view(), StatsLevel::kSums);
    EXPECT_FALSE(std::isnan(got.sum));
    EXPECT_TRUE(got.sum == want.sum || std::abs(got.sum / big - want.sum / big) < 1e-12)
        << got.sum << " / " << want.sum << " of " << testing::PrintToString(values);
    EXPECT_EQ(got.sum_sq, INFINITY);
  }
}

TEST(DeviceStats, squares_of_tiny_and_huge_numbers_are_not_lost) {
  for (const double x : {1e-30, 1e30}) {  // their squares are outside fp32
    OwnedTensor tensor(DType::kBF16, std::size_t{1000});
    for (std::size_t i = 0; i < 1000; ++i) tensor.set(i, x);
    const TensorStats s = emulated_stats(tensor.view(), StatsLevel::kSums);
    const double stored = tensor.get(0);
    EXPECT_NEAR(s.sum_sq / (1000 * stored * stored), 1, 1e-14);
  }
}

TEST(DeviceStats, integers_and_bools_count_as_on_the_cpu) {
  std::mt19937_64 random(8);
  for (const DType dtype : {DType::kI64, DType::kI32, DType::kU8, DType::kBool}) {
    for (const std::size_t count : {0u, 1u, 3u, 17u, 1000u, 70001u}) {
      for (const int kind : {0, 1, 2, 3}) {
        OwnedTensor tensor(dtype, count, count % 3);
        for (std::size_t i = 0; i < count; ++i) {
          const std::uint64_t bits = random();
          const std::uint64_t lowest = dtype == DType::kI64 ? 1ull << 63 : 1ull << 31;
          tensor.set_code(i, kind == 0 ? bits : kind == 1 ? bits % 3 : kind == 2 ? lowest : 0);
        }
        for (const StatsLevel level : kDeviceLevels) {
          ASSERT_TRUE(device_agrees(tensor.view(), level))
              << dtype_name(dtype) << " kind " << kind << " of " << count << " level " << int(level);
        }
      }
    }
  }
}

}  // namespace
}  // namespace nanhunt
