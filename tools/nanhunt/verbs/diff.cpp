// SPDX-License-Identifier: Apache-2.0
// nanhunt diff: the first place where the health of two runs parts.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "reports/json/json_values.h"
#include "reports/views/numbers.h"
#include "src/analyze/diff/diff.h"
#include "src/analyze/wording/text.h"
#include "src/core/text.h"
#include "tools/nanhunt/attempts.h"
#include "tools/nanhunt/checkpoints/checkpoint_diff.h"
#include "tools/nanhunt/checkpoints/checkpoint_place.h"
#include "tools/nanhunt/terminal.h"
#include "tools/nanhunt/verb.h"

namespace nanhunt::cli {
namespace {

using namespace analyze;
using nlohmann::json;

constexpr char kToleranceHelp[] =
    "Two numbers are the same within a relative tolerance of FACTOR * 8 * (u_stored + u_computed * sqrt(terms)) * "
    "sqrt(1 "
    "+ ops compared so far), at most 0.5. u is half a unit in the last place (fp16 4.9e-4, bf16 3.9e-3, fp32 6e-8), of "
    "the coarsest format in which the runs differ; terms is how many numbers the op sums up. 0 compares exactly";

json value_to_json(const std::optional<DiffValue>& value) {
  if (!value || !value->known) return nullptr;
  return {{"dtype", dtype_name(value->dtype)},
          {"numel", reports::json_integer(value->numel)},
          {"nan", reports::json_integer(value->nan)},
          {"pos_inf", reports::json_integer(value->pos_inf)},
          {"neg_inf", reports::json_integer(value->neg_inf)},
          {"zero", reports::json_integer(value->zero)},
          {"amax", value->counted ? reports::json_number(value->amax) : json()},
          {"sum_sq", value->summed ? reports::json_number(value->sum_sq) : json()}};
}

json difference_to_json(const Difference* d) {
  if (d == nullptr) return nullptr;
  return {{"kind", diff_kind_name(d->kind)},
          {"step", d->step},
          {"micro_batch", d->micro_batch},
          {"phase", phase_name(d->phase)},
          {"module", reports::json_text_or_null(d->module)},
          {"op", reports::json_text_or_null(d->op)},
          {"output", d->output},
          {"seq_a", reports::json_seq(d->seq_a)},
          {"seq_b", reports::json_seq(d->seq_b)},
          {"what", reports::json_text_or_null(d->what)},
          {"number_a", reports::json_number(d->number_a)},
          {"number_b", reports::json_number(d->number_b)},
          {"tolerance", reports::json_number(d->tolerance)},
          {"value_a", value_to_json(d->value_a)},
          {"value_b", value_to_json(d->value_b)}};
}

json side_to_json(const std::string& run, const DiffSide& side) {
  return {{"run", reports::json_text(run)},
          {"rank", side.info.rank},
          {"attempt", side.info.attempt},
          {"level", reports::json_text_or_null(side.info.level)},
          {"steps", reports::json_count(side.steps)},
          {"ops", reports::json_count(side.ops)},
          {"last_step", side.last_step ? json(*side.last_step) : json()},
          {"damaged", side.health.damaged()},
          {"chunks_lost", reports::json_count(side.health.chunks_lost)},
          {"rows_lost", reports::json_count(side.health.rows_lost)},
          {"clean_end", side.health.clean_end}};
}

std::string place_text(const Difference& d) {
  std::string text = "step " + std::to_string(d.step);
  if (d.micro_batch > 0) text += fmt::format(", micro-batch {}", d.micro_batch);
  text += ", phase " + std::string(phase_name(d.phase));
  if (!d.op.empty()) text += ": " + printable(d.op);
  if (!d.module.empty()) text += (d.op.empty() ? ": " : " in ") + printable(d.module);
  return text;
}

std::string value_text(const std::optional<DiffValue>& value) {
  if (!value) return "has no such op";
  if (!value->known) return "was not read";
  std::string text = fmt::format("{} [{}]: ", dtype_name(value->dtype),
                                 reports::plural(static_cast<std::uint64_t>(value->numel), "element", "elements"));
  if (!value->counted) return text + (value->any_nonfinite ? "NaN or Inf" : "finite");
  text += value->any_nonfinite ? fmt::format("{} NaN, {} +Inf, {} -Inf", value->nan, value->pos_inf, value->neg_inf)
                               : std::string("finite");
  return text + fmt::format(", largest {}, {} zeros", number(value->amax), value->zero);
}

std::string_view kind_words(DiffKind kind) {
  switch (kind) {
    case DiffKind::kBadness: return "bad numbers in one run only";
    case DiffKind::kStatistics: return "statistics apart beyond rounding";
    case DiffKind::kLoss: return "loss or gradient norm apart";
    case DiffKind::kSkip: return "a step was skipped in one run only";
    case DiffKind::kScale: return "loss scales differ";
    case DiffKind::kLearningRate: return "learning rates differ";
    case DiffKind::kShape: return "results of another shape";
    case DiffKind::kOnlyInA: return "ops only in A";
    case DiffKind::kOnlyInB: return "ops only in B";
  }
  return "";
}

std::string difference_text(const Difference& d) {
  std::string text;
  if (d.value_a || d.value_b) {
    text += "  A  " + value_text(d.value_a) + "\n  B  " + value_text(d.value_b) + "\n";
  }
  if (d.what == "badness" || d.what.empty()) return text;
  text += fmt::format("  {}: {} in A, {} in B", d.what, number(d.number_a), number(d.number_b));
  if (d.tolerance > 0) text += fmt::format(" (tolerance {:.2g})", d.tolerance);
  return text + "\n";
}

std::string level_text(const DiffSide& side) {
  return side.info.level.empty() ? "a level that is not known" : "level " + printable(side.info.level);
}

// Why a run has no operations, or what records them; "": not known.
std::string missing_ops_text(const DiffResult& r) {
  std::string text;
  for (const auto& [name, side] : {std::pair("A", &r.a), std::pair("B", &r.b)}) {
    if (side->why_no_tap.empty()) continue;
    text += fmt::format("  Those of {} were not watched: the tap is missing, because {}.\n", name,
                        printable(side->why_no_tap));
  }
  const bool more = text.empty() && r.a.info.level != "ops" && r.b.info.level != "ops";
  return more ? "  Level ops records them.\n" : text;
}

std::string as_text(const std::string& run_a, const std::string& run_b, const DiffResult& r) {
  std::string text;
  if (const Difference* first = r.first_health(); first != nullptr) {
    text += fmt::format("Health parts at {}\n  {}\n", place_text(*first), kind_words(first->kind));
    text += difference_text(*first);
  } else if (r.steps_compared == 0) {
    text += "The runs have no step in common: there was nothing to compare.\n";
  } else {
    text += fmt::format("No difference in health over {} and {}\n", reports::plural(r.steps_compared, "step", "steps"),
                        reports::plural(r.ops_compared, "op", "ops"));
  }
  text += fmt::format("\n  A  {}\n  B  {}\n", printable(run_a), printable(run_b));
  bool any = false;
  for (const std::optional<Difference>& one : r.first) {
    if (!one) continue;
    if (!any) text += "\nFirst of each kind\n";
    any = true;
    text += fmt::format("  {:<34} {:>9}   first at {}\n", kind_words(one->kind),
                        r.counts[static_cast<std::size_t>(one->kind)], place_text(*one));
  }
  text += "\nCompared\n";
  text += fmt::format("  {} and {}\n", reports::plural(r.steps_compared, "step", "steps"),
                      reports::plural(r.ops_compared, "op", "ops"));
  const auto only = [&](const char* name, std::uint64_t steps) {
    if (steps > 0) text += fmt::format("  {} that only {} has\n", reports::plural(steps, "step", "steps"), name);
  };
  if (r.levels_differ) {
    text += fmt::format(
        "  The runs were watched at different levels: A at {}, B at {}. Of each step the loss, skips, loss scale and\n"
        "  learning rate were compared; {}.\n",
        level_text(r.a), level_text(r.b),
        r.steps_with_ops == 0 ? "operations were not, for no step has them in both traces"
                              : "operations in " + reports::plural(r.steps_with_ops, "step", "steps") +
                                    ", where both traces have those of a phase");
    if (r.steps_with_ops == 0) text += missing_ops_text(r);
    const auto left = [&](const char* name, std::uint64_t ops) {
      if (ops > 0)
        text += fmt::format("  {} of {} had nothing to be compared with\n", reports::plural(ops, "op", "ops"), name);
    };
    left("A", r.ops_unshared_a);
    left("B", r.ops_unshared_b);
  }
  if (!r.levels_differ && r.steps_compared > 0 && r.steps_with_ops == 0) {
    text +=
        "  Of each step the loss, skips, loss scale and learning rate were compared; operations were not, for no step "
        "has\n"
        "  them in both traces.\n" + missing_ops_text(r);
  }
  only("A", r.steps_only_a);
  only("B", r.steps_only_b);
  if (r.loosely_aligned > 0) {
    text += fmt::format("  {} of modules differ in more than 256 ops and were aligned op by op of the same name\n",
                        reports::plural(r.loosely_aligned, "phase", "phases"));
  }
  for (const auto& [name, side] : {std::pair("A", &r.a), std::pair("B", &r.b)}) {
    const std::string damage = describe_damage(side->health);
    if (!damage.empty()) text += fmt::format("  {} is damaged: {}\n", name, damage);
  }
  return text;
}

std::string as_json(const std::string& run_a, const std::string& run_b, const DiffResult& r) {
  json first = json::object(), counts = json::object();
  for (std::size_t i = 0; i < kDiffKinds; ++i) {
    const std::string kind(diff_kind_name(static_cast<DiffKind>(i)));
    first[kind] = difference_to_json(r.first[i] ? &*r.first[i] : nullptr);
    counts[kind] = reports::json_count(r.counts[i]);
  }
  const json answer = {{"schema", "nanhunt.diff"},
                       {"schema_version", 1},
                       {"same", r.first_health() == nullptr},
                       {"difference", difference_to_json(r.first_health())},
                       {"first", std::move(first)},
                       {"counts", std::move(counts)},
                       {"steps_compared", reports::json_count(r.steps_compared)},
                       {"ops_compared", reports::json_count(r.ops_compared)},
                       {"steps_only_a", reports::json_count(r.steps_only_a)},
                       {"steps_only_b", reports::json_count(r.steps_only_b)},
                       {"levels_differ", r.levels_differ},
                       {"steps_with_ops", reports::json_count(r.steps_with_ops)},
                       {"ops_unshared_a", reports::json_count(r.ops_unshared_a)},
                       {"ops_unshared_b", reports::json_count(r.ops_unshared_b)},
                       {"loosely_aligned", reports::json_count(r.loosely_aligned)},
                       {"a", side_to_json(run_a, r.a)},
                       {"b", side_to_json(run_b, r.b)}};
  return reports::dump_json(answer) + "\n";
}

class DiffVerb final : public Verb {
 public:
  void declare(Options options) override {
    options.add_run("RUN_A", run_a_, "A checkpoint; or a run folder, attempt folder or .nht file").required();
    options
        .add_run("RUN_B", run_b_,
                 "The one to compare it with; may be the same folder with another attempt; or another checkpoint")
        .required();
    of_runs_.push_back(options.add("--rank", rank_, "Which rank").show_default());
    of_runs_.push_back(options.add("--attempt-a", attempt_a_, "Attempt of RUN_A (default: the newest)"));
    of_runs_.push_back(options.add("--attempt-b", attempt_b_, "Attempt of RUN_B (default: the newest)"));
    of_runs_.push_back(
        options.add("--tolerance", tolerance_, kToleranceHelp).value_name("FACTOR").in_range(0.0, 1e6).show_default());
    options.add_flag("--json", json_, "The answer as JSON");
  }

  int run() override {
    const auto checkpoints_a = checkpoints_at(run_a_), checkpoints_b = checkpoints_at(run_b_);
    if (!checkpoints_a.empty() || !checkpoints_b.empty()) return run_on_checkpoints(checkpoints_a, checkpoints_b);
    auto a = choose(run_a_, attempt_a_), b = choose(run_b_, attempt_b_);
    if (!a) return fail(a.status());
    if (!b) return fail(b.status());
    const auto result = diff_attempts(*a, *b, {.tolerance = tolerance_});
    if (!result) return fail(result.status());
    for (const auto& [run, side] : {std::pair(&run_a_, &result->a), std::pair(&run_b_, &result->b)}) {
      if (side->health.damaged()) {
        say(*run + " is damaged; what could be read was compared. `nanhunt doctor " + shell_word(*run) + "` says what was lost.");
      }
    }
    return print_and_return(json_ ? as_json(run_a_, run_b_, *result) : as_text(run_a_, run_b_, *result));
  }

 private:
  int run_on_checkpoints(const std::vector<std::string>& a, const std::vector<std::string>& b) const {
    for (const Option& option : of_runs_) {
      if (option.given())
        return fail({StatusCode::kUsage, option.name() + " is for recorded runs; checkpoints have no such thing."});
    }
    for (const auto& [path, found] : {std::pair(&run_a_, &a), std::pair(&run_b_, &b)}) {
      std::error_code ignored;
      if (found->empty() && !std::filesystem::exists(*path, ignored))
        return fail({StatusCode::kNotFound, "'" + *path + "' does not exist. Check the path."});
      if (found->empty())
        return fail({StatusCode::kUsage,
                     "'" + *path + "' is no checkpoint, and the other one is. Name two runs or two checkpoints."});
      if (found->size() > 1)
        return fail({StatusCode::kUsage,
                     "'" + *path + "' holds several checkpoints. Name one of them, such as '" + found->front() + "'."});
    }
    return diff_checkpoints(a.front(), b.front(), {json_});
  }

  Result<AttemptTrace> choose(const std::string& run, std::optional<std::uint32_t> attempt) const {
    // A single attempt or file is of whatever rank it is.
    auto found = choose_attempts(run, rank_, attempt);
    if (!found) return found.status();
    return std::move(found->front());
  }

  std::string run_a_, run_b_;
  std::optional<std::uint32_t> rank_, attempt_a_, attempt_b_;
  double tolerance_ = 1;
  std::vector<Option> of_runs_;
  bool json_ = false;
};

const RegisterVerb<DiffVerb> kDiff{
    {.order = 55,
     .name = "diff",
     .summary = "The first place where the health of two runs parts; what changed between two checkpoints",
     .exit_statuses = "  0  compared, whatever came of it\n"
                      "  2  wrong usage\n"
                      "  3  one of the runs cannot be read\n"
                      "  6  the answer could not be written"}};

}  // namespace
}  // namespace nanhunt::cli
