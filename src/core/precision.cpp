// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/precision.h"

namespace nanhunt {

std::string_view memory_kind_name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kParameters:
      return "parameters";
    case MemoryKind::kBuffers:
      return "buffers";
    case MemoryKind::kMasters:
      return "masters";
    case MemoryKind::kOptimizerState:
      return "optimizer_state";
    case MemoryKind::kGradients:
      return "gradients";
    case MemoryKind::kWeightCasts:
      return "weight_casts";
    case MemoryKind::kBatch:
      return "batch";
    case MemoryKind::kActivations:
      return "activations";
    case MemoryKind::kTemporaries:
      return "temporaries";
  }
  return "";
}

std::string_view precision_outcome_name(PrecisionOutcome outcome) {
  switch (outcome) {
    case PrecisionOutcome::kSame:
      return "same";
    case PrecisionOutcome::kLostSteps:
      return "lost_steps";
    case PrecisionOutcome::kBadValidation:
      return "bad_validation";
    case PrecisionOutcome::kWorse:
      return "worse";
    case PrecisionOutcome::kNonFinite:
      return "nonfinite";
    case PrecisionOutcome::kStopped:
      return "stopped";
    case PrecisionOutcome::kRefused:
      return "refused";
    case PrecisionOutcome::kNoReference:
      return "no_reference";
  }
  return "";
}

}  // namespace nanhunt
