// SPDX-License-Identifier: Apache-2.0
// Verdicts and reports through the C interface.
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "nanhunt/analyzer.h"
#include "nanhunt/reporter.h"
#include "nanhunt/trace.h"
#include "src/c_api/convert.h"
#include "src/c_api/error.h"
#include "src/c_api/open_runs.h"

namespace nanhunt::c_api {
namespace {

static_assert(NANHUNT_INCONCLUSIVE == static_cast<int>(VerdictStatus::kInconclusive));
static_assert(NANHUNT_CALIBRATING == static_cast<int>(VerdictStatus::kCalibrating));

// Other ranks may have been killed. Of a rank's attempts the newest counts, the last of them here.
std::vector<std::uint32_t> ranks_recorded_here(const std::string& run) {
  std::vector<std::uint32_t> ranks;
  const auto attempts = find_attempts(run);
  if (!attempts) return ranks;
  for (std::size_t i = 0; i < attempts->size(); ++i) {
    const AttemptTrace& attempt = (*attempts)[i];
    const bool newest = i + 1 == attempts->size() || (*attempts)[i + 1].info.rank != attempt.info.rank;
    if (newest && is_recorded_here(attempt.dir)) ranks.push_back(attempt.info.rank);
  }
  return ranks;
}

nanhunt_status report(const char* run, std::int32_t format, char** text, std::size_t* size) {
  if (text == nullptr) return fail(NANHUNT_USAGE, "nanhunt_report: expected a place for the text, got NULL");
  *text = nullptr;
  if (size != nullptr) *size = 0;
  if (format < NANHUNT_TEXT || format > NANHUNT_CARD) {
    return fail(NANHUNT_USAGE,
                "nanhunt_report: expected NANHUNT_TEXT, NANHUNT_JSON, NANHUNT_HTML, NANHUNT_ANSWER or NANHUNT_CARD");
  }
  const auto analysis = analyze_run(std::string(text_of(run)));
  if (!analysis) return result_of(analysis.status());
  TextOptions options;
  options.going = ranks_recorded_here(std::string(text_of(run)));
  options.run = std::string(text_of(run));
  const std::string made = format == NANHUNT_TEXT     ? render_text(*analysis, options)
                           : format == NANHUNT_JSON   ? render_json(*analysis)
                           : format == NANHUNT_ANSWER ? render_answer(*analysis, options)
                           : format == NANHUNT_CARD   ? render_card(*analysis, options)
                                                      : render_html(*analysis, options.going);
  char* copy = static_cast<char*>(std::malloc(made.size() + 1));  // for callers that free() nothing themselves
  if (copy == nullptr) return fail(NANHUNT_INTERNAL, "out of memory");
  std::memcpy(copy, made.c_str(), made.size() + 1);
  *text = copy;
  if (size != nullptr) *size = made.size();
  return NANHUNT_OK;
}

}  // namespace
}  // namespace nanhunt::c_api

extern "C" {

nanhunt_status nanhunt_check(const char* run, int32_t* verdict) {
  using namespace nanhunt::c_api;
  return guarded([&]() -> nanhunt_status {
    if (verdict == nullptr) return fail(NANHUNT_USAGE, "nanhunt_check: expected a place for the verdict, got NULL");
    const auto analysis = nanhunt::analyze_run(std::string(text_of(run)));
    if (!analysis) return result_of(analysis.status());
    *verdict = static_cast<int32_t>(analysis->verdict.status);
    return NANHUNT_OK;
  });
}

nanhunt_status nanhunt_report(const char* run, int32_t format, char** text, size_t* size) {
  return nanhunt::c_api::guarded([&] { return nanhunt::c_api::report(run, format, text, size); });
}

void nanhunt_free(char* text) { std::free(text); }

}  // extern "C"
