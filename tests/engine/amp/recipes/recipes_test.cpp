// SPDX-License-Identifier: Apache-2.0
// What holds of every recipe: it learns as much as fp32, and is the same observed and not.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/engine/amp/recipes/recipe_run.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine::testing {
namespace {

class EveryRecipe : public ::testing::TestWithParam<std::size_t> {
 protected:
  std::unique_ptr<Trainer> train() const {
    return train_on_digits(named_recipes()[GetParam()].apply(fp32_setup()));
  }
};
INSTANTIATE_TEST_SUITE_P(Recipes, EveryRecipe, ::testing::Range(std::size_t{0}, named_recipes().size()),
                         [](const auto& given) {
                           std::string name(named_recipes()[given.param].name);
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

// Mean loss of the last 40 of 200 steps, which are 4 epochs and a half.
double final_loss(Trainer& trainer) {
  double loss = 0;
  std::uint32_t taken = 0;
  for (int i = 0; i < 200; ++i) {
    const StepResult result = trainer.step();
    taken += result.skipped ? 0 : 1;
    if (i >= 160) loss += result.loss / 40;
  }
  EXPECT_GE(taken, 180U);
  return loss;
}

TEST_P(EveryRecipe, learns_the_digits_as_far_as_fp32) {
  // It starts at 2.3 and ends between 0.024 and 0.033.
  EXPECT_NEAR(final_loss(*train()), final_loss(*train_on_digits(fp32_setup())), 0.02);
}

TEST_P(EveryRecipe, changes_nothing_when_it_is_observed) {
  const auto plain = train(), watched = train();
  EventLog log;
  {
    const HookHandle handle = add_observer(log);
    for (int i = 0; i < 20; ++i) watched->step();
  }
  for (int i = 0; i < 20; ++i) plain->step();
  EXPECT_FALSE(log.lines.empty());
  EXPECT_EQ(bytes_of(*plain), bytes_of(*watched));
  ASSERT_EQ(plain->scaler() == nullptr, watched->scaler() == nullptr);
  if (plain->scaler() != nullptr) {
    EXPECT_EQ(plain->scaler()->saved(), watched->scaler()->saved());
  }
}

TEST_P(EveryRecipe, goes_on_from_a_snapshot_with_the_same_bits) {
  const auto first = train(), second = train();
  for (int i = 0; i < 4; ++i) first->step();
  second->restore(*first->snapshot());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(first->step().loss, second->step().loss);
  EXPECT_EQ(bytes_of(*first), bytes_of(*second));
}

TEST(Recipes, have_names_of_their_own) {
  std::set<std::string_view> names;
  for (const NamedRecipe& recipe : named_recipes()) {
    EXPECT_TRUE(names.insert(recipe.name).second) << recipe.name;
    EXPECT_FALSE(recipe.summary.empty());
  }
}

TEST(Recipes, are_found_by_their_name_and_as_their_library_says_it) {
  for (const NamedRecipe& recipe : named_recipes()) EXPECT_EQ(find_recipe(recipe.name), &recipe);
  const std::pair<const char*, const char*> kSaid[] = {
      {"fp16", "torch-amp-fp16"}, {"O2", "apex-o2"}, {"16-true", "lightning-16-true"}};
  for (const auto& [said, name] : kSaid) {
    const NamedRecipe* found = find_recipe(said);
    ASSERT_NE(found, nullptr) << said;
    EXPECT_EQ(found->name, name);
  }
  for (const char* unknown : {"", "O4", "fp8", "apex"}) EXPECT_EQ(find_recipe(unknown), nullptr) << unknown;
}

}  // namespace
}  // namespace nanhunt::engine::testing
