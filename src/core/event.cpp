// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/event.h"

#include <array>
#include <cstddef>

namespace nanhunt {
namespace {

// In the order of the enumerators.
constexpr std::array<std::string_view, 11> kPhaseNames = {"data",    "forward", "loss",      "scale",  "backward",  "comm",
                                                          "unscale", "clip",    "optimizer", "update", "validation"};
static_assert(kPhaseNames.size() == static_cast<std::size_t>(Phase::kValidation) + 1);

constexpr std::array<std::string_view, 8> kTensorRoleNames = {"loss",   "boundary_gradient", "parameter", "state",
                                                            "buffer", "batch",         "label",     "output"};
static_assert(kTensorRoleNames.size() == static_cast<std::size_t>(TensorRole::kOutput) + 1);

}  // namespace

std::string_view phase_name(Phase phase) {
  const auto i = static_cast<std::size_t>(phase);
  return i < kPhaseNames.size() ? kPhaseNames[i] : "unknown";
}

std::optional<Phase> parse_phase(std::string_view name) {
  for (std::size_t i = 0; i < kPhaseNames.size(); ++i) {
    if (kPhaseNames[i] == name) return static_cast<Phase>(i);
  }
  return std::nullopt;
}

std::string_view setup_fact_name(SetupFact fact) {
  switch (fact) {
    case SetupFact::kModule: return "module";
    case SetupFact::kAutocast: return "autocast";
    case SetupFact::kBackwardInAutocast: return "backward_in_autocast";
    case SetupFact::kNarrowParameters: return "narrow_parameters";
    case SetupFact::kForeignParameters: return "foreign_parameters";
    case SetupFact::kWideColumn: return "wide_column";
    case SetupFact::kCoordinate: return "coordinate";
    case SetupFact::kAccelerator: return "accelerator";
    case SetupFact::kReplicas: return "replicas";
  }
  return "unknown";
}

std::string_view step_ending_name(StepEnding ending) {
  switch (ending) {
    case StepEnding::kOptimizer: return "optimizer";
    case StepEnding::kNextForward: return "next_forward";
    case StepEnding::kException: return "exception";
    case StepEnding::kExit: return "exit";
    case StepEnding::kEnd: return "end";
    case StepEnding::kForward: return "forward";
  }
  return "unknown";
}

std::string_view scaler_action_name(ScalerAction action) {
  switch (action) {
    case ScalerAction::kCreate: return "create";
    case ScalerAction::kScale: return "scale";
    case ScalerAction::kUnscale: return "unscale";
    case ScalerAction::kClip: return "clip";
    case ScalerAction::kStep: return "step";
    case ScalerAction::kSkip: return "skip";
    case ScalerAction::kUpdate: return "update";
    case ScalerAction::kSet: return "set";
    case ScalerAction::kRefused: return "refused";
    case ScalerAction::kGaveUp: return "gave_up";
  }
  return "unknown";
}

std::string_view probe_mode_name(ProbeMode mode) {
  switch (mode) {
    case ProbeMode::kSame: return "same";
    case ProbeMode::kOtherKernel: return "other_kernel";
    case ProbeMode::kWider: return "wider";
    case ProbeMode::kRemedy: return "remedy";
  }
  return "unknown";
}

std::string_view collective_kind_name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce: return "allreduce";
    case CollectiveKind::kBroadcast: return "broadcast";
    case CollectiveKind::kAllGather: return "allgather";
    case CollectiveKind::kReduceScatter: return "reduce_scatter";
    case CollectiveKind::kAllToAll: return "alltoall";
    case CollectiveKind::kReduce: return "reduce";
    case CollectiveKind::kScatter: return "scatter";
    case CollectiveKind::kGather: return "gather";
    case CollectiveKind::kSend: return "send";
    case CollectiveKind::kRecv: return "recv";
    case CollectiveKind::kBarrier: return "barrier";
  }
  return "unknown";
}

std::string_view reduction_name(Reduction reduction) {
  switch (reduction) {
    case Reduction::kNone: return "none";
    case Reduction::kSum: return "sum";
    case Reduction::kAvg: return "avg";
    case Reduction::kMin: return "min";
    case Reduction::kMax: return "max";
    case Reduction::kProduct: return "product";
  }
  return "unknown";
}

std::string_view tensor_role_name(TensorRole kind) {
  const auto i = static_cast<std::size_t>(kind);
  return i < kTensorRoleNames.size() ? kTensorRoleNames[i] : "unknown";
}

}  // namespace nanhunt
