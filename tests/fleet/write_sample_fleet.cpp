// SPDX-License-Identifier: Apache-2.0
// write_sample_fleet KIND FILE: the page of a made-up fleet, or its JSON where FILE ends in .json, for the tests that
// open pages in a browser and hold JSON to its schema.
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

#include "src/fleet/fleet_page.h"
#include "src/fleet/fleet_text.h"
#include "tests/fleet/sample_fleets.h"

namespace {

using namespace nanhunt::fleet_tests;

bool make(const std::string& kind, nanhunt::fleet::FleetVerdict& verdict) {
  if (kind == "fleet") verdict = make_stage_fleet({.missing_every = 16});
  if (kind == "fleet-clean") verdict = make_clean_fleet();
  if (kind == "fleet-parted") verdict = make_parted_fleet();
  if (kind == "fleet-hostile") verdict = make_hostile_fleet();
  if (kind == "fleet-gapped") verdict = make_gapped_fleet();
  if (kind == "fleet-large") verdict = make_stage_fleet({10'000, 100'000, 2, 71'234, 33, true});
  return !verdict.headline.empty();
}

}  // namespace

int main(int argc, char** argv) {
  nanhunt::fleet::FleetVerdict verdict;
  if (argc != 3 || !make(argv[1], verdict)) {
    std::fputs("usage: write_sample_fleet fleet[-clean|-parted|-hostile|-gapped|-large] FILE\n", stderr);
    return 2;
  }
  std::ofstream file(argv[2], std::ios::binary);
  nanhunt::fleet::FleetPageOptions options;
  options.run = "shared/my run";
  if (!verdict.to_open.empty()) options.linked = {verdict.to_open.front()};
  file << (std::string_view(argv[2]).ends_with(".json") ? render_fleet_json(verdict)
                                                        : render_fleet_page(verdict, nullptr, options));
  return file.good() ? 0 : 1;
}
