// SPDX-License-Identifier: Apache-2.0
// train --find-lr: what came of the ramp, as the report shows it.
#pragma once

#include <string>

#include "nanhunt/analyzer.h"
#include "nanhunt/engine/lr_finder.h"

namespace nanhunt::cli {

LrRamp ramp_of(const engine::LrCurve& curve);
std::string lr_table(const LrRamp& ramp);

}  // namespace nanhunt::cli
