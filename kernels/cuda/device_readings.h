// SPDX-License-Identifier: Apache-2.0
// Readings of one GPU's stream. For the backend.
#pragma once

#include <memory>
#include <string>

#include "kernels/device_readings.h"

namespace nanhunt::kernels::cuda {

// nullptr where there is no memory for them, and `why` says so.
std::unique_ptr<ReadingsPort> open_readings_port(int device, DeviceStream stream, const ReadingsOptions& options,
                                                 std::string& why);

}  // namespace nanhunt::kernels::cuda
