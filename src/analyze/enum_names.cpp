// SPDX-License-Identifier: Apache-2.0
// The words of report.json for the enumerations of analyzer.h.
#include "nanhunt/analyzer.h"

namespace nanhunt {

std::string_view finding_class_name(FindingClass c) {
  switch (c) {
    case FindingClass::kOverflow:
      return "overflow";
    case FindingClass::kInvalid:
      return "invalid";
    case FindingClass::kDivideByZero:
      return "divide_by_zero";
    case FindingClass::kEpsUnderflow:
      return "eps_underflow";
    case FindingClass::kUnderflow:
      return "underflow";
    case FindingClass::kUpdateLoss:
      return "update_loss";
    case FindingClass::kExploding:
      return "exploding";
    case FindingClass::kBadInput:
      return "bad_input";
    case FindingClass::kBadState:
      return "bad_state";
    case FindingClass::kUninitialised:
      return "uninitialised";
    case FindingClass::kUnseenKernel:
      return "unseen_kernel";
    case FindingClass::kCorruption:
      return "corruption";
    case FindingClass::kComm:
      return "comm";
    case FindingClass::kApiMisuse:
      return "api_misuse";
    case FindingClass::kScalerCalibration:
      return "scaler_calibration";
    case FindingClass::kScalerCollapse:
      return "scaler_collapse";
    case FindingClass::kNotReproducible:
      return "not_reproducible";
    case FindingClass::kKernelDependent:
      return "kernel_dependent";
    case FindingClass::kUnexplained:
      return "unexplained";
  }
  return "unexplained";
}

std::string_view severity_name(Severity s) {
  switch (s) {
    case Severity::kInfo:
      return "info";
    case Severity::kWarning:
      return "warning";
    case Severity::kFault:
      return "fault";
  }
  return "info";
}

std::string_view confidence_name(Confidence c) {
  switch (c) {
    case Confidence::kProved:
      return "proved";
    case Confidence::kObserved:
      return "observed";
    case Confidence::kInferred:
      return "inferred";
  }
  return "inferred";
}

std::string_view verdict_status_name(VerdictStatus s) {
  switch (s) {
    case VerdictStatus::kClean:
      return "clean";
    case VerdictStatus::kCalibrating:
      return "calibrating";
    case VerdictStatus::kWarning:
      return "warning";
    case VerdictStatus::kFault:
      return "fault";
    case VerdictStatus::kInconclusive:
      return "inconclusive";
  }
  return "inconclusive";
}

Tried tried(const Advice& advice) {
  if (advice.verified) return *advice.verified ? Tried::kWorked : Tried::kFailed;
  if (advice.on_these_numbers) return *advice.on_these_numbers ? Tried::kOnTheseNumbers : Tried::kFailed;
  return Tried::kNotTried;
}

std::string_view lifecycle_name(Lifecycle l) {
  switch (l) {
    case Lifecycle::kAppear:
      return "appear";
    case Lifecycle::kTransform:
      return "transform";
    case Lifecycle::kPropagate:
      return "propagate";
    case Lifecycle::kDisappear:
      return "disappear";
    case Lifecycle::kUnknown:
      return "unknown";
  }
  return "unknown";
}

}  // namespace nanhunt
