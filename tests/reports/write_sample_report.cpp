// SPDX-License-Identifier: Apache-2.0
// write_sample_report KIND FILE: the page of a made-up analysis, for the tests that open it in a browser.
#include <cstdio>
#include <fstream>
#include <string>

#include "nanhunt/reporter.h"
#include "tests/reports/sample_analysis.h"
#include "tests/reports/sample_runs.h"

namespace {

bool make(const std::string& kind, nanhunt::Analysis& analysis) {
  using namespace nanhunt::testing_reports;
  if (kind == "fault") analysis = make_fault_analysis();
  if (kind == "clean") analysis = make_clean_analysis();
  if (kind == "hostile") analysis = make_hostile_analysis();
  if (kind == "overflow") analysis = make_overflow_analysis();
  if (kind == "calibrating") analysis = make_calibrating_analysis();
  if (kind == "ramp") analysis = make_ramp_analysis();
  if (kind == "long") analysis = make_long_analysis(100'000, 1000);
  return kind == "empty" || analysis.coverage.steps != 0;
}

}  // namespace

int main(int argc, char** argv) {
  nanhunt::Analysis analysis;
  if (argc != 3 || !make(argv[1], analysis)) {
    std::fputs("usage: write_sample_report fault|clean|hostile|overflow|calibrating|ramp|long|empty FILE\n", stderr);
    return 2;
  }
  std::ofstream file(argv[2], std::ios::binary);
  file << nanhunt::render_html(analysis);
  return file.good() ? 0 : 1;
}
