// SPDX-License-Identifier: Apache-2.0
// Families of faults: what each plants, and what must be said of it. README.md has the table.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/analyzer.h"
#include "tests/campaign/rig.h"

namespace nanhunt::campaign {

// How the step (and what else the plan leaves open) of the expected place is found.
enum class Witnessing : std::uint8_t {
  kPlanned,   // all is known beforehand: first_step, module, op
  kWatched,   // the first op among those named that stores a non-finite number, seen by an observer of the engine
  kSabotaged, // what the saboteur wrote down when it acted
  kDiverged,  // the first step whose loss, gradients or parameters are not finite; module: a layer that grew fastest
};

struct Place {
  std::uint32_t step = 0;
  std::optional<Phase> phase;
  std::optional<std::string> module, op;
};

// Where the origin is, before the run has been made. Paths are asked for once names are known.
struct Target {
  FindingClass cls = FindingClass::kOverflow;
  Witnessing witnessing = Witnessing::kWatched;
  std::optional<Phase> phase;                       // none: not scored
  std::function<std::optional<std::string>(const Rig&)> module;  // none: any (kWatched), or not scored
  bool module_scored = true, op_scored = true, step_scored = true;
  std::vector<std::string> ops;                     // kWatched: any of these; empty: any op
  std::uint32_t from_step = 0;                      // kWatched: not before
  std::shared_ptr<const Place> sabotaged = {};      // kSabotaged
};

struct Planted {
  Plan plan;
  Target target;
  std::string variant;  // for people
};

struct Family {
  std::string_view name, what, expected;  // the last two are rows of README.md
  Planted (*plant)(Draw& draw, Settings& settings);
};
std::span<const Family* const> all_families();
const Family* find_family(std::string_view name);

// Healthy kinds of runs: things that look like faults and are none.
struct HealthyKind {
  std::string_view name, what;
  Plan (*plan)(Draw& draw, Settings& settings);
};
std::span<const HealthyKind> healthy_kinds();

// Shared by families.
double amax_of(const engine::Tensor& x);
std::pair<double, double> range_of(const engine::Tensor& x);
void set_element(engine::Tensor tensor, std::int64_t index, double value);  // memory only: no version, nobody is told
std::uint32_t draw_step(Draw& draw, const Settings& settings);
// Faults that a dynamic scaler holds back act for a few steps only: halving for ever is a family of its own.
void limit_under_scaler(const Settings& settings, Plan& plan);
std::function<std::optional<std::string>(const Rig&)> at_site(int site);

}  // namespace nanhunt::campaign
