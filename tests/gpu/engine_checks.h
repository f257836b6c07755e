// SPDX-License-Identifier: Apache-2.0
// What gpu_engine can run. Checks write rows and return false where the device cannot be used (said on stderr).
#pragma once

#include <string>

#include "nanhunt/engine/device.h"
#include "tests/gpu/rows.h"

namespace nanhunt::gpu {

bool knows_step(const std::string& size, const std::string& watch);
int run_steps(const std::string& size, const std::string& watch, const engine::Device& device);  // the exit status
bool run_cupti_checks(Rows& rows, const engine::Device& device);
bool run_competitor_checks(Rows& rows, const engine::Device& device);
bool run_sync_checks(Rows& rows, const engine::Device& device);

}  // namespace nanhunt::gpu
