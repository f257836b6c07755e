// SPDX-License-Identifier: Apache-2.0
// tools/campaign: the fault campaign. README.md says what it does.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "tests/campaign/campaign.h"
#include "tests/campaign/runner.h"

namespace {

using namespace nanhunt::campaign;  // NOLINT

constexpr std::string_view kFamilies[] = {"<!-- families: begin -->", "<!-- families: end -->"};
constexpr std::string_view kFigures[] = {"<!-- figures: begin -->", "<!-- figures: end -->"};

// Puts `text` between the two marks; false if they are not there.
bool replace_between(std::string& page, const std::string_view (&marks)[2], const std::string& text) {
  const std::size_t begin = page.find(marks[0]), end = page.find(marks[1]);
  if (begin == std::string::npos || end == std::string::npos || end < begin) return false;
  const std::size_t from = begin + marks[0].size();
  page.replace(from, end - from, "\n" + text);
  return true;
}

int write_readme(const std::string& path, const nlohmann::json& summary) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  std::string page = text.str();
  if (!in || !replace_between(page, kFamilies, family_table()) ||
      !replace_between(page, kFigures, tables_of(summary))) {
    fmt::print(stderr, "campaign: {} is not there or has lost its marks ('{}' ...); nothing written\n", path,
               kFamilies[0]);
    return 6;
  }
  std::ofstream out(path);
  out << page;
  return out.flush() ? 0 : 6;
}

}  // namespace

int main(int argc, char** argv) {
  CampaignOptions options;
  std::string json_path, only, readme;
  CLI::App app("Plants faults in training runs, and counts how often the right operation is named.");
  app.add_option("--faults", options.faults, "harmful faults to plant");
  app.add_option("--healthy", options.healthy, "healthy runs, on which no fault may be reported");
  app.add_option("--seed", options.seed, "of everything that is drawn");
  app.add_option("--json", json_path, "where the figures go; - for standard output");
  app.add_option("--jobs", options.jobs, "runs at a time")->check(CLI::Range(1, 64));
  app.add_option("--work", options.work, "keeps finished runs, and goes on from those it finds")
      ->default_val("build/campaign");
  app.add_option("--level", options.level, "how runs are watched")->check(CLI::IsMember({"ops", "sentinel", "both"}));
  app.add_option("--family", options.only_family, "plant only faults of this family");
  app.add_option("--only", only, "one run, told in full with its trace kept: fault-17, healthy-3");
  app.add_option("--write-readme", readme, "puts the tables into this README.md");
  CLI11_PARSE(app, argc, argv);
  try {
    if (!only.empty()) {
      const RunId id = parse_run_id(only, options.seed);
      const RunResult result = run_one(
          id, {.scratch = options.work + "/only", .keep_trace = true, .only_family = options.only_family});
      fmt::print("{}\n", to_json(result).dump(2));
      return 0;
    }
    const bool terminal = isatty(STDERR_FILENO) != 0;
    options.on_progress = [&](std::uint32_t done, std::uint32_t all) {
      if (terminal) fmt::print(stderr, "\r{} of {} runs{}", done, all, done == all ? "\n" : "");
      if (!terminal && (done % 20 == 0 || done == all)) fmt::print(stderr, "{} of {} runs\n", done, all);
    };
    const std::vector<nlohmann::json> runs = run_campaign(options);
    const nlohmann::json summary = summarize(runs, options.seed);
    if (json_path == "-") {
      fmt::print("{}\n", summary.dump(1));
    } else if (!json_path.empty()) {
      std::ofstream out(json_path);
      out << summary.dump(1) << '\n';
      if (!out.flush()) {
        fmt::print(stderr, "campaign: cannot write {}\n", json_path);
        return 6;
      }
    }
    if (json_path != "-") fmt::print("{}", tables_of(summary));
    if (!readme.empty()) return write_readme(readme, summary);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "campaign: {}\n", error.what());
    return 2;
  }
}
