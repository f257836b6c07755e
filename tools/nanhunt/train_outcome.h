// SPDX-License-Identifier: Apache-2.0
// What came of `train`: its closing lines, the same as JSON, and the list of what can be trained.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "nanhunt/analyzer.h"
#include "nanhunt/recorder.h"
#include "nanhunt/status.h"
#include "src/hunt/hunt.h"
#include "tools/nanhunt/scenarios/scenario.h"

namespace nanhunt::cli {

struct TrainOutcome {
  std::uint32_t steps = 0;
  double first_loss = 0, last_loss = 0;
  std::optional<std::uint32_t> first_bad_loss;
  std::string ended_by;               // why training ended before its last step
  bool by_anomaly = false;            // anomaly mode ended it
  std::string scaler_said;            // the first message of the loss scaler's library
  std::uint32_t scaler_messages = 0;  // how many there were
  std::string attempt_dir;            // empty: not watched
  RecorderCounters counters;
  std::optional<LrRamp> ramp;  // --find-lr
  std::optional<hunt::HuntOutcome> hunted;
  Status trace_status;
  std::uint32_t ranks = 1;
};

std::string scenario_list(bool as_json);
std::string outcome_json(const scenarios::Scenario& scenario, const TrainOutcome& outcome);
std::string outcome_text(const scenarios::Scenario& scenario, const TrainOutcome& outcome, const std::string& run);

}  // namespace nanhunt::cli
