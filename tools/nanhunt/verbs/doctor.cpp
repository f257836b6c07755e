// SPDX-License-Identifier: Apache-2.0
// nanhunt doctor: what exactly was lost of a trace, and a clean copy of what was not; with --env, what this machine
// offers.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "nanhunt/trace.h"
#include "reports/json/json_run.h"
#include "reports/json/json_values.h"
#include "reports/views/numbers.h"
#include "reports/text/text_layout.h"
#include "src/core/text.h"
#include "tools/nanhunt/attempts.h"
#include "tools/nanhunt/environment/environment.h"
#include "tools/nanhunt/terminal.h"
#include "tools/nanhunt/verb.h"

namespace nanhunt::cli {
namespace {

namespace fs = std::filesystem;
using namespace reports;
using nlohmann::json;

struct Examination {
  AttemptTrace attempt;
  TraceHealth health;
  Status status;
  bool salvaged = false;
  bool names_only = true;  // nothing readable but names and layouts
  bool readable() const { return status.is_ok() || status.code() == StatusCode::kDamaged; }
};

std::string_view condition(const Examination& e) {
  if (!e.readable()) return "unreadable";
  if (e.health.damaged()) return "damaged";
  return e.health.clean_end ? "intact" : "no clean end";
}

// Whether a salvaged copy would be better than what is there.
bool gains(const Examination& e) { return e.readable() && e.health.damaged() && !e.names_only; }

json to_json(const Examination& e) {
  const TraceHealth before = lost_before_salvage(e.attempt.info);
  return {{"rank", e.attempt.info.rank},
          {"attempt", e.attempt.info.attempt},
          {"condition", condition(e)},
          {"has_run_json", e.attempt.has_info},
          {"error", e.status.is_ok() ? json() : json_text(e.status.message())},
          {"health", health_to_json(e.health)},
          {"salvaged", e.salvaged},
          {"lost_before_salvage", before.damaged() ? json(describe_damage(before)) : json()}};
}

void write_text(TextLayout& out, const Examination& e) {
  const bool good = e.readable() && !e.health.damaged();
  out.raw("rank " + std::to_string(e.attempt.info.rank) + ", attempt " + std::to_string(e.attempt.info.attempt) + ": " +
          out.ink(condition(e), good ? Ink::kGreen : Ink::kRed));
  if (!e.readable()) {
    out.paragraph(printable(e.status.message()), 2);
    return;
  }
  out.paragraph("read: " + plural(e.health.chunks, "chunk", "chunks") + " with " +
                    plural(e.health.rows, "row", "rows") + " in " + plural(e.health.segments, "segment", "segments") +
                    ", " + format_bytes(e.health.bytes),
                2);
  out.paragraph("lost: " + (e.health.damaged() ? describe_damage(e.health) : std::string("nothing")), 2);
  if (const TraceHealth before = lost_before_salvage(e.attempt.info); before.damaged()) {
    out.paragraph("a salvaged copy of a damaged trace: " + describe_damage(before), 2);
  }
  if (e.health.rows != 0 && e.names_only) {
    out.paragraph("what could be read are names: no operation, value or step is left to judge", 2);
  }
  if (!e.health.clean_end) {
    out.paragraph("the trace has no clean end: the run goes on, or it was killed; what was written last may be missing",
                  2);
  }
  if (!e.attempt.has_info) out.paragraph("run.json is missing or unreadable: what ran is not known", 2);
  if (e.health.unknown_chunks != 0) {
    out.paragraph(plural(e.health.unknown_chunks, "chunk", "chunks") +
                      " of a kind this version does not know: passed over, no damage",
                  2);
  }
  if (e.health.steps_retired != 0) {
    out.paragraph(plural(e.health.steps_retired, "step", "steps") +
                      " retired on purpose, to keep the trace within its limit: no damage",
                  2);
  }
  for (const std::string& problem : e.health.problems) out.paragraph(printable(problem), 2, "- ");
}

class DoctorVerb final : public Verb {
 public:
  void declare(Options options) override {
    Option run = options.add_run("RUN", run_, "Run folder, attempt folder or .nht file");
    Option env = options.add_flag("--env", env_,
                                    "What this machine offers: driver, toolkit, CUPTI, cuBLAS, GPUs, CPU, PyTorch; what does "
                                    "not fit together, and what to do");
    Option out =
        options.add("--salvage", out_, "Copy everything readable into this new run folder, with a clean end")
            .value_name("OUT");
    env.excludes(run).excludes(out);
    options.add_flag("--json", json_, "The same as JSON");
  }

  int run() override {
    if (env_) return tell_environment();
    if (run_.empty()) {
      say("doctor: RUN is required, or --env. See `nanhunt doctor --help`.");
      return kWrongUsage;
    }
    auto attempts = find_attempts(run_);
    if (!attempts) return fail(attempts.status());
    if (!out_.empty()) {
      if (Status usable = check_new_folder(); !usable) return fail(usable);
    }
    std::vector<Examination> all;
    bool any_readable = false;
    for (AttemptTrace& attempt : *attempts) {
      Examination e;
      e.status = read_attempt(
          attempt,
          [&](const RecordBatch& batch) {
            e.names_only = e.names_only && batch.ops.empty() && batch.values.empty() && batch.steps.empty();
          },
          e.health);
      e.attempt = std::move(attempt);
      any_readable = any_readable || e.readable();
      all.push_back(std::move(e));
    }
    int status = any_readable ? kDone : kUnreadable;
    if (!out_.empty() && any_readable) status = salvage(all);
    const int printed = print_and_return(json_ ? as_json(all) : as_text(all), status);
    const bool intact = std::none_of(all.begin(), all.end(),
                                     [](const Examination& e) { return !e.readable() || e.health.damaged(); });
    const bool copies = std::any_of(all.begin(), all.end(), [](const Examination& e) {
      return lost_before_salvage(e.attempt.info).damaged();
    });
    if (out_.empty() && intact) {
      say("next: `nanhunt report " + shell_word(run_) + "` says what to make of it" + (copies ? ", as far as it goes." : "."));
    }
    if (out_.empty() && std::any_of(all.begin(), all.end(), [](const Examination& e) { return gains(e); })) {
      say("next: `nanhunt doctor " + shell_word(run_) +
          " --salvage OUT` copies everything readable into a new run, with a clean end.");
    }
    if (!any_readable) say("nothing in '" + run_ + "' can be read. Was it copied whole, and written by nanhunt?");
    return printed;
  }

 private:
  Status check_new_folder() const {
    std::error_code error;
    const bool exists = fs::exists(out_, error);
    const bool empty = exists && fs::is_directory(out_, error) && fs::is_empty(out_, error);
    if (!exists || empty) return Status::ok();
    return {StatusCode::kWriteFailed, "cannot salvage into '" + out_ + "': it is there already. Name a new folder."};
  }

  int salvage(std::vector<Examination>& all) const {
    for (Examination& e : all) {
      if (!e.readable()) continue;
      TraceHealth health;
      const Status copied = salvage_attempt(e.attempt, out_, health);
      if (!copied && copied.code() != StatusCode::kDamaged) return fail(copied);
      e.salvaged = true;
    }
    say("salvaged into " + out_ + ". Next: `nanhunt report " + shell_word(out_) + "`.");
    return kDone;
  }

  int tell_environment() const {
    const EnvironmentFacts facts = gather_environment();
    return print_and_return(json_ ? dump_json(environment_to_json(facts)) + "\n"
                                  : environment_to_text(facts, stdout_has_colour(), stdout_width()));
  }

  static std::string as_json(const std::vector<Examination>& all) {
    json list = json::array();
    for (const Examination& e : all) list.push_back(to_json(e));
    return dump_json({{"schema", "nanhunt.doctor"}, {"schema_version", 1}, {"attempts", std::move(list)}}) + "\n";
  }
  static std::string as_text(const std::vector<Examination>& all) {
    TextLayout out(stdout_has_colour(), stdout_width());
    for (const Examination& e : all) write_text(out, e);
    return out.take();
  }

  std::string run_, out_;
  bool json_ = false, env_ = false;
};

const RegisterVerb<DoctorVerb> kDoctor{
    {.order = 60,
     .name = "doctor",
     .summary = "What was lost of a damaged trace, and a clean copy of the rest; --env: what this "
                "machine offers",
     .exit_statuses = "  0  done, damaged or not\n  2  wrong usage\n"
                      "  3  nothing in it can be read\n"
                      "  6  the copy or the answer could not be written"}};

}  // namespace
}  // namespace nanhunt::cli
