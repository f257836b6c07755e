// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/checkpoints/checkpoint_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "reports/json/json_values.h"
#include "reports/views/numbers.h"
#include "src/checkpoint/folders.h"
#include "src/checkpoint/judge.h"
#include "src/core/text.h"
#include "tools/nanhunt/checkpoints/checkpoint_place.h"
#include "tools/nanhunt/terminal.h"

namespace nanhunt::cli {
namespace {

using checkpoint::Checkpoint;
using checkpoint::Finding;
using checkpoint::Judgement;
using checkpoint::Severity;
using checkpoint::TensorResult;
using nlohmann::json;

constexpr std::size_t kMaxFindings = 12, kMaxUnread = 6;
constexpr std::size_t kMaxSeriesRows = 10;  // of a series

struct Judged {
  std::string path;
  Status unreadable;  // not ok: nothing else is there
  Checkpoint checkpoint;
  std::vector<TensorResult> results;
  Judgement judgement;
  int exit_status = kDone;
  std::string status, headline;
};

std::string finding_words(const Finding& f) { return printable(f.tensor) + " (" + f.numbers + ")"; }

// "2 not judged, first head.q (e8m0)"
std::string unread_words(const Judged& one) {
  std::size_t i = 0;
  const auto& results = one.results;
  while (i < results.size() && (results[i].judged || results[i].problem.empty())) ++i;
  const std::string count = format_count(one.judgement.not_judged) + " not judged";
  if (i == results.size()) return count;
  const checkpoint::Tensor& tensor = one.checkpoint.tensors[i];
  return fmt::format("{}, first {} ({})", count, printable(tensor.name), printable(tensor.dtype_name));
}

std::string headline_of(const Judged& one) {
  const Judgement& j = one.judgement;
  const Finding* first = j.findings.empty() ? nullptr : &j.findings.front();
  if (one.status == "fault" && first->id == "nonfinite-tensor") {
    return fmt::format("{} of {} hold NaN or Inf, first {}", format_count(j.tensors_with_nonfinite),
                       reports::plural(one.checkpoint.tensors.size(), "tensor", "tensors"), finding_words(*first));
  }
  if (one.status == "fault") return fmt::format("{} in {}", first->id, finding_words(*first));
  if (one.status == "warning")
    return fmt::format("{} in {}{}", first->id, finding_words(*first),
                       j.not_judged > 0 ? "; " + unread_words(one) : "");
  if (one.status == "damaged") {
    const auto damaged = std::count_if(one.results.begin(), one.results.end(), [](const auto& r) { return r.damaged; });
    return fmt::format("{} of {} could not be read, and no fault in what is left", format_signed_count(damaged),
                       reports::plural(one.checkpoint.tensors.size(), "tensor", "tensors"));
  }
  const std::string all = reports::plural(one.checkpoint.tensors.size(), "tensor", "tensors");
  if (one.status == "inconclusive")
    return j.not_judged == 0 ? "nothing could be judged: " + all + " found"
                             : "nothing could be judged that can hold a NaN: " + unread_words(one) + " of " + all;
  const std::string finite =
      j.always_finite == 0 ? "" : fmt::format(" ({} that can hold no NaN)", format_count(j.always_finite));
  const std::string rest = one.judgement.partly_judged ? "; not all of it was read" : "";
  if (j.not_judged == 0 && j.judged == 0) return all + " that can hold no NaN" + rest;
  if (j.not_judged == 0) return all + " judged, all of them sound" + finite + rest;
  return fmt::format("only {} of {} judged and sound{}; {}", format_count(j.judged + j.always_finite), all, finite,
                     unread_words(one));
}

// The word and the exit status: a fault beats damage beats inconclusive, as for a run.
void decide(Judged& one, bool fail_on_warning) {
  const Judgement& j = one.judgement;
  const bool warning = j.count(Severity::kWarning) > 0;
  const auto [word, exit_status] = j.count(Severity::kFault) > 0 ? std::pair("fault", kFoundFault)
                                   : warning && fail_on_warning  ? std::pair("warning", kFoundFault)
                                   : j.damaged                   ? std::pair("damaged", kDamagedInput)
                                   : !j.conclusive()             ? std::pair("inconclusive", kInconclusive)
                                   : warning                     ? std::pair("warning", kDone)
                                                                 : std::pair("clean", kDone);
  one.status = word;
  one.exit_status = exit_status;
}

Judged judge_one(const std::string& path, const CheckpointCheckOptions& options) {
  Judged out;
  out.path = path;
  auto read = checkpoint::read_checkpoint(path);
  if (!read) {
    out.unreadable = read.status();
    out.exit_status = kUnreadable;
    out.status = "unreadable";
    out.headline = printable(read.status().message());
    return out;
  }
  out.checkpoint = std::move(*read);
  out.results = compute_statistics(out.checkpoint, checkpoint_progress(path));
  out.judgement = judge(out.checkpoint, out.results);
  decide(out, options.fail_on_warning);
  out.headline = headline_of(out);
  return out;
}

std::string percent(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? "-" : fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string findings_text(const Judgement& judgement) {
  std::string text;
  for (std::size_t i = 0; i < std::min(judgement.findings.size(), kMaxFindings); ++i) {
    const Finding& f = judgement.findings[i];
    text += fmt::format("\n  {}: {} in {}\n    {}\n", severity_word(f.severity), f.id, finding_words(f), f.meaning);
  }
  if (judgement.findings.size() > kMaxFindings)
    text += fmt::format("\n  and {} more findings: --json has all of them\n", judgement.findings.size() - kMaxFindings);
  return text;
}

std::string dtypes_text(const Judgement& judgement) {
  if (judgement.dtypes.empty()) return "";
  std::string text = fmt::format("\n  {:<18} {:>8} {:>15} {:>8} {:>10} {:>9}\n", "dtype", "tensors", "elements", "zero",
                                 "subnormal", "headroom");
  for (const auto& row : judgement.dtypes) {
    text += fmt::format("  {:<18} {:>8} {:>15} {:>8} {:>10} {:>9}\n", printable(row.dtype), row.tensors,
                        format_count(row.elements), row.judged ? percent(row.zeros, row.elements) : "-",
                        row.judged && row.floating ? percent(row.subnormals, row.elements) : "-",
                        row.judged && row.floating && row.amax > 0 ? fmt::format("{} bits", row.headroom_bits) : "-");
  }
  return text;
}

std::string coverage_text(const Judged& one) {
  const Judgement& j = one.judgement;
  std::string text =
      fmt::format("\n  Judged {} of {}", reports::plural(j.judged + j.always_finite, "tensor", "tensors"),
                  format_count(one.checkpoint.tensors.size()));
  std::size_t shown = 0;
  if (j.not_judged > 0) text += "; not judged:";
  text += "\n";
  for (std::size_t i = 0; i < one.results.size() && j.not_judged > 0; ++i) {
    if (one.results[i].judged || one.results[i].problem.empty()) continue;
    if (++shown > kMaxUnread) continue;
    const auto& tensor = one.checkpoint.tensors[i];
    text += fmt::format("    not-judged: {} ({}): {}\n", printable(tensor.name),
                        printable(tensor.dtype_name.empty() ? "no dtype" : tensor.dtype_name), one.results[i].problem);
  }
  if (shown > kMaxUnread) text += fmt::format("    and {} more\n", shown - kMaxUnread);
  for (const auto& note : one.checkpoint.notes) text += "  " + printable(note.text) + "\n";
  return text;
}

std::string tensors_text(const Judged& one) {
  std::string text = "\n";
  for (std::size_t i = 0; i < one.results.size(); ++i) {
    const auto& tensor = one.checkpoint.tensors[i];
    const TensorResult& r = one.results[i];
    text += fmt::format("  {}  {} {}", printable(tensor.name), printable(tensor.dtype_name), format_dims(tensor.sizes));
    if (r.judged)
      text += fmt::format("  {} NaN, {} +Inf, {} -Inf, {} zero, {} subnormal, largest {}", r.stats.nan, r.stats.pos_inf,
                          r.stats.neg_inf, r.stats.zero, r.stats.subnormal, format_number(r.stats.amax));
    else
      text += "  not judged" + (r.problem.empty() ? std::string() : ": " + r.problem);
    text += "\n";
  }
  return text;
}

std::string text_of(const Judged& one, const CheckpointCheckOptions& options) {
  std::string text = fmt::format("{}: {}\n", one.status, one.headline);
  if (!one.unreadable) return text;
  text += findings_text(one.judgement) + dtypes_text(one.judgement) + coverage_text(one);
  return options.full ? text + tensors_text(one) : text;
}

json finding_to_json(const Finding& f) {
  return {{"severity", severity_word(f.severity)},   {"id", f.id},           {"tensor", reports::json_text(f.tensor)},
          {"count", reports::json_integer(f.count)}, {"numbers", f.numbers}, {"meaning", f.meaning}};
}

json sizes_to_json(const std::vector<std::int64_t>& sizes) { return reports::json_integers(sizes); }

json tensor_to_json(const checkpoint::Tensor& tensor, const TensorResult& r) {
  json out = {{"name", reports::json_text(tensor.name)},
              {"dtype", reports::json_text(tensor.dtype_name)},
              {"shape", sizes_to_json(tensor.sizes)},
              {"judged", r.judged},
              {"problem", reports::json_text_or_null(r.problem)}};
  if (!r.judged) return out;
  out.update({{"elements", reports::json_integer(r.stats.numel)},
              {"nan", reports::json_integer(r.stats.nan)},
              {"pos_inf", reports::json_integer(r.stats.pos_inf)},
              {"neg_inf", reports::json_integer(r.stats.neg_inf)},
              {"zero", reports::json_integer(r.stats.zero)},
              {"subnormal", reports::json_integer(r.stats.subnormal)},
              {"amax", reports::json_number(r.stats.amax)},
              {"first_nonfinite", r.first.empty() ? json() : sizes_to_json(r.first)}});
  return out;
}

std::string_view note_kind(checkpoint::NoteKind kind) {
  switch (kind) {
    case checkpoint::NoteKind::kNotRun:
      return "not_run";
    case checkpoint::NoteKind::kNotRead:
      return "not_read";
    case checkpoint::NoteKind::kDamaged:
      return "damaged";
  }
  return "";
}

json to_json(const Judged& one, bool full) {
  json findings = json::array(), dtypes = json::array(), notes = json::array(), unread = json::array(),
       tensors = json::array();
  for (const Finding& f : one.judgement.findings) findings.push_back(finding_to_json(f));
  for (const auto& row : one.judgement.dtypes) {
    const bool floating = row.judged && row.floating;
    dtypes.push_back({{"dtype", reports::json_text(row.dtype)},
                      {"tensors", row.tensors},
                      {"elements", reports::json_count(row.elements)},
                      {"zeros", row.judged ? reports::json_count(row.zeros) : json()},
                      {"subnormals", floating ? reports::json_count(row.subnormals) : json()},
                      {"amax", row.judged ? reports::json_number(row.amax) : json()},
                      {"headroom_bits", floating && row.amax > 0 ? json(row.headroom_bits) : json()}});
  }
  for (const auto& note : one.checkpoint.notes)
    notes.push_back({{"kind", note_kind(note.kind)}, {"text", reports::json_text(note.text)}});
  for (std::size_t i = 0; i < one.results.size(); ++i) {
    const auto& tensor = one.checkpoint.tensors[i];
    if (!one.results[i].judged && !one.results[i].problem.empty())
      unread.push_back({{"tensor", reports::json_text(tensor.name)},
                        {"dtype", reports::json_text(tensor.dtype_name)},
                        {"problem", one.results[i].problem}});
    if (full) tensors.push_back(tensor_to_json(tensor, one.results[i]));
  }
  json out = {{"path", reports::json_text(one.path)},
              {"format", reports::json_text_or_null(one.checkpoint.format)},
              {"status", one.status},
              {"exit_status", one.exit_status},
              {"headline", reports::json_text(one.headline)},
              {"damaged", one.judgement.damaged},
              {"findings", findings},
              {"dtypes", dtypes},
              {"notes", notes},
              {"coverage",
               {{"tensors", one.checkpoint.tensors.size()},
                {"judged", one.judgement.judged},
                {"always_finite", one.judgement.always_finite},
                {"not_judged", one.judgement.not_judged},
                {"unread", unread}}}};
  if (full) out["tensors"] = tensors;
  return out;
}

// What a series shows of each checkpoint.
struct Row {
  std::string path, status, headline;
  bool partly_judged = false;
};

// Newest first.
struct Series {
  std::vector<Row> rows;
  int exit_status = kDone;                            // of the newest, or of a bad one without a number
  std::optional<std::size_t> newest_good, first_bad;  // `first_bad`: the oldest fault after the newest good one
  std::optional<std::size_t> bad_beside;              // "best_model", which is older or newer than none

  void add(const Judged& one) {
    if (!newest_good && one.exit_status == kDone) newest_good = rows.size();
    if (!newest_good && one.exit_status == kFoundFault) first_bad = rows.size();
    rows.push_back({one.path, one.status, one.headline, one.judgement.partly_judged});
    if (rows.size() == 1) exit_status = one.exit_status;
    const std::string last = name(rows.size() - 1);
    const bool numbered = last.find_first_of("0123456789") != std::string::npos;
    if (rows.size() == 1 || numbered || one.exit_status != kFoundFault || bad_beside) return;
    bad_beside = rows.size() - 1;
    exit_status = kFoundFault;
  }
  const std::string& status() const { return rows[exit_status == kFoundFault ? bad_beside.value_or(0) : 0].status; }
  // Without the folder that all of them share.
  std::string name(std::size_t i) const { return printable(std::filesystem::path(rows[i].path).filename().string()); }
  std::string judged_name(std::size_t i) const {
    return name(i) + (rows[i].partly_judged ? " (not all of it judged)" : "");
  }
};

std::string series_headline(const Series& series) {
  const std::string all = reports::plural(series.rows.size(), "checkpoint", "checkpoints");
  const std::string& status = series.status();
  const std::string beside = series.bad_beside ? "; " + series.name(*series.bad_beside) + " beside it is bad" : "";
  if (series.newest_good == std::size_t{0})
    return fmt::format("{}: the newest of {} is good: {}{}", status, all, series.judged_name(0), beside);
  const std::string good =
      series.newest_good ? "newest good one " + series.judged_name(*series.newest_good) : "none is good";
  const std::string bad = series.first_bad ? ", first bad one " + series.name(*series.first_bad) : "";
  return fmt::format("{}: of {}, {}{}{}", status, all, good, bad, beside);
}

// The newest, and those around the place where they turned bad.
std::string series_rows(const Series& series) {
  const std::size_t turn = series.newest_good.value_or(series.rows.size() - 1);
  std::string text;
  std::size_t left_out = 0;
  for (std::size_t i = 0; i < series.rows.size(); ++i) {
    const bool near =
        i < 3 || i == series.bad_beside || (i + 3 > turn && i < turn + 3) || series.rows.size() <= kMaxSeriesRows;
    if (!near) {
      ++left_out;
      continue;
    }
    if (left_out > 0) text += fmt::format("  ... {} more\n", left_out);
    left_out = 0;
    text += fmt::format("  {:<13} {}: {}\n", series.rows[i].status, series.name(i), series.rows[i].headline);
  }
  return text + (left_out > 0 ? fmt::format("  ... {} more\n", left_out) : "");
}

std::string series_text(const Series& series, const Finding* first) {
  std::string text = series_headline(series) + "\n\n" + series_rows(series);
  if (first != nullptr)
    text += fmt::format("\n  {}: {} in {}\n    {}\n", severity_word(first->severity), first->id, finding_words(*first),
                        first->meaning);
  if (series.newest_good) text += "\nNewest good one: " + printable(series.rows[*series.newest_good].path) + "\n";
  if (series.newest_good && series.first_bad)
    text += "Next: nanhunt diff " + printable(shell_word(series.rows[*series.newest_good].path)) + " " +
            printable(shell_word(series.rows[*series.first_bad].path)) + "\n";
  return text;
}

std::string series_json(const std::string& place, const Series& series, const json& all) {
  const auto path_of = [&](const std::optional<std::size_t>& i) {
    return i ? reports::json_text(series.rows[*i].path) : json();
  };
  const json answer = {{"schema", "nanhunt.checkpoint"},
                       {"schema_version", 1},
                       {"path", reports::json_text(place)},
                       {"status", series.status()},
                       {"exit_status", series.exit_status},
                       {"headline", reports::json_text(series.rows[series.bad_beside.value_or(0)].headline)},
                       {"newest_good", path_of(series.newest_good)},
                       {"first_bad", path_of(series.first_bad)},
                       {"checkpoints", all}};
  return reports::dump_json(answer) + "\n";
}

}  // namespace

int check_checkpoints(const std::string& place, const std::vector<std::string>& paths,
                      const CheckpointCheckOptions& options) {
  Series series;
  json all = json::array();
  std::string newest;
  std::optional<Finding> first;
  for (const std::string& path : paths) {
    const Judged one = judge_one(path, options);
    if (series.rows.empty()) {
      if (!one.unreadable && paths.size() == 1 && !options.json) return fail(one.unreadable);
      newest = text_of(one, options);
      if (one.exit_status == kFoundFault) first = one.judgement.findings.front();
    }
    series.add(one);
    if (options.json) all.push_back(to_json(one, options.full));
  }
  const int status = series.exit_status;
  if (options.json) return print_and_return(series_json(place, series, all), status);
  if (paths.size() > 1) {
    const std::string text = series_text(series, first ? &*first : nullptr);
    return print_and_return(options.full ? text + "\nThe newest\n" + newest : text, status);
  }
  if (status == kFoundFault)
    newest +=
        "\nNext: nanhunt diff OLDER " + printable(shell_word(place)) + " shows what changed since an older one.\n";
  return print_and_return(newest, status);
}

}  // namespace nanhunt::cli
