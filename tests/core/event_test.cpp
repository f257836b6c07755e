// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/event.h"

#include <set>

#include "src/core/version.h"

namespace nanhunt {
namespace {

TEST(Event, every_phase_has_a_name_that_parses_back) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(Phase::kUpdate); ++i) {
    const auto phase = static_cast<Phase>(i);
    EXPECT_EQ(parse_phase(phase_name(phase)), phase);
    names.insert(phase_name(phase));
  }
  EXPECT_EQ(names.size(), 10u);
  EXPECT_EQ(phase_name(Phase::kBackward), "backward");
  EXPECT_EQ(parse_phase("Backward"), std::nullopt);
}

TEST(Event, codes_from_a_damaged_trace_have_a_name_too) {
  EXPECT_EQ(phase_name(static_cast<Phase>(200)), "unknown");
  EXPECT_EQ(tensor_role_name(static_cast<TensorRole>(200)), "unknown");
  EXPECT_EQ(parse_phase("unknown"), std::nullopt);
}

TEST(Event, marks_are_named_and_the_first_five_are_sinks) {
  EXPECT_EQ(tensor_role_name(TensorRole::kLoss), "loss");
  EXPECT_EQ(tensor_role_name(TensorRole::kBoundaryGradient), "boundary_gradient");
  EXPECT_EQ(tensor_role_name(TensorRole::kLabel), "label");
  for (int i = 0; i <= static_cast<int>(TensorRole::kLabel); ++i) EXPECT_EQ(is_sink(static_cast<TensorRole>(i)), i < 5);
}

TEST(Version, is_the_projects) { EXPECT_EQ(version(), NANHUNT_VERSION); }

}  // namespace
}  // namespace nanhunt
