// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "tests/engine/ops/op_cases.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::ElementsAre;

TEST(InPlace, each_op_bumps_the_version_once_and_writes_only_its_view) {
  for (OpCase& c : inplace_cases()) {
    // given: a window of a storage whose other elements are zero
    const Tensor before = c.inputs[0].clone();
    const std::uint32_t version = c.inputs[0].version();
    const auto& storage = c.inputs[0].storage();
    const std::vector<std::byte> bytes(storage->data(), storage->data() + storage->bytes());
    // when
    c.call(c.inputs);
    // then: with the window put back, every byte is what it was
    EXPECT_EQ(c.inputs[0].version(), version + 1) << c.label;
    EXPECT_NE(c.inputs[0].to_vector(), before.to_vector()) << c.label;
    c.inputs[0].copy_from(before);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), storage->data())) << c.label;
  }
}

TEST(InPlace, a_write_through_a_view_is_seen_by_all) {
  Tensor x = Tensor::zeros({2, 2}, DType::kF32);
  Tensor column = select(x, 1, 1);
  fill_(column, 5);
  EXPECT_THAT(x.to_vector(), ElementsAre(0, 5, 0, 5));
  EXPECT_EQ(x.version(), 1U);
}

TEST(InPlace, operands_broadcast_to_the_target_and_overlaps_read_first) {
  Tensor x = Tensor::from_values(std::vector<double>{1, 2, 3, 4}, {2, 2}, DType::kF32);
  add_(x, select(x, 0, 0));  // the row that is written is also the operand
  EXPECT_THAT(x.to_vector(), ElementsAre(2, 4, 4, 6));
  copy_(x, t(x));
  EXPECT_THAT(x.to_vector(), ElementsAre(2, 4, 4, 6));
  mul_(x, 0.5);
  Tensor y = Tensor::from_values(std::vector<double>{1, 2, 3, 4}, {2, 2}, DType::kF32);
  copy_(y, t(y));
  EXPECT_THAT(y.to_vector(), ElementsAre(1, 3, 2, 4));
}

TEST(InPlace, an_operand_one_place_behind_is_read_before_it_is_written) {
  // given: more than a chunk, so that writing would overtake reading
  Tensor x = Tensor::full({3000}, 1, DType::kF32);
  Tensor target = narrow(x, 0, 1, 2999);
  // when
  add_(target, narrow(x, 0, 0, 2999));
  // then
  EXPECT_EQ(sum(x).item(), 1 + 2 * 2999);
}

TEST(InPlace, a_wider_operand_is_used_as_it_is_and_the_result_rounded_to_the_target) {
  Tensor x = Tensor::full({1}, 2048, DType::kF16);
  add_(x, Tensor::full({1}, 1.5, DType::kF32));
  EXPECT_EQ(x.item(), 2050);  // 2049.5 to the nearest of 2048 and 2050
  copy_(x, Tensor::full({1}, 1e-8, DType::kF32));
  EXPECT_EQ(x.item(), 0);
}

TEST(InPlace, lerp_is_exact_at_both_ends) {
  Tensor x = Tensor::full({1}, 1e8, DType::kF32);
  const Tensor end = Tensor::full({1}, 1, DType::kF32);
  lerp_(x, end, 0);
  EXPECT_EQ(x.item(), 1e8);
  lerp_(x, end, 1);
  EXPECT_EQ(x.item(), 1);
}

TEST(InPlace, integers_and_masks_can_be_filled_and_copied) {
  Tensor labels = Tensor::zeros({2}, DType::kI64), mask = Tensor::zeros({2}, DType::kBool);
  fill_(labels, -100);
  EXPECT_THAT(labels.to_vector(), ElementsAre(-100, -100));
  copy_(mask, labels);
  EXPECT_THAT(mask.to_vector(), ElementsAre(1, 1));
}

TEST(InPlace, returns_its_target) {
  Tensor x = Tensor::zeros({1}, DType::kF32);
  EXPECT_EQ(&add_(mul_(fill_(x, 3), 2), 1), &x);
  EXPECT_EQ(x.item(), 7);
}

}  // namespace
}  // namespace nanhunt::engine::testing
