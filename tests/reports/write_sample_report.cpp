// SPDX-License-Identifier: Apache-2.0
// write_sample_report KIND FILE: the page of a made-up analysis, or its JSON where FILE ends in .json, for the tests
// that open pages in a browser and hold JSON to its schema.
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

#include "nanhunt/reporter.h"
#include "reports/json/json_precision.h"
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
  if (kind == "warning") analysis = make_warning_analysis();
  if (kind == "calibrating") analysis = make_calibrating_analysis();
  if (kind == "ramp") analysis = make_ramp_analysis();
  if (kind == "long") analysis = make_long_analysis(100'000, 1000);
  return kind == "empty" || analysis.coverage.steps != 0;
}

bool make(const std::string& kind, nanhunt::PrecisionComparison& comparison) {
  using namespace nanhunt::testing_reports;
  if (kind == "precision") comparison = make_precision_comparison();
  if (kind == "precision-good") comparison = make_good_comparison();
  if (kind == "precision-hostile") comparison = make_hostile_comparison();
  return !comparison.runs.empty();
}

// "": none of that kind.
std::string render(const std::string& kind, bool as_json) {
  nanhunt::Analysis analysis;
  constexpr std::string_view kBrief = "brief-";
  if (kind.starts_with(kBrief)) return make(kind.substr(kBrief.size()), analysis) ? nanhunt::render_brief(analysis) : "";
  if (make(kind, analysis)) return as_json ? nanhunt::render_json(analysis) : nanhunt::render_html(analysis);
  nanhunt::PrecisionComparison comparison;
  if (!make(kind, comparison)) return "";
  return as_json ? nanhunt::reports::render_precision_json(comparison)
                 : nanhunt::reports::render_precision_html(comparison);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string report = argc == 3 ? render(argv[1], std::string_view(argv[2]).ends_with(".json")) : "";
  if (report.empty()) {
    std::fputs("usage: write_sample_report [brief-]fault|warning|clean|hostile|overflow|calibrating|ramp|long|empty|"
               "precision[-good|-hostile] FILE\n",
               stderr);
    return 2;
  }
  std::ofstream file(argv[2], std::ios::binary);
  file << report;
  return file.good() ? 0 : 1;
}
