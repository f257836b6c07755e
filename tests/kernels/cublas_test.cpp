// SPDX-License-Identifier: Apache-2.0
// How cuBLAS is found and asked, with a library that is not it: column-major products in plain loops on the host.
#include "kernels/cublas.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <stdexcept>
#include <vector>

namespace nanhunt::kernels {
namespace {

using ::testing::HasSubstr;

class Cublas : public ::testing::Test {
 protected:
  void TearDown() override { unsetenv("NANHUNT_CUBLAS"); }
};

TEST_F(Cublas, that_is_named_and_not_there_is_said_with_its_name) {
  setenv("NANHUNT_CUBLAS", "/nowhere/libcublas.so.13", 1);
  CublasFunctions found;
  std::string why;
  EXPECT_FALSE(find_cublas(found, why));
  EXPECT_THAT(why, HasSubstr("NANHUNT_CUBLAS names /nowhere/libcublas.so.13, which cannot be used: "));
}

TEST_F(Cublas, that_lacks_a_function_is_refused_by_its_name) {
  setenv("NANHUNT_CUBLAS", "libm.so.6", 1);
  CublasFunctions found;
  std::string why;
  EXPECT_FALSE(find_cublas(found, why));
  EXPECT_THAT(why, HasSubstr("libm.so.6 has no cublasCreate_v2"));
}

TEST_F(Cublas, that_is_nowhere_is_said_with_what_to_do) {
  CublasFunctions found;
  std::string why;
  if (find_cublas(found, why)) GTEST_SKIP() << "this machine has " << found.file;
  EXPECT_THAT(why, HasSubstr("cuBLAS was not found (libcublas.so.13 or libcublas.so.12). Install it"));
  EXPECT_THAT(why, HasSubstr("NANHUNT_CUBLAS"));
}

TEST_F(Cublas, rounds_less_than_it_could_unless_more_is_asked_for) {
  EXPECT_EQ(cublas_math_mode({}), cublas::kNoReducedSums);
  EXPECT_EQ(cublas_math_mode({.tf32 = true}), cublas::kTf32Math | cublas::kNoReducedSums);
  EXPECT_EQ(cublas_math_mode({.reduced_sums = true}), cublas::kDefaultMath);
  EXPECT_EQ(cublas_math_mode({.tf32 = true, .reduced_sums = true}), cublas::kTf32Math);
}

TEST_F(Cublas, says_what_its_products_may_do_and_who_forced_it) {
  unsetenv("NVIDIA_TF32_OVERRIDE");
  EXPECT_EQ(describe_product_math({}), "TF32 off, reduced-precision reduction off");
  EXPECT_EQ(describe_product_math({.tf32 = true, .reduced_sums = true}), "TF32 on, reduced-precision reduction on");
  setenv("NVIDIA_TF32_OVERRIDE", "1", 1);
  EXPECT_EQ(describe_product_math({}), "TF32 forced by NVIDIA_TF32_OVERRIDE, reduced-precision reduction off");
  setenv("NVIDIA_TF32_OVERRIDE", "0", 1);
  EXPECT_EQ(describe_product_math({.tf32 = true}),
            "TF32 kept off by NVIDIA_TF32_OVERRIDE, reduced-precision reduction off");
  unsetenv("NVIDIA_TF32_OVERRIDE");
}

TEST_F(Cublas, is_asked_for_the_products_that_are_meant) {
  setenv("NANHUNT_CUBLAS", NANHUNT_FAKE_CUBLAS, 1);
  CublasFunctions cublas;
  std::string why;
  ASSERT_TRUE(find_cublas(cublas, why)) << why;
  EXPECT_EQ(cublas.file, NANHUNT_FAKE_CUBLAS);
  for (const bool left : {false, true}) {
    for (const bool right : {false, true}) {
      for (const std::int64_t batch : {1, 3}) {
        for (const double beta : {0.0, 1.0}) {
          // Rows with gaps between them, and a gap between those of the batch.
          const std::int64_t m = 3, n = 4, k = 2, gap = 2;
          const auto make = [&](std::int64_t rows, std::int64_t columns, bool transposed, std::vector<float>& values) {
            const std::int64_t stored = transposed ? columns : rows, lead = (transposed ? rows : columns) + gap;
            MatrixOperand operand;
            operand.lead = lead;
            operand.step = stored * lead + 1;
            operand.transposed = transposed;
            for (std::int64_t i = 0; i < batch * operand.step; ++i) values.push_back(static_cast<float>(i % 11) - 4);
            return operand;
          };
          std::vector<float> a, b, c(static_cast<std::size_t>(batch * m * n)), expected;
          ProductCall call;
          call.m = m;
          call.n = n;
          call.k = k;
          call.batch = batch;
          call.beta = beta;
          call.a = make(m, k, left, a);
          call.b = make(k, n, right, b);
          call.a.data = a.data();
          call.b.data = b.data();
          for (std::size_t i = 0; i < c.size(); ++i) c[i] = static_cast<float>(i % 5);
          const auto at = [](const MatrixOperand& o, std::int64_t i, std::int64_t row, std::int64_t column) {
            const std::int64_t index = o.transposed ? column * o.lead + row : row * o.lead + column;
            return static_cast<const float*>(o.data)[i * o.step + index];
          };
          for (std::int64_t i = 0; i < batch; ++i) {
            for (std::int64_t row = 0; row < m; ++row) {
              for (std::int64_t column = 0; column < n; ++column) {
                float sum = beta != 0 ? c[static_cast<std::size_t>((i * m + row) * n + column)] : 0;
                for (std::int64_t inner = 0; inner < k; ++inner)
                  sum += at(call.a, i, row, inner) * at(call.b, i, inner, column);
                expected.push_back(sum);
              }
            }
          }
          call.c = c.data();
          cublas_multiply(cublas, nullptr, call);
          EXPECT_EQ(c, expected) << left << right << batch << beta;
        }
      }
    }
  }
}

TEST_F(Cublas, is_asked_for_a_wide_result_of_narrow_operands) {
  setenv("NANHUNT_CUBLAS", NANHUNT_FAKE_CUBLAS, 1);
  CublasFunctions cublas;
  std::string why;
  ASSERT_TRUE(find_cublas(cublas, why)) << why;
  const std::uint16_t a[] = {0x3f80, 0x4000}, b[] = {0x4040, 0x3c00};  // bf16: 1, 2 and 3, 2^-7
  float c = 8;
  ProductCall call;
  call.dtype = DType::kBF16;
  call.m = call.n = 1;
  call.k = call.a.lead = 2;
  call.a.data = a;
  call.b.data = b;
  call.beta = 1;
  call.c = &c;
  EXPECT_EQ(call.result(), DType::kBF16);
  call.wide_result = true;
  EXPECT_EQ(call.result(), DType::kF32);
  cublas_multiply(cublas, nullptr, call);
  EXPECT_EQ(c, 11 + 0x1p-6f);
  call.dtype = DType::kF64;
  EXPECT_EQ(call.result(), DType::kF64);
}

TEST_F(Cublas, that_fails_is_named_with_the_product) {
  setenv("NANHUNT_CUBLAS", NANHUNT_FAKE_CUBLAS, 1);
  CublasFunctions cublas;
  std::string why;
  ASSERT_TRUE(find_cublas(cublas, why)) << why;
  ProductCall call;
  call.m = call.n = call.k = 2;
  call.dtype = DType::kF16;  // the stand-in has fp32 alone
  try {
    cublas_multiply(cublas, nullptr, call);
    ADD_FAILURE() << "it did not fail";
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "cublas: a product of 2 x 2 and 2 x 2 in fp16 failed: CUBLAS_STATUS_NOT_SUPPORTED");
  }
  call.dtype = DType::kF32;
  call.k = std::int64_t{1} << 31;
  EXPECT_THROW(cublas_multiply(cublas, nullptr, call), std::runtime_error);
}

}  // namespace
}  // namespace nanhunt::kernels
