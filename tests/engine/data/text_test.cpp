// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <set>

#include "nanhunt/engine/data.h"

namespace nanhunt::engine {
namespace {

using ::testing::DoubleNear;

TEST(Text, is_the_file_that_the_readme_describes) {
  EXPECT_EQ(text_file().size(), static_cast<std::size_t>(kTextCharacters));
  EXPECT_THAT(text_unigram_entropy(), DoubleNear(3.2782, 1e-4));
}

TEST(Text, has_a_token_for_each_of_its_characters) {
  for (char letter : text_file()) {
    const std::int64_t token = text_token(letter);
    ASSERT_GE(token, 0);
    ASSERT_LT(token, kTextTokens);
  }
  EXPECT_EQ(text_token('\n'), 0);
  EXPECT_EQ(text_token(' '), 1);
  EXPECT_EQ(text_token('~'), 95);
  EXPECT_THROW(text_token('\t'), std::invalid_argument);
}

TEST(TextBatches, hold_windows_and_what_follows_each_character) {
  const std::vector<std::int64_t> starts = {0, 100};
  const Batch batch = make_text_batch(starts, 5);
  EXPECT_EQ(batch.inputs.sizes(), (Shape{2, 5}));
  EXPECT_EQ(batch.sample_ids, starts);
  for (std::int64_t row = 0; row < 2; ++row) {
    for (std::int64_t t = 0; t < 5; ++t) {
      const auto at = static_cast<std::size_t>(starts[static_cast<std::size_t>(row)] + t);
      EXPECT_EQ(batch.inputs.at(row * 5 + t), static_cast<double>(text_token(text_file()[at])));
      EXPECT_EQ(batch.targets.at(row * 5 + t), static_cast<double>(text_token(text_file()[at + 1])));
    }
  }
}

TEST(TextBatches, depend_on_the_step_alone_and_stay_in_the_training_part) {
  const BatchSource one = text_train_batches(8, 64, 3), other = text_train_batches(8, 64, 3);
  std::set<std::vector<std::int64_t>> seen;
  for (std::uint32_t step : {9U, 0U, 1U, 500U}) {
    const Batch batch = one(step);
    EXPECT_EQ(batch.sample_ids, other(step).sample_ids);
    EXPECT_TRUE(seen.insert(batch.sample_ids).second);
    for (std::int64_t start : batch.sample_ids) EXPECT_LT(start + 64, kTextTrain);
  }
  EXPECT_NE(text_train_batches(8, 64, 4)(0).sample_ids, one(0).sample_ids);
}

TEST(TextBatches, say_what_does_not_fit) {
  const std::vector<std::int64_t> last = {kTextCharacters - 4};
  EXPECT_THROW(make_text_batch(last, 4), std::invalid_argument);
  EXPECT_NO_THROW(make_text_batch(last, 3));
  EXPECT_THROW(text_train_batches(0, 4, 1), std::invalid_argument);
  EXPECT_THROW(text_train_batches(1, kTextTrain, 1), std::invalid_argument);
}

}  // namespace
}  // namespace nanhunt::engine
