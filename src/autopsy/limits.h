// SPDX-License-Identifier: Apache-2.0
// Thresholds of the patterns; GUIDE.md has them as a table, in the same order.
#pragma once

#include <cstddef>

namespace nanhunt::autopsy::limits {

inline constexpr double kExplodes = 10;              // times its earlier level
inline constexpr double kGrows = 3;                  // the same, for `possible`; below it a curve is calm
inline constexpr double kRecordHigh = 1.2;           // times the highest value before
inline constexpr std::size_t kRising = 3;            // record highs that make a trend
inline constexpr std::size_t kHealthyStart = 5;      // good points that make a healthy curve
inline constexpr double kFirstSteps = 10;            // up to this step the updates are the first ones
inline constexpr std::size_t kStart = 2;             // good points that are still the start of a run
inline constexpr double kLowestScale = 1;            // a loss scale below it scales nothing up
inline constexpr double kFirstScale = 128;  // the least that a column "scale" begins with where it is a loss scale
inline constexpr std::size_t kCollapse = 12;         // falls of the scale without a step that worked
inline constexpr std::size_t kCalibration = 16;      // falls of the scale at the start that are harmless: 65536 to 1
inline constexpr std::size_t kCalibrationFalls = 6;  // falls without a step that worked, for `possible`
inline constexpr std::size_t kSoon = 3;              // points after a restart, or after a jump of the learning rate
inline constexpr std::size_t kLater = 10;            // points after a restart, for `possible`
inline constexpr double kRateJump = 10;              // times the learning rate before
inline constexpr double kRateStep = 3;               // the same, for `possible`
inline constexpr std::size_t kPeriods = 3;           // times that something returned at one distance
inline constexpr double kGrownBy = 1000;               // times its first value: a loss that is not healthy
inline constexpr std::size_t kLostRows = 3;            // rows without a loss at the end
inline constexpr std::size_t kLostTimes = 2;           // times the longest earlier stretch of them
inline constexpr std::size_t kFrozen = 3;            // zeros in a row of a loss that was larger

}  // namespace nanhunt::autopsy::limits
