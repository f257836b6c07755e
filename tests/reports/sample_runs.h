// SPDX-License-Identifier: Apache-2.0
// Analyses of whole runs, made up: a loss scaler at work, layers over many steps, norms, histograms.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nanhunt/analyzer.h"

namespace nanhunt::testing_reports {

// A forward overflow in fp16 under a loss scaler that has also skipped for reasons of its own.
Analysis make_overflow_analysis();
// Kernels of some of its ops, as if a GPU had run them.
DeviceTime make_device_time();
// What neither of the others has: every field that a finding, audits, the device and several ranks bring, in a warning.
Analysis make_warning_analysis();
// The scaler finding its scale; nothing wrong.
Analysis make_calibrating_analysis();
// A learning rate finder that ran on: finite, diverging, +Inf, then NaN.
Analysis make_ramp_analysis();
// What the analysis of a long run amounts to: its timeline and its map are as large as they may be.
Analysis make_long_analysis(std::uint32_t steps, std::size_t layers);

}  // namespace nanhunt::testing_reports
