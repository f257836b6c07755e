// SPDX-License-Identifier: Apache-2.0
// The devices' backends (kernels/device_ops.h) as the engine reaches them.
#pragma once

#include "kernels/device_ops.h"
#include "nanhunt/engine/device.h"

namespace nanhunt::engine {

// Throws std::runtime_error with why_unusable() where there is none.
kernels::DeviceBackend& backend_of(const Device& device);
// Tests: the device of kind kEmulated. Must outlive every tensor on it; nullptr takes it away.
void set_emulated_backend(kernels::DeviceBackend* backend);

}  // namespace nanhunt::engine
