// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <stdexcept>

#include "nanhunt/engine/data.h"

namespace nanhunt::engine {
namespace {

TEST(Digits, have_the_published_class_counts_and_known_first_and_last_rows) {
  // given the class distribution of the data set's own description
  const std::array<int, 10> published = {178, 182, 177, 183, 181, 182, 181, 179, 174, 180};
  std::array<int, 10> counts{};
  for (std::int64_t id = 0; id < kDigitsCount; ++id) ++counts[static_cast<std::size_t>(digit_label(id))];
  EXPECT_EQ(counts, published);
  // and two images read by eye from the file
  EXPECT_EQ(digit_label(0), 0);
  const auto first = digit_pixels(0).first(8);
  EXPECT_EQ(std::vector<int>(first.begin(), first.end()), (std::vector<int>{0, 0, 5, 13, 9, 1, 0, 0}));
  EXPECT_EQ(digit_label(1796), 8);
  const auto last = digit_pixels(1796).last(8);
  EXPECT_EQ(std::vector<int>(last.begin(), last.end()), (std::vector<int>{0, 1, 8, 12, 14, 12, 1, 0}));
}

TEST(Digits, refuse_ids_they_do_not_have) {
  EXPECT_THROW(digit_label(-1), std::invalid_argument);
  EXPECT_THROW(digit_label(1797), std::invalid_argument);
  EXPECT_THROW(digit_pixels(1797), std::invalid_argument);
}

TEST(DigitsSplit, holds_every_sample_once_and_never_changes) {
  const auto train = digits_train_ids(), test = digits_test_ids();
  EXPECT_EQ(train.size(), 1437u);
  EXPECT_EQ(test.size(), 360u);
  std::set<std::int64_t> ids(train.begin(), train.end());
  ids.insert(test.begin(), test.end());
  EXPECT_EQ(ids.size(), 1797u);
  // the first ids as stated in src/engine/data/README.md
  EXPECT_EQ(std::vector(train.begin(), train.begin() + 4), (std::vector<std::int64_t>{408, 459, 569, 1117}));
  EXPECT_EQ(std::vector(test.begin(), test.begin() + 4), (std::vector<std::int64_t>{122, 446, 393, 1356}));
}

TEST(DigitsBatch, has_pixels_in_0_to_1_labels_and_ids_row_by_row) {
  const std::vector<std::int64_t> ids = {5, 0, 1796};
  const Batch batch = make_digits_batch(ids, DType::kF16);
  EXPECT_EQ(batch.inputs.sizes(), (Shape{3, 64}));
  EXPECT_EQ(batch.inputs.dtype(), DType::kF16);
  EXPECT_EQ(batch.targets.dtype(), DType::kI64);
  EXPECT_EQ(batch.sample_ids, ids);
  for (std::size_t row = 0; row < ids.size(); ++row) {
    EXPECT_EQ(batch.targets.at(static_cast<std::int64_t>(row)), static_cast<double>(digit_label(ids[row])));
    for (std::size_t p = 0; p < 64; ++p) {
      const auto at = static_cast<std::int64_t>(row * 64 + p);
      EXPECT_EQ(batch.inputs.at(at), digit_pixels(ids[row])[p] / 16.0);  // sixteenths are exact in fp16
    }
  }
  EXPECT_EQ(make_digits_batch({}, DType::kF32).inputs.sizes(), (Shape{0, 64}));
}

TEST(BatchOrder, shows_each_sample_once_an_epoch_and_another_order_in_the_next) {
  // given 10 samples in batches of 3: 3 steps an epoch, one sample left out
  std::vector<std::int64_t> samples = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19};
  const BatchOrder order(samples, 3, /*seed=*/4);
  ASSERT_EQ(order.steps_per_epoch(), 3u);
  // when two epochs are drawn
  std::vector<std::vector<std::int64_t>> epochs(2);
  for (std::uint32_t step = 0; step < 6; ++step) {
    for (std::int64_t id : order.ids(step)) epochs[step / 3].push_back(id);
  }
  // then no sample comes twice, and the orders differ
  for (const auto& epoch : epochs) EXPECT_EQ(std::set(epoch.begin(), epoch.end()).size(), 9u);
  EXPECT_NE(epochs[0], epochs[1]);
  // and a step asked for again, or alone, is the same
  EXPECT_EQ(order.ids(4), BatchOrder(samples, 3, 4).ids(4));
  EXPECT_NE(order.ids(4), BatchOrder(samples, 3, 5).ids(4));
  EXPECT_EQ(order.ids(4'000'000'000u).size(), 3u);
}

TEST(BatchOrder, refuses_batches_larger_than_the_data) {
  EXPECT_THROW(BatchOrder({1, 2}, 3, 0), std::invalid_argument);
  EXPECT_THROW(BatchOrder({1, 2}, 0, 0), std::invalid_argument);
  EXPECT_THROW(BatchOrder({1, 2}, -1, 0), std::invalid_argument);
}

}  // namespace
}  // namespace nanhunt::engine
