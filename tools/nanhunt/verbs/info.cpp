// SPDX-License-Identifier: Apache-2.0
// nanhunt info: what ran and what was recorded of it, without judging it.
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reports/json/json_run.h"
#include "reports/json/json_values.h"
#include "reports/views/numbers.h"
#include "reports/text/text_layout.h"
#include "src/core/text.h"
#include "src/trace/record_kind.h"
#include "src/trace/trace_names.h"
#include "tools/nanhunt/attempts.h"
#include "tools/nanhunt/places/run_place.h"
#include "tools/nanhunt/terminal.h"
#include "tools/nanhunt/verb.h"

namespace nanhunt::cli {
namespace {

using namespace reports;
using nlohmann::json;

constexpr std::size_t kOpNamesShown = 8;
constexpr std::size_t kOpNamesInJson = 1024;
constexpr std::size_t kLabelWidth = 11;

struct Contents {
  std::array<std::uint64_t, trace::kKindCount> rows{};  // by type number - 1
  std::uint64_t bad_values = 0, dropped = 0;
  std::uint64_t steps = 0, skipped = 0;
  std::uint32_t first_step = 0, last_step = 0;
  std::map<std::string, std::uint64_t> by_op;

  std::uint64_t of(const trace::RecordKind& kind) const { return rows[kind.type - 1u]; }
};

struct Summary {
  AttemptTrace attempt;
  Contents contents;
  TraceHealth health;
  Status status;
  bool readable() const { return status.is_ok() || status.code() == StatusCode::kDamaged; }
};

void count_batch(const RecordBatch& batch, Contents& c, std::map<StringId, std::uint64_t>& ops) {
  for (const trace::RecordKind& kind : trace::record_kinds()) c.rows[kind.type - 1u] += kind.count(batch);
  for (const DropRecord& drop : batch.drops) c.dropped += drop.ops + drop.values + drop.other;
  for (const ValueRecord& value : batch.values) c.bad_values += value.has_stats && value.stats.any_nonfinite;
  for (const OpRecord& op : batch.ops) ++ops[op.op];
  for (const StepRecord& step : batch.steps) {
    if (c.steps == 0) c.first_step = c.last_step = step.step;
    c.first_step = std::min(c.first_step, step.step);
    c.last_step = std::max(c.last_step, step.step);
    ++c.steps;
    c.skipped += step.skipped;
  }
}

Summary summarise(AttemptTrace attempt) {
  Summary summary;
  std::map<StringId, std::uint64_t> ops;
  trace::TraceNames names;
  summary.status = read_attempt(
      attempt,
      [&](const RecordBatch& batch) {
        RecordBatch strings;  // names only: values and ops need not be remembered
        strings.strings = batch.strings;
        names.add(strings);
        count_batch(batch, summary.contents, ops);
      },
      summary.health);
  for (const auto& [id, count] : ops) summary.contents.by_op[names.text(id)] += count;
  summary.attempt = std::move(attempt);
  return summary;
}

// Most frequent first, equal ones by name.
std::vector<std::pair<std::string, std::uint64_t>> ranked(const std::map<std::string, std::uint64_t>& by_op) {
  std::vector<std::pair<std::string, std::uint64_t>> list(by_op.begin(), by_op.end());
  std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return list;
}

json to_json(const Summary& s) {
  const Contents& c = s.contents;
  json ops = json::array();
  for (const auto& [name, count] : ranked(c.by_op)) {
    if (ops.size() == kOpNamesInJson) break;
    ops.push_back({{"op", json_text(name)}, {"count", json_count(count)}});
  }
  json contents = {{"steps", json_count(c.steps)},
                   {"first_step", c.steps == 0 ? json() : json(c.first_step)},
                   {"last_step", c.steps == 0 ? json() : json(c.last_step)},
                   {"skipped_steps", json_count(c.skipped)},
                   {"nonfinite_values", json_count(c.bad_values)},
                   {"unheard_steps", json_count(c.rows[trace::kUnheard.type - 1u])},
                   {"dropped", json_count(c.dropped)},
                   {"retired_steps", json_count(s.health.steps_retired)},
                   {"retired_rows", json_count(s.health.rows_retired)},
                   {"op_counts", std::move(ops)}};
  for (const trace::RecordKind& kind : trace::record_kinds()) {
    if (!kind.counted.empty()) contents[std::string(kind.counted)] = json_count(c.of(kind));
  }
  return {{"run", run_info_to_json(s.attempt.info)},
          {"has_run_json", s.attempt.has_info},
          {"readable", s.readable()},
          {"error", s.status.is_ok() ? json() : json_text(s.status.message())},
          {"health", health_to_json(s.health)},
          {"contents", std::move(contents)}};
}

std::string ops_text(const Contents& c) {
  std::string text = format_count(c.of(trace::kOps));
  const auto list = ranked(c.by_op);
  if (list.empty()) return text;
  text += " of " + plural(list.size(), "kind", "kinds") + ": ";
  for (std::size_t i = 0; i < list.size() && i < kOpNamesShown; ++i) {
    text += (i == 0 ? "" : ", ") + clip(list[i].first, kNameLimit) + " " + format_count(list[i].second);
  }
  return text + (list.size() > kOpNamesShown ? ", …" : "");
}

std::string steps_text(const Contents& c) {
  if (c.steps == 0) return "0 finished";
  std::string text =
      format_count(c.steps) + " finished, " + format_count(c.first_step) + " to " + format_count(c.last_step);
  return c.skipped == 0 ? text : text + ", " + format_count(c.skipped) + " skipped";
}

std::string health_text(const Summary& s) {
  if (!s.readable()) return "unreadable: " + printable(s.status.message());
  std::string text = s.health.damaged() ? "damaged: " + describe_damage(s.health) : "intact";
  return text + (s.health.clean_end ? ", clean end" : ", no clean end: the run goes on, or it was killed");
}

void write_text(TextLayout& out, const Summary& s) {
  const RunInfo& info = s.attempt.info;
  out.raw(out.ink("rank " + std::to_string(info.rank) + ", attempt " + std::to_string(info.attempt), Ink::kBold));
  const auto fact = [&](std::string_view label, const std::string& value) {
    if (!value.empty()) out.fact(label, value, kLabelWidth);
  };
  if (!s.attempt.has_info) fact("run.json", "missing or unreadable: what ran is not known");
  fact("Command", clip(join(info.command, " "), kSentenceLimit));
  fact("Scenario", clip(info.scenario, kNameLimit));
  fact("Framework", clip(info.framework, kNameLimit));
  fact("Device", clip(info.device, kNameLimit));
  fact("Formats", clip(join(info.dtypes, ", "), kNameLimit));
  fact("Level", clip(info.level, kNameLimit));
  fact("Started", clip(info.started, kNameLimit));
  fact("Steps", steps_text(s.contents));
  fact("Operations", ops_text(s.contents));
  fact("Values", format_count(s.contents.of(trace::kValues)) + ", " + format_count(s.contents.bad_values) + " not finite");
  const Contents& c = s.contents;
  // In the order in which people care for them.
  const auto count = [&](std::string_view label, const trace::RecordKind& kind, auto say) {
    if (const std::uint64_t rows = c.of(kind); rows != 0) fact(label, say(rows));
  };
  count("Health", trace::kHealth, [](auto n) { return plural(n, "step", "steps") + " summed up"; });
  count("Unheard", trace::kUnheard, [](auto n) { return plural(n, "bad step", "bad steps") + " without operations"; });
  count("Changed", trace::kChanged, [](auto n) { return plural(n, "value", "values") + " that nothing watched wrote"; });
  count("Probes", trace::kProbes, [](auto n) { return format_count(n) + ": origins computed again"; });
  count("Collectives", trace::kCollectives,
        [](auto n) { return format_count(n) + ": calls in which ranks exchanged tensors"; });
  count("Kernels", trace::kKernels, [](auto n) { return plural(n, "row", "rows") + " of what the GPU ran for ops"; });
  count("Captures", trace::kCaptures, [](auto n) { return plural(n, "file", "files"); });
  count("Tried fixes", trace::kExperiments, [](auto n) { return format_count(n); });
  if (s.health.steps_retired != 0) {
    fact("Retired", plural(s.health.steps_retired, "step", "steps") + " to keep the trace within its limit");
  }
  const std::uint64_t in_damage = std::min(s.contents.dropped, lost_before_salvage(info).rows_lost);
  if (const std::uint64_t dropped = s.contents.dropped - in_damage; dropped != 0) {
    fact("Dropped", plural(dropped, "record", "records") + " while recording");
  }
  if (in_damage != 0) fact("Salvaged", "without " + plural(in_damage, "record", "records") + " lost in damage");
  fact("Trace", plural(s.health.segments, "segment", "segments") + ", " + plural(s.health.chunks, "chunk", "chunks") +
                    ", " + plural(s.health.rows, "row", "rows") + ", " + format_bytes(s.health.bytes));
  fact("Health", health_text(s));
}

class InfoVerb final : public Verb {
 public:
  void declare(Options options) override {
    options.add_run("RUN", run_, "Run folder, attempt folder or .nht file").required();
    options.add_flag("--json", json_, "The same as JSON");
  }

  int run() override {
    auto attempts = find_attempts(run_);
    if (!attempts) return fail(attempts.status());
    std::vector<Summary> summaries;
    bool any_readable = false;
    for (AttemptTrace& attempt : *attempts) {
      summaries.push_back(summarise(std::move(attempt)));
      any_readable = any_readable || summaries.back().readable();
    }
    if (!any_readable) return fail(summaries.front().status);
    const bool damaged = std::any_of(summaries.begin(), summaries.end(),
                                     [](const Summary& s) { return !s.readable() || s.health.damaged(); });
    const int printed = print_and_return(json_ ? as_json(summaries) : as_text(summaries));
    say(damaged ? "next: `nanhunt doctor " + shell_word(run_name(run_)) + "` says what was lost and where."
                : "next: `nanhunt report " + shell_word(run_name(run_)) + "` says what to make of it.");
    return printed;
  }

 private:
  static std::string as_json(const std::vector<Summary>& summaries) {
    json list = json::array();
    for (const Summary& s : summaries) list.push_back(to_json(s));
    return dump_json({{"schema", "nanhunt.info"}, {"schema_version", 1}, {"attempts", std::move(list)}}) + "\n";
  }
  static std::string as_text(const std::vector<Summary>& summaries) {
    TextLayout out(stdout_has_colour(), stdout_width());
    for (std::size_t i = 0; i < summaries.size(); ++i) {
      if (i != 0) out.blank();
      write_text(out, summaries[i]);
    }
    return out.take();
  }

  std::string run_;
  bool json_ = false;
};

const RegisterVerb<InfoVerb> kInfo{{.order = 40,
                                    .name = "info",
                                    .summary = "What ran, how much was recorded, whether the trace is whole",
                                    .exit_statuses = "  0  done\n  2  wrong usage\n  3  the run cannot be read\n"
                                                     "  6  stdout could not be written"}};

}  // namespace
}  // namespace nanhunt::cli
