// SPDX-License-Identifier: Apache-2.0
// A verdict over ranks in words: text and page are drawn from it, so they cannot differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "nanhunt/analyzer.h"
#include "reports/views/report_model.h"
#include "src/fleet/verdict.h"

namespace nanhunt::fleet {

struct FleetView {
  std::string word;  // "Fault"
  std::string headline;
  std::vector<reports::Fact> facts;
  reports::Lines notes;
};

inline constexpr std::size_t kMaxFleetNotes = 12;

// `opened`: what the traces of FleetVerdict::to_open say together; nullptr: they were not read. What is from outside is
// fit for a terminal.
FleetView view_fleet(const FleetVerdict& verdict, const Analysis* opened);

// "RUN/rank-00003/attempt-1", the folder of a rank's trace.
std::string rank_folder(const FleetVerdict& verdict, const std::string& run, std::uint32_t rank);

}  // namespace nanhunt::fleet
