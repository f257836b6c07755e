// SPDX-License-Identifier: Apache-2.0
// The records of many ranks as Parquet tables (TABLES.md), which the Python package makes.
#pragma once

#include <string>

#include "nanhunt/status.h"

namespace nanhunt::cli {

struct FleetTables {
  std::string run, out;  // `run`: a folder or a URL
  std::string engine = "local", address = {};
  unsigned jobs = 0, group = 64;
};

// Says how far it is and what came of it; a rank that cannot be read is named and costs itself.
Status write_fleet_tables(const FleetTables& tables);

}  // namespace nanhunt::cli
