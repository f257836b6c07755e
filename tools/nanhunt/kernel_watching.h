// SPDX-License-Identifier: Apache-2.0
// Kernels of a run on a GPU, where they can be watched; where not, the trace says why.
#pragma once

#include <memory>
#include <string>

#include "hooks/cupti/kernel_watch.h"
#include "nanhunt/recorder.h"

namespace nanhunt::cli {

// Null on the CPU, and where nothing is watched: a note in the trace tells why. Before anything runs on the device.
std::unique_ptr<hooks::KernelWatch> watch_kernels(const std::string& device, const std::string& level,
                                                  Recorder& recorder, const hooks::KernelOptions& options = {});

}  // namespace nanhunt::cli
