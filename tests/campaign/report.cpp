// SPDX-License-Identifier: Apache-2.0
// The figures of a campaign, as JSON and as the tables of README.md.
#include <fmt/format.h>

#include <map>

#include "tests/campaign/baselines/baselines.h"
#include "tests/campaign/campaign.h"
#include "tests/campaign/fault.h"

namespace nanhunt::campaign {
namespace {

using nlohmann::json;

struct Figures {
  int faults = 0, origin_right = 0, class_right = 0;
  int unseen = 0;  // harmful, but nothing that the level watches was bad: not among the faults
  json to_json() const {
    return {{"faults", faults}, {"origin_right", origin_right}, {"class_right", class_right}, {"unseen", unseen}};
  }
};

std::string run_again(const json& run) {
  return fmt::format("tools/campaign --seed {} --only {}", run["seed"].get<std::uint64_t>(),
                     run["id"].get<std::string>());
}

json miss_of(const json& run, const json& level) {
  return {{"id", run["id"]},           {"level", level["level"]},   {"family", run["family"]},
          {"variant", run["variant"]}, {"settings", run["settings"]}, {"harm", run["harm"]},
          {"seed", run["seed"]},       {"again", run_again(run)},   {"expected", run["expected"]},
          {"got", level["got"]},       {"origin_right", level["origin_right"]},
          {"class_right", level["class_right"]}, {"trace", level["trace"]}};
}

std::string share(int part, int all) { return all == 0 ? "-" : fmt::format("{:.1f} %", 100.0 * part / all); }

}  // namespace

json summarize(const std::vector<json>& runs, std::uint64_t seed) {
  std::map<std::string, Figures> levels;
  std::map<std::string, std::map<std::string, Figures>> families;
  std::map<std::string, int> baselines;
  std::map<std::string, std::map<std::string, int>> redrawn;
  json misses = json::array(), not_planted = json::array();
  int faults = 0, healthy = 0, false_faults = 0;
  for (const json& run : runs) {
    const bool is_healthy = run["id"].get<std::string>().starts_with("healthy");
    for (const auto& [why, count] : run["redrawn"].items()) redrawn[run["family"]][why] += count.get<int>();
    if (!run["planted"].get<bool>()) {
      not_planted.push_back({{"id", run["id"]}, {"family", run["family"]}, {"failure", run["failure"]}});
      continue;
    }
    ++(is_healthy ? healthy : faults);
    for (const json& level : run["levels"]) {
      const std::string name = level["level"];
      const bool origin = level["origin_right"], cls = level["class_right"], visible = level["visible"];
      if (!visible) {
        for (Figures* f : {&levels[name], &families[run["family"]][name]}) ++f->unseen;
        continue;
      }
      if (!origin || !cls) misses.push_back(miss_of(run, level));
      if (is_healthy) {
        false_faults += origin ? 0 : 1;
        continue;
      }
      for (Figures* f : {&levels[name], &families[run["family"]][name]}) {
        ++f->faults;
        f->origin_right += origin ? 1 : 0;
        f->class_right += cls ? 1 : 0;
      }
    }
    for (const auto& [name, right] : run["baselines"].items()) baselines[name] += right.get<bool>() ? 1 : 0;
  }
  json out{{"schema", "nanhunt.campaign"}, {"schema_version", 1}, {"seed", seed}, {"faults", faults},
           {"healthy", healthy}, {"false_faults", false_faults}, {"levels", json::object()},
           {"families", json::object()}, {"baselines", baselines}, {"redrawn", redrawn},
           {"not_planted", not_planted}, {"misses", misses}};
  for (const auto& [name, figures] : levels) out["levels"][name] = figures.to_json();
  for (const auto& [family, by_level] : families) {
    for (const auto& [name, figures] : by_level) out["families"][family][name] = figures.to_json();
  }
  const Figures& first = levels.contains("ops") ? levels["ops"] : levels["sentinel"];
  out["origin_right"] = first.origin_right;
  out["class_right"] = first.class_right;
  return out;
}

std::string family_table() {
  std::string out = "| family | what is planted | what must be said |\n| --- | --- | --- |\n";
  for (const Family* f : all_families()) out += fmt::format("| `{}` | {} | {} |\n", f->name, f->what, f->expected);
  out += "\n| healthy kind | what looks like a fault |\n| --- | --- |\n";
  for (const HealthyKind& kind : healthy_kinds()) out += fmt::format("| `{}` | {} |\n", kind.name, kind.what);
  return out;
}

std::string tables_of(const json& s) {
  const int faults = s["faults"];
  std::string out = fmt::format("Seed {}: {} harmful faults, {} healthy runs; faults reported on healthy runs: {}.\n\n",
                                s["seed"].get<std::uint64_t>(), faults, s["healthy"].get<int>(),
                                s["false_faults"].get<int>());
  out += "| who | rule | origin right | class right |\n| --- | --- | --- | --- |\n";
  for (const auto& [level, f] : s["levels"].items()) {
    const int all = f["faults"];
    out += fmt::format("| nanhunt, level `{}` | | {} | {} |\n", level, share(f["origin_right"], all),
                       share(f["class_right"], all));
  }
  for (const Baseline* baseline : all_baselines()) {
    const std::string name(baseline->name);
    out += fmt::format("| {} | {} | {} | - |\n", name, baseline->rule,
                       share(s["baselines"].value(name, 0), faults));
  }
  out += "\n| family | level | faults | origin right | class right | cannot be seen | redrawn: harmless, not as "
      "planned |\n"
         "| --- | --- | --- | --- | --- | --- | --- |\n";
  for (const auto& [family, by_level] : s["families"].items()) {
    const json& again = s["redrawn"][family];
    for (const auto& [level, f] : by_level.items()) {
      out += fmt::format("| `{}` | `{}` | {} | {} | {} | {} | {}, {} |\n", family, level, f["faults"].get<int>(),
                         f["origin_right"].get<int>(), f["class_right"].get<int>(),
                         share(f["unseen"], f["faults"].get<int>() + f["unseen"].get<int>()),
                             again["harmless"].get<int>(),
                         again["unintended"].get<int>());
    }
  }
  if (s["misses"].empty()) return out;
  out += "\n| miss | level | family | expected | got |\n| --- | --- | --- | --- | --- |\n";
  for (const json& m : s["misses"]) {
    out += fmt::format("| `{}` | `{}` | `{}` {} | {} {} | {} {} |\n", m["id"].get<std::string>(),
                       m["level"].get<std::string>(),
                       m["family"].get<std::string>(), m["variant"].get<std::string>(),
                       m["expected"]["class"].get<std::string>(), m["expected"]["place"].get<std::string>(),
                       m["got"]["class"].get<std::string>(), m["got"]["place"].get<std::string>());
  }
  return out;
}

}  // namespace nanhunt::campaign
