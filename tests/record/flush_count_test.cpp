// SPDX-License-Identifier: Apache-2.0
#include "src/record/measure/flush_count.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "tests/record/support.h"

namespace nanhunt::record {
namespace {

using testing::TestTensor;

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Given {
  const TestTensor& tensor;
  ArgRole role = ArgRole::kRead;
  bool known = false;  // its statistics are
};

// Counts with element reads only where `known` says nothing.
std::int64_t flushed(std::string_view op, std::vector<Given> inputs, const TestTensor& output,
                     std::vector<OpScalar> scalars = {}) {
  std::vector<OpInput> ins;
  std::vector<TensorStats> stats;
  for (const Given& g : inputs) {
    ins.push_back({"x", g.tensor.value(), g.role});
    const TensorView view = g.tensor.tensor();
    stats.push_back(view.data != nullptr ? compute_stats(view, StatsLevel::kCounts) : TensorStats{});
  }
  std::vector<FlushInput> flush;
  for (std::size_t i = 0; i < ins.size(); ++i) {
    flush.push_back({&ins[i], inputs[i].known ? &stats[i] : nullptr, ins[i].value.storage});
  }
  return count_flushed(op_traits(op).flush, flush, scalars, output.tensor(),
                       compute_stats(output.tensor(), StatsLevel::kCounts));
}

TEST(FlushCount, a_product_of_non_zeros_that_is_stored_as_zero_is_lost) {
  for (bool known : {false, true}) {
    const TestTensor a(DType::kF16, {4}, {1e-5, 0, 1e-5, -1e-5}, 1), b(DType::kF16, {4}, {1e-5, 1e-5, 0, 1}, 2);
    const TestTensor out(DType::kF16, {4}, {0, 0, 0, -1e-5}, 3);
    EXPECT_EQ(flushed("mul", {{a, ArgRole::kRead, known}, {b, ArgRole::kRead, known}}, out), 1);
  }
}

TEST(FlushCount, no_zeros_in_the_output_means_nothing_lost_without_reading_anything) {
  const TestTensor a(DType::kF16, {2}, {1, 2}, 1), out(DType::kF16, {2}, {1, 4}, 3);
  EXPECT_EQ(flushed("mul", {{a.without_data()}, {a.without_data()}}, out), 0);
}

TEST(FlushCount, without_data_or_statistics_it_is_not_measured) {
  const TestTensor a(DType::kF16, {2}, {1, 2}, 1), out(DType::kF16, {2}, {0, 4}, 3);
  EXPECT_EQ(flushed("mul", {{a.without_data()}, {a}}, out), -1);
}

TEST(FlushCount, statistics_alone_settle_it_when_no_factor_has_zeros) {
  const TestTensor a(DType::kF16, {2}, {1e-5, 2}, 1), out(DType::kF16, {2}, {0, 4}, 3);
  EXPECT_EQ(flushed("mul", {{a, ArgRole::kRead, true}, {a, ArgRole::kRead, true}}, out), 1);
}

TEST(FlushCount, a_scalar_product_loses_what_was_not_zero_before) {
  const TestTensor a(DType::kF16, {3}, {0, 6e-8, 1}, 1), out(DType::kF16, {3}, {0, 0, 0.25}, 3);
  for (bool known : {false, true}) {
    EXPECT_EQ(flushed("mul", {{a, ArgRole::kRead, known}}, out, {{"other", 0.25}}), 1);
  }
  EXPECT_EQ(flushed("mul", {{a}}, TestTensor(DType::kF16, {3}, {0, 0, 0}, 3), {{"other", 0}}), 0);
}

TEST(FlushCount, an_in_place_scalar_product_needs_the_old_statistics) {
  const TestTensor old(DType::kF16, {3}, {0, 6e-8, 1}, 1), out(DType::kF16, {3}, {0, 0, 0.25}, 1, 1);
  EXPECT_EQ(flushed("mul_", {{old, ArgRole::kOverwritten, true}}, out, {{"other", 0.25}}), 1);
  EXPECT_EQ(flushed("mul_", {{old.without_data(), ArgRole::kOverwritten, false}}, out, {{"other", 0.25}}), -1);
}

TEST(FlushCount, a_quotient_by_infinity_is_exactly_zero) {
  const TestTensor n(DType::kF16, {3}, {1, 1e-5, 0}, 1), d(DType::kF16, {3}, {kInf, 60000, 5}, 2);
  const TestTensor out(DType::kF16, {3}, {0, 0, 0}, 3);
  for (bool known : {false, true}) {
    EXPECT_EQ(flushed("div", {{n, ArgRole::kRead, known}, {d, ArgRole::kRead, known}}, out), 1);
  }
  EXPECT_EQ(flushed("div", {{n}}, out, {{"other", kInf}}), 0);
  EXPECT_EQ(flushed("div", {{n}}, out, {{"other", 1e9}}), 2);
}

TEST(FlushCount, powers_lose_small_bases_or_large_ones) {
  const TestTensor small(DType::kF16, {3}, {1e-5, 0, 1}, 1), out(DType::kF16, {3}, {0, 0, 1}, 2);
  EXPECT_EQ(flushed("pow", {{small}}, out, {{"exponent", 2}}), 1);
  const TestTensor large(DType::kF16, {3}, {60000, kInf, 1}, 3);
  EXPECT_EQ(flushed("pow", {{large}}, out, {{"exponent", -2}}), 1);
}

TEST(FlushCount, a_cast_loses_what_the_narrow_format_cannot_hold) {
  const TestTensor wide(DType::kF32, {4}, {1e-9, 0, 1, -1e-9}, 1), narrow(DType::kF16, {4}, {0, 0, 1, -0.0}, 2);
  for (bool known : {false, true}) {
    EXPECT_EQ(flushed("_to_copy", {{wide, ArgRole::kRead, known}}, narrow), 2);
    EXPECT_EQ(flushed("copy_", {{narrow, ArgRole::kOverwritten, known}, {wide, ArgRole::kRead, known}}, narrow), 2);
  }
}

TEST(FlushCount, a_second_moment_loses_squares_where_it_stays_zero) {
  const TestTensor g(DType::kF16, {3}, {5.4e-3, 0, 1}, 1), v(DType::kF16, {3}, {0, 0, 1e-3}, 2, 1);
  const TestTensor old(DType::kF16, {3}, {0, 0, 0}, 2), negative(DType::kF16, {3}, {-1, 0, 0}, 2);
  const auto count = [&](const TestTensor& before, const TestTensor& other, double value) {
    return flushed("addcmul_", {{before, ArgRole::kOverwritten, true}, {g}, {other}}, v, {{"value", value}});
  };
  EXPECT_EQ(count(old, g, 1e-3), 1);
  EXPECT_EQ(count(negative, g, 1e-3), -1);  // a zero may be a sum that cancels
  EXPECT_EQ(count(old, v, 1e-3), -1);       // not a square
  EXPECT_EQ(count(old, g, -1e-3), -1);
}

TEST(FlushCount, broadcast_and_strided_operands_are_read_where_they_meet) {
  // given rows (1e-5, 0) and columns (1e-5, 1, 0): out[i][j] = row[i] * column[j]
  const TestTensor row(DType::kF16, {2, 1}, {1e-5, 0}, 1), column(DType::kF16, {3}, {1e-5, 1, 0}, 2);
  const TestTensor out(DType::kF16, {2, 3}, {0, 1e-5, 0, 0, 0, 0}, 3);
  EXPECT_EQ(flushed("mul", {{row}, {column}}, out), 1);
  // The same output laid out by columns.
  const TestTensor by_columns = TestTensor(DType::kF16, {3, 2}, {0, 0, 1e-5, 0, 0, 0}, 4).t();
  EXPECT_EQ(flushed("mul", {{row}, {column}}, by_columns), 1);
  // A scalar operand.
  const TestTensor scalar(DType::kF32, {}, {1e-30}, 5);
  EXPECT_EQ(flushed("mul", {{scalar}, {column}}, TestTensor(DType::kF16, {3}, {0, 0, 0}, 6)), 2);
}

TEST(FlushCount, long_rows_are_counted_in_full) {
  const std::int64_t n = 5000;
  const TestTensor a(DType::kF32, {n}, std::vector<double>(n, 1e-30), 1);
  std::vector<double> factors(n, 1e-30);
  factors[n - 1] = 0;
  const TestTensor b(DType::kF32, {n}, factors, 2), out(DType::kF32, {n}, std::vector<double>(n, 0), 3);
  EXPECT_EQ(flushed("mul", {{a}, {b}}, out), n - 1);
}

TEST(FlushCount, other_ops_integers_and_shapes_that_do_not_meet_are_not_measured) {
  const TestTensor a(DType::kF16, {2}, {1, 2}, 1), zeros(DType::kF16, {2}, {0, 0}, 2);
  EXPECT_EQ(flushed("add", {{a}, {a}}, zeros), -1);
  EXPECT_EQ(flushed("exp", {{a}}, zeros), -1);
  EXPECT_EQ(flushed("mul_backward", {{a}, {a}}, zeros), -1);
  EXPECT_EQ(flushed("mul", {{a}, {a}}, TestTensor(DType::kI64, {2}, {0, 0}, 3)), -1);
  EXPECT_EQ(flushed("mul", {{a}, {a}}, TestTensor(DType::kF16, {3}, {0, 0, 0}, 3)), -1);
  EXPECT_EQ(flushed("mul", {{a}}, zeros), -1);
}

TEST(FlushCount, every_floating_format_is_read_by_its_bits) {
  for (DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kE4M3FN, DType::kE5M2}) {
    const double tiny = format_limits(dtype).min_subnormal;
    const TestTensor a(dtype, {4}, {tiny, -tiny, -0.0, 1}, 1), b(dtype, {4}, {tiny, tiny, tiny, 1}, 2);
    const TestTensor out(dtype, {4}, {0, -0.0, 0, 1}, 3);
    EXPECT_EQ(flushed("mul", {{a}, {b}}, out), 2) << dtype_name(dtype);
  }
}

}  // namespace
}  // namespace nanhunt::record
