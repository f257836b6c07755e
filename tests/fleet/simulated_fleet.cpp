// SPDX-License-Identifier: Apache-2.0
#include "tests/fleet/simulated_fleet.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "src/fleet/make_digest.h"
#include "tests/support/temp_dir.h"

namespace nanhunt::fleet_tests {
namespace {

using fleet::Digest;

struct Layout {
  std::uint32_t size = 0, tensor = 1, pipeline = 1, data = 1, experts = 1, per_host = 8;
};

Layout layout_of(std::mt19937& random, std::uint32_t size) {
  const std::vector<Layout> all = {
      {8, 2, 2, 2, 2, 4},       {8, 1, 2, 4, 4, 4},       {8, 2, 1, 4, 2, 2},        {8, 1, 1, 8, 4, 4},
      {512, 8, 8, 8, 4, 8},     {512, 4, 4, 32, 16, 8},   {512, 1, 16, 32, 8, 8},    {512, 2, 1, 256, 64, 8},
      {10000, 8, 10, 125, 25, 8}, {10000, 4, 50, 50, 25, 8}, {10000, 1, 20, 500, 100, 8}, {10000, 8, 1, 1250, 50, 8}};
  std::vector<Layout> fit;
  std::copy_if(all.begin(), all.end(), std::back_inserter(fit), [&](const Layout& one) { return one.size == size; });
  return fit.at(random() % fit.size());
}

RankIdentity identity_of(const Layout& layout, std::uint32_t rank) {
  RankIdentity one;
  one.rank = rank;
  one.world_size = layout.size;
  const std::uint32_t tensor = rank % layout.tensor, data = rank / layout.tensor % layout.data,
                      pipeline = rank / layout.tensor / layout.data;
  if (layout.tensor > 1) one.coordinates["tensor"] = tensor;
  if (layout.pipeline > 1) one.coordinates["pipeline"] = pipeline;
  one.coordinates["data"] = data;
  one.coordinates["expert"] = data % layout.experts;
  one.host = std::to_string(rank / layout.per_host).insert(0, 1, 'n');
  one.replicas = fleet::Replicas{pipeline * layout.data * layout.tensor + tensor, layout.data};
  return one;
}

// The ranks that reduce together: those that differ in `data` alone; of many, those near by.
std::vector<std::uint32_t> group_of(const Layout& layout, std::uint32_t rank) {
  std::vector<std::uint32_t> group;
  const std::uint32_t first = rank - rank / layout.tensor % layout.data * layout.tensor;
  for (std::uint32_t data = 0; data < std::min(layout.data, 16u); ++data) group.push_back(first + data * layout.tensor);
  return group;
}

bool is_at(const RankIdentity& one, const fleet::Place& place) {
  if (place.dimension == "host") return one.host == place.value;
  const auto at = one.coordinates.find(place.dimension);
  return at != one.coordinates.end() && std::to_string(at->second) == place.value;
}

// A place along `dimension` that some ranks share, drawn.
fleet::Place draw_place(std::mt19937& random, const std::vector<RankIdentity>& ranks, const std::string& dimension) {
  const RankIdentity& one = ranks.at(random() % ranks.size());
  if (dimension == "host") return {dimension, one.host};
  const auto at = one.coordinates.find(dimension);
  return at == one.coordinates.end() ? fleet::Place{"data", std::to_string(one.coordinates.at("data"))}
                                     : fleet::Place{dimension, std::to_string(at->second)};
}

std::set<std::uint32_t> numbers(const std::vector<std::uint32_t>& ranks) { return {ranks.begin(), ranks.end()}; }

std::set<std::uint32_t> there(const SimulatedFleet& fleet) {
  std::set<std::uint32_t> out;
  for (const std::uint32_t rank : fleet.hit) {
    if (!fleet.missing.contains(rank)) out.insert(rank);
  }
  return out;
}

std::string text(const std::set<std::uint32_t>& ranks) {
  std::ostringstream out;
  std::size_t shown = 0;
  for (const std::uint32_t rank : ranks) {
    if (++shown > 12) break;
    out << ' ' << rank;
  }
  out << " (" << ranks.size() << ")";
  return out.str();
}

std::string judge_silent(const SimulatedFleet& fleet, const fleet::FleetVerdict& verdict) {
  const std::uint32_t hit = *fleet.hit.begin();
  const fleet::Replicas replicas = *fleet.ranks[hit].replicas;
  std::set<std::uint32_t> seen;
  for (const RankIdentity& one : fleet.ranks) {
    if (one.replicas->lowest == replicas.lowest && !fleet.missing.contains(one.rank)) seen.insert(one.rank);
  }
  const bool visible = seen.contains(hit) && seen.size() > 1;
  if (!visible) return verdict.parting ? "parted, although nothing shows it" : "";
  if (!verdict.parting || verdict.status != VerdictStatus::kFault) return "replicas that part were not found";
  if (numbers(verdict.parting->seen) != seen) return "compared" + text(numbers(verdict.parting->seen)) + ", not" + text(seen);
  if (verdict.parting->step != *fleet.plans[hit].parts) return "the wrong step";
  const std::set<std::uint32_t> wrong = seen.size() == 2 ? std::set<std::uint32_t>{} : std::set<std::uint32_t>{hit};
  if (numbers(verdict.parting->minority) != wrong) return "blamed" + text(numbers(verdict.parting->minority));
  return "";
}

}  // namespace

const char* planted_name(Planted planted) {
  switch (planted) {
    case Planted::kNothing: return "nothing";
    case Planted::kCalibration: return "calibration";
    case Planted::kOneRank: return "one rank";
    case Planted::kOneCard: return "one card";
    case Planted::kHost: return "host";
    case Planted::kStage: return "stage";
    case Planted::kExpert: return "expert";
    case Planted::kAll: return "all";
    case Planted::kSilent: return "silent";
  }
  return "?";
}

SimulatedFleet draw_fleet(std::mt19937& random, std::uint32_t size, Planted planted, double missing_share) {
  const Layout layout = layout_of(random, size);
  SimulatedFleet fleet;
  fleet.size = size;
  fleet.planted = planted;
  for (std::uint32_t rank = 0; rank < size; ++rank) fleet.ranks.push_back(identity_of(layout, rank));
  const auto missing = static_cast<std::uint32_t>(missing_share * size + 0.999);
  while (missing_share > 0 && fleet.missing.size() < missing) fleet.missing.insert(static_cast<std::uint32_t>(random() % size));

  if (planted == Planted::kOneRank || planted == Planted::kOneCard || planted == Planted::kSilent) {
    fleet.hit = {static_cast<std::uint32_t>(random() % size)};
  } else if (planted == Planted::kAll) {
    for (std::uint32_t rank = 0; rank < size; ++rank) fleet.hit.insert(rank);
  } else if (planted != Planted::kNothing && planted != Planted::kCalibration) {
    const char* dimension = planted == Planted::kHost ? "host" : planted == Planted::kStage ? "pipeline" : "expert";
    fleet.place = {draw_place(random, fleet.ranks, dimension)};
    for (const RankIdentity& one : fleet.ranks) {
      if (is_at(one, fleet.place.front())) fleet.hit.insert(one.rank);
    }
  }
  const auto step = static_cast<std::uint32_t>(1 + random() % 3);
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    RankPlan plan;
    plan.group = group_of(layout, size > 8 ? 0 : rank);
    const bool hit = fleet.hit.contains(rank);
    if (planted == Planted::kCalibration) {
      plan.calibrates = step;
    } else if (planted == Planted::kSilent) {
      if (hit) plan.parts = step;
    } else if (hit) {
      (planted == Planted::kOneCard ? plan.flips : plan.overflows) = step;
    } else if (!fleet.hit.empty()) {
      // It came to those that reduce with one of them at once, to all others by the next step.
      const RankIdentity& own = fleet.ranks[rank];
      const bool near = std::any_of(fleet.hit.begin(), fleet.hit.end(), [&](std::uint32_t other) {
        return fleet.ranks[other].replicas->lowest == own.replicas->lowest;
      });
      plan.arrives = near ? step : step + 1;
    }
    fleet.plans.push_back(plan);
  }
  return fleet;
}

fleet::Digests record_fleet(const SimulatedFleet& fleet) {
  const testing_support::TempDir dir;
  for (std::size_t i = 0; i < fleet.ranks.size(); ++i) {
    if (!fleet.missing.contains(fleet.ranks[i].rank)) train_rank(dir.path(), fleet.ranks[i], fleet.plans[i]);
  }
  auto digests = fleet::read_digests(dir.path(), {});
  EXPECT_TRUE(digests.is_ok()) << digests.status().message();
  return digests ? std::move(*digests) : fleet::Digests{};
}

fleet::Digests digests_of(const SimulatedFleet& fleet) {
  static std::map<RankPlan, Digest> trained;
  std::vector<Digest> all;
  for (std::size_t i = 0; i < fleet.ranks.size(); ++i) {
    const RankIdentity& identity = fleet.ranks[i];
    if (fleet.missing.contains(identity.rank)) continue;
    auto known = trained.find(fleet.plans[i]);
    if (known == trained.end()) {
      const testing_support::TempDir dir;
      train_rank(dir.path(), RankIdentity{0, 2, {}, "", {}}, fleet.plans[i]);
      const auto attempts = find_attempts(dir.path());
      EXPECT_TRUE(attempts.is_ok());
      auto digest = fleet::make_digest(attempts->front());
      EXPECT_TRUE(digest.is_ok()) << digest.status().message();
      known = trained.emplace(fleet.plans[i], std::move(*digest)).first;
    }
    Digest one = known->second;
    one.rank = identity.rank;
    one.world_size = identity.world_size;
    one.coordinates = identity.coordinates;
    one.host = identity.host;
    one.replicas = identity.replicas;
    one.accelerator_id = "card-" + std::to_string(identity.rank);
    all.push_back(std::move(one));
  }
  fleet::Digests digests;
  fleet::choose_attempts(std::move(all), digests);
  return digests;
}

std::string judge(const SimulatedFleet& fleet, const fleet::FleetVerdict& verdict) {
  if (fleet.planted == Planted::kNothing || fleet.planted == Planted::kCalibration) {
    const bool blamed = verdict.first || verdict.came_by || verdict.parting || verdict.status == VerdictStatus::kFault ||
                        verdict.status == VerdictStatus::kWarning;
    if (blamed) return "blamed somebody";
    const bool whole = fleet.missing.empty();
    if (!whole && verdict.status != VerdictStatus::kInconclusive) return "was sure of ranks that are missing";
    if (whole && verdict.status == VerdictStatus::kInconclusive) return "was not sure";
    return "";
  }
  if (fleet.planted == Planted::kSilent) return judge_silent(fleet, verdict);
  if (verdict.status != VerdictStatus::kFault) return "no fault";
  const std::set<std::uint32_t> hit = there(fleet);
  if (hit.empty()) {
    if (verdict.first || !verdict.origin_is_missing) return "did not say that the origin is missing";
    return "";
  }
  if (verdict.origin_is_missing) return "called the origin missing";
  if (!verdict.first_rank || *verdict.first_rank != *hit.begin()) return "the wrong first rank";
  if (numbers(verdict.ranks) != hit) return "named" + text(numbers(verdict.ranks)) + ", not" + text(hit);
  const fleet::Shape& shape = verdict.shape;
  const bool exact = shape.but.empty() && shape.besides.empty();
  if (!exact) return "a shape with exceptions: " + fleet::shape_text(shape, verdict.ranks);
  using fleet::ShapeKind;
  if (shape.kind == ShapeKind::kAll) return hit.size() == fleet.size - fleet.missing.size() ? "" : "called it all";
  if (hit.size() == 1) return shape.kind == ShapeKind::kOne ? "" : "did not name the one rank";
  const bool named = shape.places == fleet.place || std::find(shape.also.begin(), shape.also.end(), fleet.place) != shape.also.end();
  if (!named) return "the wrong shape: " + fleet::shape_text(shape, verdict.ranks);
  const bool card = verdict.first->cls == FindingClass::kCorruption;
  return card == (fleet.planted == Planted::kOneCard) ? "" : "the wrong class";
}

}  // namespace nanhunt::fleet_tests
