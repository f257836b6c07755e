// SPDX-License-Identifier: Apache-2.0
// What a launch may carry by value: a decision, so that it is tested without a driver.
#pragma once

#include <cstddef>

namespace nanhunt::kernels {

// In bytes: 4 KiB with any driver, from CUDA 12.1 on (as CUDA counts: 12010) 32,764. An older one refuses to load a
// kernel with more.
inline constexpr std::size_t kFewParameterBytes = 4096, kManyParameterBytes = 32764;
constexpr std::size_t parameter_bytes(int driver_version) {
  return driver_version >= 12010 ? kManyParameterBytes : kFewParameterBytes;
}

}  // namespace nanhunt::kernels
