// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/checkpoints/checkpoint_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "reports/json/json_values.h"
#include "reports/views/numbers.h"
#include "src/checkpoint/compare.h"
#include "src/checkpoint/folders.h"
#include "src/checkpoint/judge.h"
#include "src/core/text.h"
#include "tools/nanhunt/checkpoints/checkpoint_place.h"
#include "tools/nanhunt/terminal.h"

namespace nanhunt::cli {
namespace {

using checkpoint::Comparison;
using checkpoint::TensorChange;
using nlohmann::json;

constexpr std::size_t kMaxRows = 12, kMaxNames = 6;

// Worst first: not finite, then shape, dtype, how much changed; equal ones by their order.
std::vector<const TensorChange*> ranked(const Comparison& c) {
  std::vector<const TensorChange*> out;
  for (const TensorChange& one : c.tensors)
    if (one.changed > 0 || one.shapes_differ() || one.dtypes_differ() || !one.compared) out.push_back(&one);
  const auto kind = [](const TensorChange& t) {
    return t.newly_nonfinite > 0 ? 0 : t.shapes_differ() ? 1 : t.dtypes_differ() ? 2 : t.compared ? 3 : 4;
  };
  std::stable_sort(out.begin(), out.end(), [&](const TensorChange* a, const TensorChange* b) {
    if (kind(*a) != kind(*b)) return kind(*a) < kind(*b);
    return kind(*a) == 3 ? a->relative_norm > b->relative_norm : false;
  });
  return out;
}

std::string change_text(const TensorChange& t) {
  std::string text = printable(t.name);
  if (t.shapes_differ())
    return text + fmt::format(": shape {} in A, {} in B", format_dims(t.sizes_a), format_dims(t.sizes_b));
  if (t.dtypes_differ()) text += fmt::format(": {} in A, {} in B", printable(t.dtype_a), printable(t.dtype_b));
  if (!t.compared) return text + ": not compared, " + (t.problem.empty() ? "a format that is not read" : t.problem);
  text += fmt::format(": {} of {} changed", format_signed_count(t.changed), format_signed_count(t.elements));
  if (t.newly_nonfinite > 0) text += fmt::format(", {} became NaN or Inf", format_signed_count(t.newly_nonfinite));
  if (t.newly_finite > 0) text += fmt::format(", {} became finite", format_signed_count(t.newly_finite));
  if (t.largest_change == 0) return text;
  return text + fmt::format(", by {:.3g} at most, relative {:.3g}, relative L2 {:.3g}", t.largest_change,
                            t.largest_relative, t.relative_norm);
}

std::string headline(const Comparison& c) {
  const auto count = [&](auto&& is) {
    return static_cast<std::size_t>(std::count_if(c.tensors.begin(), c.tensors.end(), is));
  };
  const auto worst = ranked(c);
  const std::size_t bad = count([](const TensorChange& t) { return t.newly_nonfinite > 0; });
  const std::size_t shapes = count([](const TensorChange& t) { return t.shapes_differ(); });
  const std::size_t dtypes = count([](const TensorChange& t) { return t.dtypes_differ() && !t.shapes_differ(); });
  const std::size_t unread = count([](const TensorChange& t) { return !t.compared && !t.shapes_differ(); });
  if (bad > 0)
    return reports::plural(bad, "tensor", "tensors") + " became NaN or Inf, first " + change_text(*worst.front());
  if (shapes + dtypes > 0)
    return reports::plural(shapes + dtypes, "tensor", "tensors") + " of another shape or dtype, first " +
           change_text(*worst.front());
  if (!c.only_in_a.empty())
    return reports::plural(c.only_in_a.size(), "tensor", "tensors") + " only in A, first " +
           printable(c.only_in_a.front());
  if (!c.only_in_b.empty())
    return reports::plural(c.only_in_b.size(), "tensor", "tensors") + " only in B, first " +
           printable(c.only_in_b.front());
  const std::size_t changed = count([](const TensorChange& t) { return t.changed > 0; });
  if (changed > 0)
    return fmt::format("{} of {} changed, most {}", format_count(changed),
                       reports::plural(c.tensors.size(), "tensor", "tensors"), change_text(*worst.front()));
  if (c.tensors.empty()) return "there is no tensor to compare";
  if (unread > 0)
    return fmt::format("no change in what was compared; {} of {} were not", unread,
                       reports::plural(c.tensors.size(), "tensor", "tensors"));
  return "the same bits in " + reports::plural(c.tensors.size(), "tensor", "tensors");
}

std::string names_text(const char* where, const std::vector<std::string>& names) {
  if (names.empty()) return "";
  std::string text = fmt::format("\nOnly in {}: {}\n", where, reports::plural(names.size(), "tensor", "tensors"));
  for (std::size_t i = 0; i < std::min(names.size(), kMaxNames); ++i) text += "  " + printable(names[i]) + "\n";
  if (names.size() > kMaxNames) text += fmt::format("  and {} more\n", names.size() - kMaxNames);
  return text;
}

std::string text_of_comparison(const std::string& a, const std::string& b, const Comparison& c) {
  std::string text = headline(c) + fmt::format("\n\n  A  {}\n  B  {}\n", printable(a), printable(b));
  const auto worst = ranked(c);
  if (!worst.empty()) text += "\nWhat differs, worst first\n";
  for (std::size_t i = 0; i < std::min(worst.size(), kMaxRows); ++i) text += "  " + change_text(*worst[i]) + "\n";
  if (worst.size() > kMaxRows) text += fmt::format("  and {} more: --json has all of them\n", worst.size() - kMaxRows);
  text += names_text("A", c.only_in_a) + names_text("B", c.only_in_b);
  if (c.damaged) text += "\nNot all of it could be read: `nanhunt check` says what is damaged.\n";
  return text;
}

json change_to_json(const TensorChange& t) {
  return {{"name", reports::json_text(t.name)},
          {"dtype_a", reports::json_text(t.dtype_a)},
          {"dtype_b", reports::json_text(t.dtype_b)},
          {"shape_a", reports::json_integers(t.sizes_a)},
          {"shape_b", reports::json_integers(t.sizes_b)},
          {"compared", t.compared},
          {"problem", reports::json_text_or_null(t.problem)},
          {"elements", reports::json_integer(t.elements)},
          {"changed", reports::json_integer(t.changed)},
          {"newly_nonfinite", reports::json_integer(t.newly_nonfinite)},
          {"newly_finite", reports::json_integer(t.newly_finite)},
          {"largest_change", reports::json_number(t.largest_change)},
          {"largest_relative", reports::json_number(t.largest_relative)},
          {"relative_norm", reports::json_number(t.relative_norm)}};
}

std::string json_of_comparison(const std::string& a, const std::string& b, const Comparison& c) {
  json tensors = json::array();
  for (const TensorChange& one : c.tensors) tensors.push_back(change_to_json(one));
  const json answer = {{"schema", "nanhunt.checkpoint_diff"},
                       {"schema_version", 1},
                       {"a", reports::json_text(a)},
                       {"b", reports::json_text(b)},
                       {"headline", reports::json_text(headline(c))},
                       {"same", c.same()},
                       {"damaged", c.damaged},
                       {"tensors", tensors},
                       {"only_in_a", reports::json_texts(c.only_in_a, SIZE_MAX)},
                       {"only_in_b", reports::json_texts(c.only_in_b, SIZE_MAX)}};
  return reports::dump_json(answer) + "\n";
}

}  // namespace

int diff_checkpoints(const std::string& a, const std::string& b, const CheckpointDiffOptions& options) {
  const auto read_a = checkpoint::read_checkpoint(a), read_b = checkpoint::read_checkpoint(b);
  if (!read_a) return fail(read_a.status());
  if (!read_b) return fail(read_b.status());
  const Comparison comparison = compare(*read_a, *read_b);
  return print_and_return(options.json ? json_of_comparison(a, b, comparison) : text_of_comparison(a, b, comparison));
}

}  // namespace nanhunt::cli
