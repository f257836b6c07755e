// SPDX-License-Identifier: Apache-2.0
// A verdict over ranks as one offline page: the same facts as the text, the map of steps x ranks, the ranks it began
// on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nanhunt/analyzer.h"
#include "src/fleet/rank_map.h"
#include "src/fleet/verdict.h"

namespace nanhunt::fleet {

struct FleetPageOptions {
  std::string run = "RUN";                 // what to call the run in commands
  std::vector<std::uint32_t> linked = {};  // ranks whose report.html lies where the page looks for it: beside the trace
};

// `opened`: as in render_fleet_text. The same digests give the same bytes; at most 5 MB.
std::string render_fleet_page(const FleetVerdict& verdict, const Analysis* opened,
                              const FleetPageOptions& options = {});

// What the scripts draw, about `max_bytes` at most: what does not fit is left out and named.
std::string make_fleet_data(const RankMap& map, const FleetPageOptions& options, std::size_t max_bytes);

}  // namespace nanhunt::fleet
