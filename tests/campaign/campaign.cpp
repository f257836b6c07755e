// SPDX-License-Identifier: Apache-2.0
#include "tests/campaign/campaign.h"

#include <fmt/format.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "tests/campaign/runner.h"

namespace nanhunt::campaign {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Of the program itself: another build may answer otherwise, so what it finished is not taken over.
std::string fingerprint() {
  std::ifstream in("/proc/self/exe", std::ios::binary);
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (char block[1 << 16]; in.read(block, sizeof block) || in.gcount() > 0;) {
    for (std::streamsize i = 0; i < in.gcount(); ++i) {
      hash = (hash ^ static_cast<unsigned char>(block[i])) * 0x100000001b3ull;
    }
  }
  return fmt::format("{:016x}", hash);
}

// A finished run of this program, or null: not there, another build's, or cut short by a kill.
json read_finished(const fs::path& path, const std::string& program) {
  std::ifstream in(path);
  if (!in) return nullptr;
  json run = json::parse(in, nullptr, /*allow_exceptions=*/false);
  return run.is_object() && run.value("program", "") == program ? run : json(nullptr);
}

void write_finished(const fs::path& path, const json& run) {
  const fs::path part = path.string() + ".part";
  std::ofstream(part) << run.dump(1) << '\n';
  fs::rename(part, path);
}

}  // namespace

std::vector<json> run_campaign(const CampaignOptions& options) {
  if (!options.only_family.empty() && find_family(options.only_family) == nullptr) {
    throw std::invalid_argument("no family is called '" + options.only_family + "'; README.md lists them");
  }
  const std::string seed_name = "seed-" + std::to_string(options.seed) +
                                (options.level == "both" ? "" : "-" + options.level) +
                                (options.only_family.empty() ? "" : "-" + options.only_family);
  const std::vector<std::string> levels =
      options.level == "both" ? std::vector<std::string>{"ops", "sentinel"} : std::vector{options.level};
  const fs::path finished = fs::path(options.work) / seed_name / "runs";
  const fs::path traces = fs::path(options.work) / seed_name / "traces";
  fs::create_directories(finished);
  fs::create_directories(traces);

  const std::string program = fingerprint();
  const std::uint32_t all = options.faults + options.healthy;
  std::vector<json> runs(all);
  std::atomic<std::uint32_t> next{0}, done{0}, kept{0};
  std::mutex progress;
  const auto work = [&] {
    for (std::uint32_t i = next++; i < all; i = next++) {
      RunId id{.campaign_seed = options.seed,
               .healthy = i >= options.faults,
               .index = i < options.faults ? i : i - options.faults};
      const fs::path path = finished / (id.text() + ".json");
      runs[i] = read_finished(path, program);
      if (runs[i].is_null()) {
        const RunResult result =
            run_one(id, {.scratch = traces.string(), .keep_trace = false, .only_family = options.only_family,
                .levels = levels});
        runs[i] = to_json(result);
        runs[i]["program"] = program;
        for (json& level : runs[i]["levels"]) {
          if (level["trace"] == "" || kept++ < options.max_kept_traces) continue;
          fs::remove_all(level["trace"].get<std::string>());
          level["trace"] = "";
        }
        write_finished(path, runs[i]);
      }
      const std::lock_guard lock(progress);
      ++done;
      if (options.on_progress) options.on_progress(done, all);
    }
  };
  std::vector<std::thread> workers;
  for (unsigned j = 0; j < std::max(1u, options.jobs); ++j) workers.emplace_back(work);
  for (std::thread& worker : workers) worker.join();
  return runs;
}

}  // namespace nanhunt::campaign
