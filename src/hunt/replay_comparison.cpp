// SPDX-License-Identifier: Apache-2.0
#include "src/hunt/replay_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

namespace nanhunt::hunt {
namespace {

std::string name_of(const StepFact& fact) {
  if (fact.kind == TensorRole::kLoss) return fact.path;
  if (fact.kind == TensorRole::kBoundaryGradient) return fmt::format("the gradient of {}", fact.path);
  return fmt::format("{} {}", tensor_role_name(fact.kind), fact.path);
}

std::string_view state_of(bool finite) { return finite ? "finite" : "not finite"; }

// "loss and 4 gradients".
std::string compared(const std::vector<StepFact>& facts) {
  std::map<TensorRole, std::size_t> counts;
  for (const StepFact& fact : facts) ++counts[fact.kind];
  std::string text;
  std::size_t left = counts.size();
  for (const auto& [kind, count] : counts) {
    --left;
    if (!text.empty()) text += left == 0 ? " and " : ", ";
    switch (kind) {
      case TensorRole::kLoss: text += count == 1 ? "the loss" : fmt::format("{} losses", count); break;
      case TensorRole::kBoundaryGradient:
        text += fmt::format("{} gradient{} at the optimizer boundary", count, count == 1 ? "" : "s");
        break;
      case TensorRole::kParameter: text += fmt::format("{} parameter{}", count, count == 1 ? "" : "s"); break;
      case TensorRole::kState: text += fmt::format("{} tensor{} of optimizer state", count, count == 1 ? "" : "s"); break;
      default: text += fmt::format("{} {}{}", count, tensor_role_name(kind), count == 1 ? "" : "s"); break;
    }
  }
  return text.empty() ? "nothing" : text;
}

bool is_bad(const StepFact& fact) { return !fact.finite; }

}  // namespace

ReplayComparison compare_replay(const std::vector<StepFact>& original, const std::vector<StepFact>& replay,
                                std::string_view what) {
  std::map<std::pair<TensorRole, std::string_view>, const StepFact*> replayed;
  for (const StepFact& fact : replay) replayed[{fact.kind, fact.path}] = &fact;
  std::size_t different = 0;
  std::string first;
  for (const StepFact& fact : original) {
    const auto found = replayed.find({fact.kind, fact.path});
    const bool missing = found == replayed.end();
    if (!missing && found->second->finite == fact.finite && found->second->checksum == fact.checksum) continue;
    if (++different > 1) continue;
    if (missing) {
      first = fmt::format("{} did not come about", name_of(fact));
    } else if (found->second->finite == fact.finite) {
      first = fmt::format("{} is {} in both, with other {}", name_of(fact), state_of(fact.finite), what);
    } else {
      first = fmt::format("{} was {} and is {} in the replay", name_of(fact), state_of(fact.finite),
                          state_of(found->second->finite));
    }
  }
  ReplayComparison out;
  if (different == 0) {
    out.text = fmt::format("The replay gave the same {} as the step: {}.", what, compared(original));
    return out;
  }
  const bool was_bad = std::any_of(original.begin(), original.end(), is_bad);
  const bool is_bad_again = std::any_of(replay.begin(), replay.end(), is_bad);
  out.result = was_bad && !is_bad_again ? ReplayResult::kClean : ReplayResult::kDiffers;
  out.text = fmt::format("Compared: {}. {} differ{}; {}.", compared(original), different, different == 1 ? "s" : "",
                         first);
  if (out.result == ReplayResult::kClean) out.text += " Nothing became bad in the replay.";
  return out;
}

}  // namespace nanhunt::hunt
