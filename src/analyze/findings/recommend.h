// SPDX-License-Identifier: Apache-2.0
// The smallest set of changes that the evidence of a run supports.
#pragma once

#include <string>
#include <vector>

#include "nanhunt/analyzer.h"

namespace nanhunt::analyze {

struct Recommendation {
  Advice advice;
  std::vector<std::string> findings;  // ids of those that it answers
};

struct Recommendations {
  std::vector<Recommendation> changes;   // together they answer every fault and warning that anything answers
  std::vector<Recommendation> optional;  // for what is no harm: a scale that has to settle
  std::vector<Recommendation> rejected;  // tried on this run, and no cure
  std::vector<std::string> unanswered;   // findings for which nothing is left to try
  std::vector<std::string> notes;        // what is near a limit, as sentences
};

Recommendations recommend(const Analysis& analysis);

}  // namespace nanhunt::analyze
