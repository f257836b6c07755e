// SPDX-License-Identifier: Apache-2.0
// write_sample_report KIND FILE: the page of a made-up analysis, for the tests that open it in a browser.
#include <cstdio>
#include <fstream>
#include <string>

#include "nanhunt/reporter.h"
#include "reports/page/html_precision.h"
#include "tests/reports/sample_analysis.h"
#include "tests/reports/sample_precision.h"
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

// "": none of that kind.
std::string make_precision_page(const std::string& kind) {
  using namespace nanhunt::testing_reports;
  if (kind == "precision") return nanhunt::reports::render_precision_html(make_precision_comparison());
  if (kind == "precision-good") return nanhunt::reports::render_precision_html(make_good_comparison());
  if (kind == "precision-hostile") return nanhunt::reports::render_precision_html(make_hostile_comparison());
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  nanhunt::Analysis analysis;
  if (const std::string page = argc == 3 ? make_precision_page(argv[1]) : ""; !page.empty()) {
    std::ofstream file(argv[2], std::ios::binary);
    file << page;
    return file.good() ? 0 : 1;
  }
  if (argc != 3 || !make(argv[1], analysis)) {
    std::fputs("usage: write_sample_report fault|clean|hostile|overflow|calibrating|ramp|long|empty|"
               "precision[-good|-hostile] FILE\n",
               stderr);
    return 2;
  }
  std::ofstream file(argv[2], std::ios::binary);
  file << nanhunt::render_html(analysis);
  return file.good() ? 0 : 1;
}
