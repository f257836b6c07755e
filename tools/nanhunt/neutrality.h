// SPDX-License-Identifier: Apache-2.0
// Shows that watching changes nothing: the same run unwatched and watched, compared byte for byte.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nanhunt/engine/trainer.h"
#include "nanhunt/status.h"

namespace nanhunt::cli {

struct NeutralityRow {
  std::string level;                   // "off": a second unwatched run, so that the run is known to repeat itself
  std::string way;                     // "deferred" or "sync": on a device, else empty
  std::uint64_t ops = 0;                // recorded
  std::uint64_t differing_bytes = 0;
  std::string first_difference;                      // "fc1.weight"; empty: none
  std::optional<std::uint32_t> first_differing_step;  // whose loss has other bits
  bool same() const { return differing_bytes == 0 && first_difference.empty() && !first_differing_step; }
};

struct Neutrality {
  std::uint32_t steps = 0;
  std::uint64_t tensors = 0, bytes = 0;  // compared
  std::vector<NeutralityRow> rows;
  bool neutral() const;
};

// Trains what `make` makes three times; four times on a device, where a watch may wait or not. Traces go into a
// temporary folder and away again.
Result<Neutrality> prove_neutral(const std::function<std::unique_ptr<engine::Trainer>()>& make, std::uint32_t steps);

std::string neutrality_text(const std::string& name, const Neutrality& neutrality);
std::string neutrality_json(const std::string& name, const Neutrality& neutrality);

}  // namespace nanhunt::cli
