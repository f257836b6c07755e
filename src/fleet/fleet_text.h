// SPDX-License-Identifier: Apache-2.0
// A verdict over ranks as text and as JSON. Names of the program are escaped here.
#pragma once

#include <string>

#include "nanhunt/analyzer.h"
#include "nanhunt/reporter.h"
#include "src/fleet/verdict.h"

namespace nanhunt::fleet {

// `opened`: what the traces of FleetVerdict::to_open say together; nullptr: they were not read. `options.run` is the
// folder, for the commands that are named.
std::string render_fleet_text(const FleetVerdict& verdict, const Analysis* opened, const TextOptions& options);
std::string render_fleet_json(const FleetVerdict& verdict);  // schema nanhunt.fleet, version 1

}  // namespace nanhunt::fleet
