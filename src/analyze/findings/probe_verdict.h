// SPDX-License-Identifier: Apache-2.0
// What counterfactuals say of an origin (ProbeRecord): do they prove its class, or show another one?
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "src/analyze/rules/rule.h"

namespace nanhunt::analyze {

using ProbeMap = std::map<std::uint64_t, std::vector<ProbeRecord>>;  // by op, in the order of the trace

// Adds to the diagnosis what was computed. Where the probes contradict `cls`, puts the class that they show in its
// place. True: they prove the class that stands then.
bool apply_probes(const Case& c, const std::vector<ProbeRecord>& probes, FindingClass& cls, Diagnosis& diagnosis);

}  // namespace nanhunt::analyze
