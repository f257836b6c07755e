// SPDX-License-Identifier: Apache-2.0
// Classes of the loss scaler in a finding: what it calibrates away, when it cannot recover, wrong calls.
#pragma once

#include <vector>

#include "nanhunt/analyzer.h"
#include "src/analyze/graph/case.h"
#include "src/analyze/rules/rule.h"
#include "src/analyze/watch/scaler_watch.h"

namespace nanhunt::analyze {

// Is this badness a matter of the scale, held back each time?
enum class Excuse : std::uint8_t {
  kNone,
  kCalibrated,  // gone once the scale was lower, or with the next batch
  kOpen,        // the trace ends before that could be seen
};
Excuse excuse_of(const Case& c, FindingClass cls, const ScalerWatch& scaler);

// Says of gradients that overflowed under a static scale that they carry it, and what cures that.
void blame_scale(const Case& c, FindingClass cls, Diagnosis& diagnosis, const ScalerWatch& scaler);

// Turn a finding about an overflow in backward into one about the scaler. `trials` are those of all its births.
void report_calibration(Finding& f, const std::vector<const ScaleTrial*>& trials, const ScalerWatch& scaler);
void report_open_streak(Finding& f, const std::vector<const ScaleTrial*>& trials);
void report_collapse(Finding& f, const ScalerWatch::CollapseState& state);

// Adds wrong calls of the scaler. One that changed the size of updates leads the faults that follow of it, as one
// finding.
void report_misuses(std::vector<Finding>& findings, const ScalerWatch& scaler);

}  // namespace nanhunt::analyze
