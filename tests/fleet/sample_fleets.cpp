// SPDX-License-Identifier: Apache-2.0
#include "tests/fleet/sample_fleets.h"

#include <utility>
#include <vector>

namespace nanhunt::fleet_tests {
namespace {

using fleet::Digest;

constexpr std::uint32_t kStages = 4, kPerHost = 8;

std::string numbered(const char* prefix, std::uint64_t number) { return std::to_string(number).insert(0, prefix); }

std::vector<Digest> healthy_ranks(std::uint32_t count, std::uint32_t steps) {
  std::vector<Digest> ranks(count);
  for (std::uint32_t rank = 0; rank < count; ++rank) {
    Digest& one = ranks[rank];
    one.rank = rank;
    one.world_size = count;
    one.host = numbered("n", rank / kPerHost);
    one.accelerator_name = "NVIDIA H100 80GB HBM3";
    one.accelerator_id = numbered("GPU-", 1000000 + rank);
    one.nanhunt = "0.1.0";
    one.framework = "PyTorch 2.11.0";
    one.level = "live";
    one.ended = true;
    one.status = VerdictStatus::kClean;
    one.steps = steps;
    one.last_step = one.clean_through = steps - 1;
    const std::uint32_t stage = rank / ((count + kStages - 1) / kStages);
    one.coordinates = {{"pipeline", stage}, {"data", rank % 8}, {"expert", rank % 4}};
    one.replicas = fleet::Replicas{stage, 2, {}};
  }
  return ranks;
}

void overflow(Digest& one, std::uint32_t step, std::uint32_t last) {
  fleet::DigestOrigin origin;
  origin.place.step = origin.first_step = step;
  origin.last_step = last;
  origin.place.op = "mul";
  origin.place.module = "block";
  origin.cls = FindingClass::kOverflow;
  origin.severity = Severity::kFault;
  origin.call_site = "train.py:10";
  origin.title = "mul in block overflows fp16: 8 of 8 results exceed 65504";
  one.status = VerdictStatus::kFault;
  one.origins.push_back(std::move(origin));
  one.clean_through = step == 0 ? std::nullopt : std::optional(step - 1);
}

void arrive(Digest& one, std::uint32_t step) {
  one.status = VerdictStatus::kFault;
  one.arrival = fleet::DigestArrival{step, 0, Severity::kFault, "allreduce", "data", step, 8, 0};
  one.clean_through = step == 0 ? std::nullopt : std::optional(step - 1);
}

fleet::FleetVerdict judge(std::vector<Digest> ranks, fleet::Digests digests = {}) {
  fleet::choose_attempts(std::move(ranks), digests);
  return fleet::judge_fleet(std::move(digests));
}

}  // namespace

fleet::FleetVerdict make_stage_fleet(const SampleFleet& sample) {
  std::vector<Digest> ranks = healthy_ranks(sample.ranks, sample.steps), there;
  for (Digest& one : ranks) {
    const bool missing = sample.missing_every > 0 && one.rank % sample.missing_every == sample.missing_every - 1;
    if (missing) continue;
    if (one.coordinates.at("pipeline") == sample.hit_stage) {
      overflow(one, sample.hit_step, sample.steps - 1);
    } else {
      arrive(one, sample.hit_step + 1);
    }
    if (sample.varied) {
      one.last_step = sample.steps - 1 - one.rank % 97;
      one.accelerator_id = numbered("GPU-0f3a9c1e-77d2-4c5b-9e10-", 100000000000 + one.rank);
      one.coordinates["tensor"] = one.rank % 2;
      one.coordinates["context"] = one.rank / 2 % 5;
    }
    there.push_back(std::move(one));
  }
  return judge(std::move(there));
}

fleet::FleetVerdict make_clean_fleet() { return judge(healthy_ranks(16, 40)); }

fleet::FleetVerdict make_parted_fleet() {
  std::vector<Digest> ranks = healthy_ranks(8, 64);
  for (Digest& one : ranks) {
    one.replicas = fleet::Replicas{0, 8, {}};
    for (std::uint32_t step = 0; step < 64; step += 8)
      one.checksums.emplace_back(step, one.rank == 5 && step >= 40 ? 7777 : 1000 + step);
  }
  return judge(std::move(ranks));
}

fleet::FleetVerdict make_hostile_fleet() {
  const std::vector<std::string> names = {kHostileName,
                                          "</script><script>window.pwned=1</script>",
                                          "\"><iframe src=javascript:window.pwned=1>",
                                          "<!--<script>",
                                          "{{scripts}}{{body}}",
                                          "\x1b[31m\xe2\x80\xae\xff\n",
                                          "__proto__",
                                          "</title><script src=http://127.0.0.1:9/x></script>"};
  std::vector<Digest> ranks = healthy_ranks(8, 30);
  for (Digest& one : ranks) {
    const std::string& name = names[one.rank % names.size()];
    one.host = name;
    one.accelerator_name = one.accelerator_id = name;
    one.coordinates = {{kHostileName, -1}, {"__proto__", INT64_MAX - one.rank}, {"pipeline", one.rank / 4}};
    overflow(one, 3, UINT32_MAX);
    one.origins.front().place.op = name;
    one.origins.front().place.module = name;
    one.origins.front().title = name;
    one.origins.front().call_site = name;
    if (one.rank > 4) {
      one.origins.clear();
      arrive(one, UINT32_MAX);
      one.arrival->through = one.arrival->group = name;
    }
  }
  ranks[1].steps = UINT64_MAX;
  ranks[2].steps = 0;
  ranks[3].last_step.reset();
  ranks[4].world_size = UINT32_MAX;
  fleet::Digests digests;
  digests.unread.push_back({9, "/run/" + names[1], names[0]});
  return judge(std::move(ranks), std::move(digests));
}

fleet::FleetVerdict make_gapped_fleet() {
  std::vector<Digest> ranks = healthy_ranks(40, 60), there;
  for (Digest& one : ranks) {
    const bool missing = (one.rank >= 10 && one.rank < 14) || one.rank == 21 || one.rank == 30 || one.rank == 31;
    if (missing) continue;
    one.job = one.rank == 33 ? "slurm 1" : "slurm 2";
    if (one.rank == 5) {
      one.ended = false;
      one.last_step = one.clean_through = 20;
      one.steps = 21;
    }
    there.push_back(std::move(one));
  }
  fleet::Digests digests;
  digests.unread.push_back({21, "RUN/rank-00021/attempt-0/digest.json", "it is no JSON"});
  return judge(std::move(there), std::move(digests));
}

}  // namespace nanhunt::fleet_tests
