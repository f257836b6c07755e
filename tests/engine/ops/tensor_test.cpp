// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/tensor.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <set>
#include <thread>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/hooks.h"
#include "tests/support/grad_check.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const double kInf = std::numeric_limits<double>::infinity();

TEST(Tensor, from_values_rounds_once) {
  // 65520 - 2^-20 is below the halfway point, but fp32 would round it up to it.
  const Tensor x = Tensor::from_values(std::vector<double>{65520 - 0x1p-20, 65520, 1e-8, -kInf}, {4}, DType::kF16);
  EXPECT_THAT(x.to_vector(), ElementsAre(65504, kInf, 0, -kInf));
}

TEST(Tensor, memory_is_zeroed_and_aligned_whatever_the_size) {
  for (std::int64_t n : {0, 1, 7, 1025}) {
    const Tensor x = Tensor::zeros({n}, DType::kF32);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(x.storage()->data()) % 64, 0U);
    EXPECT_EQ(x.to_vector(), std::vector<double>(static_cast<std::size_t>(n), 0.0));
  }
}

TEST(Tensor, a_scalar_has_one_element_and_no_dimensions) {
  const Tensor x = Tensor::full({}, 2.5, DType::kBF16);
  EXPECT_EQ(x.dim(), 0);
  EXPECT_EQ(x.numel(), 1);
  EXPECT_EQ(x.item(), 2.5);
  EXPECT_TRUE(x.is_contiguous());
}

TEST(Tensor, strided_elements_read_in_logical_order) {
  const Tensor dense = spread_tensor({2, 3, 4}, -1, 1);
  const Tensor strided = strided_copy(dense);
  EXPECT_FALSE(strided.is_contiguous());
  EXPECT_EQ(strided.to_vector(), dense.to_vector());
  EXPECT_EQ(strided.at(7), dense.at(7));
  EXPECT_EQ(strided.clone().to_vector(), dense.to_vector());
  EXPECT_TRUE(strided.clone().is_contiguous());
}

TEST(Tensor, copies_of_the_same_dtype_keep_nan_bits) {
  Tensor x = Tensor::zeros({2}, DType::kF16);
  x.data<std::uint16_t>()[0] = 0xFE01;
  EXPECT_EQ(x.clone().data<std::uint16_t>()[0], 0xFE01);
}

TEST(Tensor, int64_copies_keep_every_bit) {
  const std::int64_t large = (std::int64_t{1} << 53) + 1;
  const Tensor x = Tensor::from_indices(std::vector<std::int64_t>{large, -large}, {2});
  EXPECT_EQ(x.clone().data<std::int64_t>()[0], large);
}

TEST(Tensor, copy_from_converts_and_bumps_the_version_of_all_views) {
  // given: a tensor and a view of it
  Tensor x = Tensor::zeros({4}, DType::kF16);
  const Tensor part = narrow(x, 0, 1, 2);
  // when
  x.copy_from(Tensor::from_values(std::vector<double>{1e-8, 1, 2, 1e9}, {4}, DType::kF64));
  // then
  EXPECT_THAT(x.to_vector(), ElementsAre(0, 1, 2, kInf));
  EXPECT_THAT(part.to_vector(), ElementsAre(1, 2));
  EXPECT_EQ(part.version(), 1U);
}

TEST(Tensor, copy_from_an_overlapping_view_reads_before_it_writes) {
  // given: 3000 elements, more than a chunk
  Tensor x = spread_tensor({3000}, -1, 1, DType::kF32);
  const std::vector<double> before = x.to_vector();
  // when: they move up by one place
  Tensor to = narrow(x, 0, 1, 2999);
  to.copy_from(narrow(x, 0, 0, 2999));
  // then
  const std::vector<double> after = x.to_vector();
  EXPECT_TRUE(std::equal(before.begin(), before.end() - 1, after.begin() + 1));
}

TEST(Tensor, detach_shares_the_storage_and_drops_the_history) {
  Tensor x = Tensor::full({2}, 1, DType::kF32).set_requires_grad(true);
  const Tensor y = add(x, 1.0).detach();
  EXPECT_FALSE(y.requires_grad());
  EXPECT_TRUE(y.is_leaf());
  EXPECT_EQ(x.detach().storage(), x.storage());
}

TEST(Tensor, storage_generations_are_never_shared_between_threads) {
  // given: two threads that allocate at the same time
  std::vector<std::uint64_t> seen[2];
  const auto allocate = [](std::vector<std::uint64_t>& out) {
    for (int i = 0; i < 500; ++i) out.push_back(Tensor::zeros({1}, DType::kF32).storage()->generation());
  };
  std::thread other([&] { allocate(seen[0]); });
  allocate(seen[1]);
  other.join();
  // then: all numbers differ, and none is 0 ("unknown")
  std::set<std::uint64_t> all(seen[0].begin(), seen[0].end());
  all.insert(seen[1].begin(), seen[1].end());
  EXPECT_EQ(all.size(), 1000U);
  EXPECT_EQ(all.count(0), 0U);
}

TEST(Tensor, misuse_says_what_was_expected_and_what_came) {
  const auto throws = [](auto f, const std::string& text) {
    EXPECT_THAT(f, ThrowsMessage<std::invalid_argument>(HasSubstr(text)));
  };
  const Tensor x = Tensor::zeros({2, 3}, DType::kF32);
  throws([] { Tensor::zeros({2, -1}, DType::kF32); }, "[tensor] expected sizes of 0 or more, got [2, -1]");
  throws(
      [] {
        Tensor::zeros({std::int64_t{1} << 40, std::int64_t{1} << 40}, DType::kF32);
      },
      "fewer than 2^63 elements");
  throws([] { Tensor::zeros({std::int64_t{1} << 62}, DType::kF64); }, "at most 2^40 bytes");
  throws([] { Tensor::zeros({std::int64_t{1} << 41}, DType::kU8); }, "at most 2^40 bytes");
  throws([] { Tensor::from_values(std::vector<double>{1, 2}, {3}, DType::kF32); }, "expected 3 values for [3], got 2");
  throws([] { Tensor::from_indices(std::vector<std::int64_t>{1}, {3}); }, "expected 3 values for [3], got 1");
  throws([&] { x.item(); }, "[item] expected a tensor of one element, got fp32 [2, 3]");
  throws([&] { x.at(6); }, "[at] expected an index below 6, got 6");
  throws([&] { x.at(-1); }, "[at] expected an index below 6, got -1");
  throws([&] { x.size(2); }, "[size] expected a dimension of [2, 3], got 2");
  throws([] { Tensor().numel(); }, "[tensor] expected a tensor, got an undefined tensor");
  throws([&] { x.clone().copy_from(Tensor::zeros({3}, DType::kF32)); }, "[copy_from] expected [2, 3], got fp32 [3]");
  throws([&] { x.clone().set_grad(Tensor::zeros({3}, DType::kF32)); }, "[set_grad] expected fp32 [2, 3], got fp32 [3]");
  throws([] { Tensor::zeros({1}, DType::kI64).set_requires_grad(true); }, "fp16, bf16, fp32 or fp64, got int64 [1]");
  throws(
      [] {
        Tensor y = add(Tensor::zeros({1}, DType::kF32).set_requires_grad(true), 1.0);
        y.set_requires_grad(false);
      },
      "[set_requires_grad] expected a leaf");
}

}  // namespace
}  // namespace nanhunt::engine::testing
