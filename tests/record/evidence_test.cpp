// SPDX-License-Identifier: Apache-2.0
#include "src/record/measure/evidence.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "tests/record/support.h"

namespace nanhunt::record {
namespace {

using testing::TestTensor;

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

TEST(Evidence, the_first_of_each_kind_is_found_in_every_format) {
  for (DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kE5M2}) {
    const TestTensor t(dtype, {5}, {1, -kInf, kNan, kInf, kNan}, 1);
    EXPECT_EQ(find_first(t.tensor(), BadKind::kInf), 1) << dtype_name(dtype);
    EXPECT_EQ(find_first(t.tensor(), BadKind::kNan), 2) << dtype_name(dtype);
  }
  const TestTensor e4m3(DType::kE4M3FN, {3}, {448, -448, kNan}, 1);
  EXPECT_EQ(find_first(e4m3.tensor(), BadKind::kInf), -1);
  EXPECT_EQ(find_first(e4m3.tensor(), BadKind::kNan), 2);
}

TEST(Evidence, clean_empty_integer_and_absent_tensors_have_none) {
  for (BadKind kind : {BadKind::kInf, BadKind::kNan}) {
    EXPECT_EQ(find_first(TestTensor(DType::kF32, {2}, {1, 2}, 1).tensor(), kind), -1);
    EXPECT_EQ(find_first(TestTensor(DType::kF32, {0}, {}, 1).tensor(), kind), -1);
    EXPECT_EQ(find_first(TestTensor(DType::kI64, {1}, {-1}, 1).tensor(), kind), -1);
    EXPECT_EQ(find_first(TestTensor(DType::kF32, {1}, {kNan}, 1).without_data().tensor(), kind), -1);
  }
}

TEST(Evidence, order_is_row_major_whatever_the_strides) {
  const TestTensor t(DType::kF32, {2, 3}, {1, 1, kNan, kNan, 1, 1}, 1);
  EXPECT_EQ(find_first(t.tensor(), BadKind::kNan), 2);
  EXPECT_EQ(find_first(t.t().tensor(), BadKind::kNan), 1);
  EXPECT_EQ(element_at(t.t().tensor(), 0), 1);
  EXPECT_TRUE(std::isnan(element_at(t.t().tensor(), 1)));
}

TEST(Evidence, a_sixty_four_bit_scalar_is_an_element) {
  EXPECT_EQ(find_first(TestTensor(DType::kF64, {}, {kNan}, 1).tensor(), BadKind::kNan), 0);
}

class OperandsTest : public ::testing::Test {
 protected:
  const TestTensor matrix{DType::kF32, {2, 3}, {1, 2, 3, 4, 5, 6}, 1};
  const TestTensor row{DType::kF32, {3}, {10, 20, 30}, 2};
  const TestTensor scalar{DType::kF32, {}, {7}, 3};
  const TestTensor other{DType::kF32, {4}, {1, 1, 1, 1}, 4};
  std::vector<OpInput> inputs{{"self", matrix.value(), ArgRole::kRead},
                              {"row", row.value(), ArgRole::kRead},
                              {"scalar", scalar.value(), ArgRole::kRead},
                              {"other", other.value(), ArgRole::kRead},
                              {"mask", matrix.value(), ArgRole::kMask}};
  const std::vector<std::int64_t> sizes{2, 3};
};

TEST_F(OperandsTest, elementwise_ops_list_every_input_that_broadcasts) {
  const auto operands = operands_at(ElementMap::kElementwise, inputs, sizes, 4);
  ASSERT_EQ(operands.size(), 3u);
  EXPECT_EQ(operands[0].flat_index, 4);
  EXPECT_EQ(operands[0].number, 5);
  EXPECT_EQ(operands[1].flat_index, 1);
  EXPECT_EQ(operands[1].number, 20);
  EXPECT_EQ(operands[2].flat_index, 0);
  EXPECT_EQ(operands[2].number, 7);
}

TEST_F(OperandsTest, ops_that_mix_a_dimension_list_only_what_is_unambiguous) {
  const auto operands = operands_at(ElementMap::kSameShape, inputs, sizes, 4);
  ASSERT_EQ(operands.size(), 2u);
  EXPECT_EQ(operands[0].input, 0u);
  EXPECT_EQ(operands[1].input, 2u);
}

TEST_F(OperandsTest, matrix_products_list_nothing) {
  EXPECT_TRUE(operands_at(op_traits("addmm").elements, inputs, sizes, 4).empty());
  EXPECT_EQ(op_traits("sqrt_backward").elements, ElementMap::kElementwise);
  EXPECT_EQ(op_traits("aten::sqrt_backward").elements, ElementMap::kElementwise);
  EXPECT_EQ(op_traits("softmax").elements, ElementMap::kSameShape);
  EXPECT_EQ(op_traits("aten::_softmax").elements, ElementMap::kSameShape);
  EXPECT_EQ(op_traits("aten::_foreach_sqrt").elements, ElementMap::kElementwise);
  EXPECT_EQ(op_traits("_foreach_addcmul_").flush, FlushRule::kSquareAdd);
  EXPECT_EQ(op_traits("no_such_op").elements, ElementMap::kNone);
}

}  // namespace
}  // namespace nanhunt::record
