// SPDX-License-Identifier: Apache-2.0
// nanhunt check: one line and an exit status, for scripts and CI.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

#include "reports/json/json_values.h"
#include "reports/views/report_model.h"
#include "tools/nanhunt/analysis.h"
#include "tools/nanhunt/checkpoints/checkpoint_check.h"
#include "tools/nanhunt/checkpoints/checkpoint_place.h"
#include "tools/nanhunt/terminal.h"
#include "tools/nanhunt/verb.h"

namespace nanhunt::cli {
namespace {

using nlohmann::json;

struct Outcome {
  int exit_status = kDone;
  bool damaged = false;
  std::size_t faults = 0, warnings = 0, infos = 0;
};

Outcome judge(const Analysis& analysis, bool fail_on_warning) {
  Outcome out;
  out.damaged = is_damaged(analysis);
  for (const Finding& finding : analysis.findings) {
    ++(finding.severity == Severity::kFault     ? out.faults
       : finding.severity == Severity::kWarning ? out.warnings
                                                : out.infos);
  }
  const VerdictStatus status = analysis.verdict.status;
  const bool fault = status == VerdictStatus::kFault || out.faults != 0;
  const bool warning = status == VerdictStatus::kWarning || out.warnings != 0;
  // A fault beats damage beats inconclusive.
  if (fault || (warning && fail_on_warning)) {
    out.exit_status = kFoundFault;
  } else if (out.damaged) {
    out.exit_status = kDamagedInput;
  } else if (status == VerdictStatus::kInconclusive || !analysis.coverage.unjudged.empty()) {
    out.exit_status = kInconclusive;
  }
  return out;
}

json finding_to_json(const Finding* finding) {
  if (finding == nullptr) return nullptr;
  const auto name = [](const std::optional<std::string>& text) { return text ? reports::json_text(*text) : json(); };
  return {{"id", reports::json_text(finding->id)},
          {"class", finding_class_name(finding->cls)},
          {"severity", severity_name(finding->severity)},
          {"confidence", confidence_name(finding->confidence)},
          {"op", name(finding->place.op)},
          {"module", name(finding->place.module)},
          {"phase", phase_name(finding->place.phase)},
          {"call_site", reports::json_text_or_null(finding->call_site)},
          {"step", finding->place.step},
          {"rank", finding->rank}};
}

std::string as_json(std::string_view status, std::string_view headline, const Finding* finding, const Outcome& out) {
  const json answer = {{"schema", "nanhunt.check"},
                       {"schema_version", 1},
                       {"status", status},
                       {"headline", reports::json_text(headline)},
                       {"exit_status", out.exit_status},
                       {"damaged", out.damaged},
                       {"findings", {{"fault", out.faults}, {"warning", out.warnings}, {"info", out.infos}}},
                       {"finding", finding_to_json(finding)}};
  return reports::dump_json(answer) + "\n";
}

class CheckVerb final : public Verb {
 public:
  void declare(Options options) override {
    options.add_run("RUN", run_, "A checkpoint or a folder of them; or a run folder, attempt folder or .nht file")
        .required();
    options.add("--fail-on", fail_on_, "Lowest severity that gives exit status 1")
        .one_of({"warning", "fault"})
        .show_default();
    options.add_flag("--json", json_, "The verdict as JSON");
    options.add_flag("--full", full_, "Of checkpoints: all tensors");
  }

  int run() override {
    if (const auto checkpoints = checkpoints_at(run_); !checkpoints.empty())
      return check_checkpoints(run_, checkpoints, {fail_on_ == "warning", json_, full_});
    if (full_) {
      return fail({StatusCode::kUsage, "--full lists the tensors of a checkpoint, and '" + run_ +
                                           "' is none. `nanhunt report --full` shows all of a run."});
    }
    const auto analysis = load_analysis(run_);
    if (!analysis) return without_analysis(analysis.status());
    const Outcome out = judge(*analysis, fail_on_ == "warning");
    const std::string text = json_ ? as_json(verdict_status_name(analysis->verdict.status), analysis->verdict.headline,
                                             reports::find_origin(*analysis), out)
                                   : verdict_line(*analysis) + "\n";
    return print_and_return(text, out.exit_status);
  }

 private:
  // A folder in which nothing was recorded is inconclusive; one that does not exist cannot be read.
  int without_analysis(const Status& status) const {
    std::error_code ignored;
    const bool nothing_recorded = status.code() == StatusCode::kNotFound && std::filesystem::exists(run_, ignored);
    if (!nothing_recorded) return fail(status);
    say(status.message());
    Outcome out;
    out.exit_status = kInconclusive;
    const std::string_view headline = "Nothing was recorded.";
    if (json_) return print_and_return(as_json("inconclusive", headline, nullptr, out), out.exit_status);
    return print_and_return("inconclusive: " + std::string(headline) + "\n", out.exit_status);
  }

  std::string run_, fail_on_ = "fault";
  bool json_ = false, full_ = false;
};

const RegisterVerb<CheckVerb> kCheck{
    {.order = 30,
     .name = "check",
     .summary = "The verdict of a run, or of checkpoints, and an exit status, for scripts and CI",
     .exit_statuses = "  0  no fault (a calibrating loss scaler included)\n"
                      "  1  a fault, or a warning with --fail-on warning\n"
                      "  2  wrong usage\n"
                      "  3  the run cannot be read\n"
                      "  4  damaged, and no fault in what is left, if anything is\n"
                      "  5  inconclusive; also when nothing was recorded\n"
                      "  6  the answer could not be written"}};

}  // namespace
}  // namespace nanhunt::cli
