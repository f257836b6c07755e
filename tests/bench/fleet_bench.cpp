// SPDX-License-Identifier: Apache-2.0
// A fleet with a planted fault on disk, a digest a rank: the time and the memory to a verdict, and to its page.
// tests/bench/README.md.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>

#include "src/fleet/fleet_page.h"
#include "src/fleet/make_digest.h"
#include "src/fleet/read_digests.h"
#include "src/fleet/verdict.h"
#include "src/trace/segments/segment.h"
#include "tests/fleet/sample_fleets.h"
#include "tests/fleet/simulated_fleet.h"
#include "tests/support/temp_dir.h"

namespace nanhunt {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

long peak_mib() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  return use.ru_maxrss / 1024;
}

int write_fleet(const std::string& run) {
  std::mt19937 random(9);
  const fleet_tests::SimulatedFleet fleet = fleet_tests::draw_fleet(random, 10000, fleet_tests::Planted::kStage, 0.03);
  for (fleet::Digest one : fleet_tests::digests_of(fleet).ranks) {
    // As large as digests become: all their checksums, and as many origins as there may be.
    for (std::uint32_t step = 64; one.checksums.size() < fleet::kMaxChecksums; step += 64) one.checksums.emplace_back(step, step);
    while (!one.origins.empty() && one.origins.size() < fleet::kMaxOrigins) one.origins.push_back(one.origins.front());
    const std::string folder = run + "/" + trace::rank_folder_name(one.rank) + "/" + trace::attempt_folder_name(0);
    std::filesystem::create_directories(folder);
    if (const Status written = fleet::write_digest(folder, one); !written) {
      std::fprintf(stderr, "%s\n", written.message().c_str());
      return 1;
    }
  }
  return 0;
}

int read_fleet(const std::string& run) {
  for (const unsigned workers : {1u, 0u}) {
    for (int turn = 0; turn < 3; ++turn) {
      fleet::ReadOptions options;
      options.workers = workers;
      const Clock::time_point start = Clock::now();
      auto digests = fleet::read_digests(run, options);
      const double read = seconds_since(start);
      if (!digests) {
        std::fprintf(stderr, "%s\n", digests.status().message().c_str());
        return 1;
      }
      const std::size_t ranks = digests->ranks.size();
      const fleet::FleetVerdict verdict = fleet::judge_fleet(std::move(*digests));
      std::printf("%s: %zu digests read in %.2f s, judged in %.3f s; %ld MiB at most: %s\n",
                  workers == 1 ? "1 thread" : "all processors", ranks, read, seconds_since(start) - read, peak_mib(),
                  verdict.headline.c_str());
    }
  }
  return 0;
}

// Hosts of eight, five coordinates, cards, 97 different last steps: what a page of many ranks and steps has to hold.
int render_page() {
  const fleet::FleetVerdict verdict = fleet_tests::make_stage_fleet({10'000, 100'000, 2, 71'234, 33, true});
  for (int turn = 0; turn < 3; ++turn) {
    const Clock::time_point start = Clock::now();
    const std::string page = fleet::render_fleet_page(verdict, nullptr);
    std::printf("page of %u ranks, 100000 steps: %zu bytes in %.2f s; %ld MiB at most\n", verdict.digests.world_size,
                page.size(), seconds_since(start), peak_mib());
  }
  return 0;
}

}  // namespace
}  // namespace nanhunt

// Without an argument: writes and reads in a temporary folder. `write RUN`, `read RUN`: one of both. `page`:
// only the page.
int main(int argc, char** argv) {
  const std::string what = argc == 3 ? argv[1] : "";
  if (argc == 2 && std::string(argv[1]) == "page") return nanhunt::render_page();
  if (what == "write") return nanhunt::write_fleet(argv[2]);
  if (what == "read") return nanhunt::read_fleet(argv[2]);
  const nanhunt::testing_support::TempDir dir;
  const int written = nanhunt::write_fleet(dir.path());
  const int read = written != 0 ? written : nanhunt::read_fleet(dir.path());
  return read != 0 ? read : nanhunt::render_page();
}
