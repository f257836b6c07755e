// SPDX-License-Identifier: Apache-2.0
// nanhunt advise: the smallest set of changes that the evidence of a run supports.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "reports/json/json_values.h"
#include "reports/views/numbers.h"
#include "reports/views/report_model.h"
#include "src/analyze/findings/recommend.h"
#include "src/core/text.h"
#include "tools/nanhunt/analysis.h"
#include "tools/nanhunt/recipe.h"
#include "tools/nanhunt/terminal.h"
#include "tools/nanhunt/verb.h"

namespace nanhunt::cli {
namespace {

using analyze::Recommendation;
using analyze::Recommendations;
using nlohmann::json;

json to_json(const std::vector<Recommendation>& list) {
  json out = json::array();
  for (const Recommendation& r : list) {
    out.push_back({{"id", reports::json_text(r.advice.id)},
                   {"text", reports::json_text(r.advice.text)},
                   {"why", reports::json_text_or_null(r.advice.why)},
                   {"verified", r.advice.verified ? json(*r.advice.verified) : json()},
                   {"on_these_numbers", r.advice.on_these_numbers ? json(*r.advice.on_these_numbers) : json()},
                   {"evidence", reports::json_text_or_null(r.advice.evidence)},
                   {"answers", reports::json_texts(r.findings)}});
  }
  return out;
}

std::string call_site_of_headline(const Analysis& analysis) {
  const Finding* f = reports::find_origin(analysis);
  return f == nullptr ? "" : f->call_site;
}

const char* standing(const Advice& advice) {
  switch (tried(advice)) {
    case Tried::kWorked: return "seen to work on this run";
    case Tried::kOnTheseNumbers: return "finite on these numbers";
    case Tried::kFailed: return "no cure on this run";
    case Tried::kNotTried: break;
  }
  return "not tried on this run";
}

// Where no finding asks for a change. Over what was not judged, or holds NaN, that is no promise.
std::string no_change(const Analysis& analysis) {
  if (analysis.verdict.status == VerdictStatus::kInconclusive) return "No advice: the run could not be judged.\n";
  const bool nan = std::any_of(analysis.layers.begin(), analysis.layers.end(),
                               [](const LayerSummary& layer) { return layer.nan > 0; });
  const bool ignored = std::any_of(analysis.findings.begin(), analysis.findings.end(),
                                   [](const Finding& f) { return !f.ignored.empty(); });
  if (is_damaged(analysis)) return "No finding asks for a change in what is left of the damaged trace.\n";
  if (nan || ignored) return "No finding asks for a change; the trace holds NaN that did no harm, or that you ignore.\n";
  return "Nothing has to be changed.\n";
}

class AdviseVerb final : public Verb {
 public:
  void declare(Options options) override {
    options.add_run("RUN", run_, "Run folder, attempt folder or .nht file").required();
    options.add("--recipe", recipe_,
                   "Write the changes as a recipe for `nanhunt train SCENARIO --recipe FILE`; - for stdout")
        .value_name("FILE");
    options.add_flag("--json", json_, "Print the advice as JSON");
  }

  int run() override {
    if (json_ && recipe_ == "-")
      return fail({StatusCode::kUsage, "advise: --json and --recipe - both write to stdout. Choose one."});
    auto analysis = load_analysis(run_);
    if (!analysis) return fail(analysis.status());
    const Recommendations advice = analyze::recommend(*analysis);
    if (!recipe_.empty()) {
      const std::string scenario = analysis->ranks.empty() ? "" : analysis->ranks.front().info.scenario;
      if (Status written = write_output(recipe_, recipe_text(advice, scenario)); !written) return fail(written);
      if (recipe_ == "-") return kDone;
    }
    return print_and_return(json_ ? as_json(*analysis, advice) : as_text(*analysis, advice));
  }

 private:
  static std::string as_json(const Analysis& analysis, const Recommendations& advice) {
    return reports::dump_json({{"schema", "nanhunt.advice"},
                               {"schema_version", 1},
                               {"status", verdict_status_name(analysis.verdict.status)},
                               {"headline", reports::json_text(analysis.verdict.headline)},
                               {"call_site", reports::json_text_or_null(call_site_of_headline(analysis))},
                               {"changes", to_json(advice.changes)},
                               {"optional", to_json(advice.optional)},
                               {"rejected", to_json(advice.rejected)},
                               {"unanswered", reports::json_texts(advice.unanswered)},
                               {"notes", reports::json_texts(advice.notes)}}) +
           "\n";
  }

  std::string as_text(const Analysis& analysis, const Recommendations& advice) const {
    std::string text = printable(analysis.verdict.headline);
    if (const Finding* f = reports::find_origin(analysis); f != nullptr) text += call_site_text(*f);
    text += "\n";
    // "F1 (train.py:30), F2"
    const auto places = [&](const std::vector<std::string>& ids) {
      std::vector<std::string> out;
      for (const std::string& id : ids) {
        const auto f = std::find_if(analysis.findings.begin(), analysis.findings.end(),
                                    [&](const Finding& one) { return one.id == id; });
        out.push_back(printable(id) + (f == analysis.findings.end() ? "" : call_site_text(*f)));
      }
      return reports::join(out, ", ");
    };
    const auto section = [&](const char* title, const std::vector<Recommendation>& list) {
      if (!list.empty()) text.append("\n").append(title).append("\n");
      for (const Recommendation& r : list) {
        text += "  " + printable(r.advice.text) + "\n    " + printable(r.advice.id) + ": " + standing(r.advice);
        if (!r.findings.empty()) text += ", for " + places(r.findings);
        text += "\n";
        if (!r.advice.evidence.empty()) text += "    " + printable(r.advice.evidence) + "\n";
        if (!r.advice.why.empty() && tried(r.advice) != Tried::kFailed) text += "    why: " + printable(r.advice.why) + "\n";
      }
    };
    if (advice.changes.empty()) {
      text += !advice.unanswered.empty() ? "Nothing is left that was not tried without success.\n" : no_change(analysis);
    }
    section(advice.changes.size() == 1 ? "Change this" : "Change these, all of them", advice.changes);
    section("May be changed, though it does no harm", advice.optional);
    section("Not these", advice.rejected);
    if (!advice.unanswered.empty()) text += "\nNo advice for " + places(advice.unanswered) + ".\n";
    if (!advice.notes.empty()) text += "\nKeep an eye on\n";
    for (const std::string& note : advice.notes) text += "  " + printable(note) + "\n";
    if (recipe_.empty() && !advice.changes.empty() && !analysis.ranks.empty() &&
        !analysis.ranks.front().info.scenario.empty()) {
      text += "\nNext: nanhunt advise " + printable(run_) + " --recipe recipe.json, then nanhunt train " +
              printable(analysis.ranks.front().info.scenario) + " --recipe recipe.json\n";
    }
    return text;
  }

  std::string run_, recipe_;
  bool json_ = false;
};

const RegisterVerb<AdviseVerb> kAdvise{{.order = 31,
                                        .name = "advise",
                                        .summary = "The smallest set of changes that the evidence supports",
                                        .exit_statuses = "  0  done\n  2  wrong usage\n  3  the run cannot be read\n"
                                                         "  6  the recipe or stdout could not be written"}};

}  // namespace
}  // namespace nanhunt::cli
