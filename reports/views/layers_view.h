// SPDX-License-Identifier: Apache-2.0
// The layers of a run and its loss scaler, in words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nanhunt/analyzer.h"

namespace nanhunt::reports {

inline constexpr std::size_t kMaxLayers = 2048;
inline constexpr std::size_t kMaxScalerEvents = 64;

struct LayerSide {
  std::string went_bad;                   // "step 41, 3rd": of all sides of layers the third; "—": never
  std::string amax, headroom, underflow;  // "—" where nothing was seen
};
struct LayerRow {
  std::size_t at = 0;  // in the analysis
  std::string module, dtype, operations, bad_operations, nan, inf;
  LayerSide forward, gradient;
  bool bad = false;
};

struct ScalerEventRow {
  std::string step, what, scale, note;
};
struct ScalerView {
  std::string summary;  // sentences: what it is, where its scale went, how often it skipped
  std::vector<ScalerEventRow> events;
  std::uint64_t events_omitted = 0;
};

// Who went bad first stands on top; the others follow as they appeared.
std::vector<LayerRow> view_layers(const Analysis& analysis);
std::optional<ScalerView> view_scaler(const Analysis& analysis);

// Is it the loss scaler? A sentence that begins with Yes or No, or says that none was seen.
std::string scaler_sentence(const Analysis& analysis, const Finding* origin);

}  // namespace nanhunt::reports
