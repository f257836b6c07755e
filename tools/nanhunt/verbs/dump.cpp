// SPDX-License-Identifier: Apache-2.0
// nanhunt dump: the records themselves, with names resolved.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "reports/json/json_values.h"
#include "tools/nanhunt/analysis.h"
#include "tools/nanhunt/attempts.h"
#include "tools/nanhunt/dump/dump_rows.h"
#include "tools/nanhunt/terminal.h"
#include "tools/nanhunt/verb.h"

namespace nanhunt::cli {
namespace {

using nlohmann::json;

constexpr std::size_t kModulesNamed = 12;

// Thrown out of the reader's callback once nobody wants more rows.
struct EnoughRows {};

// What there was to choose from, for a choice that matched nothing.
struct RowsSeen {
  std::uint64_t rows = 0;
  std::optional<std::uint32_t> first_step, last_step;
  std::set<std::string, std::less<>> modules;  // by name, the first ones

  void add(const RowPlace& place) {
    ++rows;
    if (place.step) {
      first_step = std::min(first_step.value_or(*place.step), *place.step);
      last_step = std::max(last_step.value_or(*place.step), *place.step);
    }
    if (place.module.empty() || modules.contains(place.module)) return;
    if (modules.size() > kModulesNamed && place.module > *modules.rbegin()) return;
    modules.emplace(place.module);
    if (modules.size() > kModulesNamed + 1) modules.erase(std::prev(modules.end()));
  }
};

class DumpVerb final : public Verb {
 public:
  void declare(Options options) override {
    std::string names;
    for (const DumpKind& kind : dump_kinds()) names += (names.empty() ? "" : ", ") + std::string(kind.name);
    options.add_run("RUN", run_, "Run folder, attempt folder or .nht file").required();
    options.add("--kind", kind_, "Kind of record: " + names).show_default();
    options.add("--step", step_, "Only rows of this step");
    options.add("--module", module_, "Only rows of this module, parameter or path, and of what is below it");
    options.add("--rank", rank_, "Only this rank");
    options.add("--attempt", attempt_, "This attempt; otherwise the newest of each rank");
    options.add("--limit", limit_, "Stop after this many rows");
    options.add_flag("--json", json_, "One JSON object per line");
  }

  int run() override {
    const DumpKind* kind = find_dump_kind(kind_);
    if (kind == nullptr) return wrong_kind();
    if (step_ && !kind->has_step) return no_filter("--step");
    if (module_ && !kind->has_module) return no_filter("--module");
    auto attempts = choose_attempts(run_, rank_, attempt_);
    if (!attempts) return fail(attempts.status());

    DataOut out;
    std::uint64_t shown = 0;
    RowsSeen seen;
    int read = kDone;
    try {
      read = read_each(*attempts,
                       [&](const AttemptTrace& attempt) { return dump_attempt(*kind, attempt, out, shown, seen); });
    } catch (const EnoughRows&) {
      return out.finish();
    }
    const ExitStatus written = out.finish();
    if (written != kDone) return written;
    if (read == kDone && shown == 0) say(why_nothing(seen));
    return read;
  }

 private:
  bool is_wanted(const RowPlace& place) const {
    if (step_ && place.step != *step_) return false;
    if (!module_) return true;
    const std::string_view module = place.module;
    if (!module.starts_with(*module_)) return false;
    return module.size() == module_->size() || module[module_->size()] == '.';
  }

  std::string why_nothing(const RowsSeen& seen) const {
    if (seen.rows == 0) return "there are no rows of kind " + kind_ + " in this run.";
    std::string text = "no rows match;";
    if (step_ && seen.first_step) {
      text += " steps are " + std::to_string(*seen.first_step) + " to " + std::to_string(*seen.last_step);
      text += module_ ? ";" : ".";
    }
    if (!module_) return text;
    text += seen.modules.empty() ? " no row has a module" : " modules are ";
    std::size_t named = 0;
    for (const std::string& name : seen.modules) {
      if (named == kModulesNamed) return text + " and more.";
      text += (named++ == 0 ? "" : ", ") + name;
    }
    return text + ".";
  }

  Status dump_attempt(const DumpKind& kind, const AttemptTrace& attempt, DataOut& out, std::uint64_t& shown,
                      RowsSeen& seen) const {
    TraceHealth health;
    TraceNames names;
    const auto emit = [&](const RowPlace& place, const json& row) {
      seen.add(place);
      if (!is_wanted(place)) return;
      if (shown == limit_ || out.closed()) throw EnoughRows{};
      ++shown;
      if (json_) {
        json line = row;
        line["kind"] = kind.name;
        line["rank"] = attempt.info.rank;
        line["attempt"] = attempt.info.attempt;
        out.write(reports::dump_json(line, -1) + "\n");
      } else {
        out.write(row_to_line(kind, row) + "\n");
      }
    };
    RecognisedRows recognised(kind.name);
    const std::uint64_t before = seen.rows;
    const auto on_batch = [&](const RecordBatch& batch) {
      names.add(batch);
      kind.rows(batch, names, emit);
      recognised.add(batch);
    };
    const Status status = read_attempt(attempt, on_batch, health);
    if (status && seen.rows == before) kind.rows(recognised.finish(attempt.info, health), names, emit);
    return status;
  }

  int wrong_kind() const {
    std::string names;
    for (const DumpKind& kind : dump_kinds()) names += (names.empty() ? "" : ", ") + std::string(kind.name);
    return fail({StatusCode::kUsage, "dump: there is no kind '" + kind_ + "'. Kinds: " + names + "."});
  }
  int no_filter(const std::string& option) const {
    return fail({StatusCode::kUsage, "dump: " + option + " cannot select rows of kind " + kind_ + ". Leave it out."});
  }

  std::string run_, kind_ = "ops";
  std::optional<std::uint32_t> step_, rank_, attempt_;
  std::optional<std::string> module_;
  std::uint64_t limit_ = std::numeric_limits<std::uint64_t>::max();
  bool json_ = false;
};

const RegisterVerb<DumpVerb> kDump{{.order = 50,
                                    .name = "dump",
                                    .summary = "The records of a run, row by row",
                                    .exit_statuses = kRowsExitStatuses}};

}  // namespace
}  // namespace nanhunt::cli
