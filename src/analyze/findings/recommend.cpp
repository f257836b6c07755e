// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/findings/recommend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "src/analyze/findings/findings.h"
#include "src/analyze/wording/advice.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

constexpr double kLittleHeadroom = 1;     // binades: the largest number could double once
constexpr std::size_t kMaxHeadroomNotes = 3;

bool asks_for_a_change(const Finding& f) { return f.severity != Severity::kInfo; }

// A fix that was seen to work kept everything finite through these steps: it answers what was not finite in them, too.
bool seen_finite(const Analysis& analysis, const std::string& id, const Finding& f) {
  return std::any_of(analysis.experiments.begin(), analysis.experiments.end(), [&](const ExperimentRecord& e) {
    return e.fix == id && e.verified && f.severity == Severity::kFault && f.bad_elements > 0 &&
           began(f) <= std::uint64_t{e.step} + e.further_steps;
  });
}

const Advice* advice_of(const Finding& f, const std::string& id) {
  const auto it = std::find_if(f.advice.begin(), f.advice.end(), [&](const Advice& a) { return a.id == id; });
  return it == f.advice.end() ? nullptr : &*it;
}

struct Candidate {
  Advice advice;
  std::size_t order = 0;            // of its first mention
  std::set<std::size_t> answers;    // indices of findings
};

std::vector<Candidate> candidates(const Analysis& analysis) {
  std::vector<Candidate> out;
  for (const Finding& f : analysis.findings) {
    if (!asks_for_a_change(f)) continue;
    for (const Advice& advice : f.advice) {
      const bool known =
          std::any_of(out.begin(), out.end(), [&](const Candidate& c) { return c.advice.id == advice.id; });
      if (tried(advice) != Tried::kFailed && !known) out.push_back({advice, out.size(), {}});
    }
  }
  for (Candidate& candidate : out) {
    for (std::size_t i = 0; i < analysis.findings.size(); ++i) {
      const Finding& f = analysis.findings[i];
      if (!asks_for_a_change(f)) continue;
      const Advice* own = advice_of(f, candidate.advice.id);
      if (own != nullptr && order_of(*own) < order_of(candidate.advice)) candidate.advice = *own;
      if ((own != nullptr && tried(*own) != Tried::kFailed) || seen_finite(analysis, candidate.advice.id, f))
        candidate.answers.insert(i);
    }
  }
  return out;
}

// What was seen to work goes before what answers more.
const Candidate* best(const std::vector<Candidate>& all, const std::set<std::size_t>& open) {
  const Candidate* chosen = nullptr;
  std::tuple<int, std::size_t> most{0, 0};
  for (const Candidate& candidate : all) {
    const auto answered = static_cast<std::size_t>(std::count_if(
        open.begin(), open.end(), [&](std::size_t finding) { return candidate.answers.contains(finding); }));
    const std::tuple<int, std::size_t> worth{-static_cast<int>(order_of(candidate.advice)), answered};
    if (answered > 0 && (chosen == nullptr || worth > most)) {
      chosen = &candidate;
      most = worth;
    }
  }
  return chosen;
}

void add_headroom_notes(const Analysis& analysis, std::vector<std::string>& notes) {
  std::vector<const LayerSummary*> near;
  const auto least = [](const LayerSummary& layer) {
    return std::fmin(layer.headroom_forward, layer.headroom_gradient);
  };
  for (const LayerSummary& layer : analysis.layers) {
    if (layer.bad_ops == 0 && least(layer) < kLittleHeadroom) near.push_back(&layer);
  }
  std::stable_sort(near.begin(), near.end(), [&](const auto* a, const auto* b) { return least(*a) < least(*b); });
  for (std::size_t i = 0; i < std::min(near.size(), kMaxHeadroomNotes); ++i) {
    notes.push_back(fmt::format("{} came within {:.1f} binades of the largest {} number and has not passed it yet.",
                                near[i]->module, std::max(least(*near[i]), 0.0), dtype_name(near[i]->dtype)));
  }
}

}  // namespace

Recommendations recommend(const Analysis& analysis) {
  Recommendations out;
  std::set<std::size_t> open;
  for (std::size_t i = 0; i < analysis.findings.size(); ++i) {
    if (asks_for_a_change(analysis.findings[i])) open.insert(i);
  }
  const std::vector<Candidate> all = candidates(analysis);
  while (const Candidate* chosen = best(all, open)) {
    Recommendation change{chosen->advice, {}};
    for (const std::size_t finding : chosen->answers) {
      if (open.erase(finding) != 0) change.findings.push_back(analysis.findings[finding].id);
    }
    out.changes.push_back(std::move(change));
  }
  for (const std::size_t finding : open) out.unanswered.push_back(analysis.findings[finding].id);
  for (const Finding& f : analysis.findings) {
    for (const Advice& advice : f.advice) {
      auto& list = !asks_for_a_change(f) ? out.optional : out.rejected;
      if (asks_for_a_change(f) && tried(advice) != Tried::kFailed) continue;
      const auto same =
          std::find_if(list.begin(), list.end(), [&](const Recommendation& r) { return r.advice.id == advice.id; });
      if (same == list.end()) {
        list.push_back({advice, {f.id}});
      } else {
        same->findings.push_back(f.id);
      }
    }
  }
  // What cures one finding is not called useless because of another.
  std::erase_if(out.rejected, [&](const Recommendation& r) {
    return std::any_of(out.changes.begin(), out.changes.end(),
                       [&](const Recommendation& c) { return c.advice.id == r.advice.id; });
  });
  add_headroom_notes(analysis, out.notes);
  return out;
}

}  // namespace nanhunt::analyze
