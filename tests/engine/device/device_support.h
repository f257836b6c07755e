// SPDX-License-Identifier: Apache-2.0
// A device for tests of the engine: the emulated one with the products of the engine's BLAS, so that whole runs can be
// compared bit for bit; and a GPU where there is one. With NANHUNT_TEST_DEVICE=cuda the same tests ask the GPU.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/tensor.h"
#include "tests/support/emulated_device.h"

namespace nanhunt::engine::testing {

// The emulated device while it lives.
class ScopedEmulatedDevice {
 public:
  ScopedEmulatedDevice();
  ~ScopedEmulatedDevice();
  ScopedEmulatedDevice(const ScopedEmulatedDevice&) = delete;
  ScopedEmulatedDevice& operator=(const ScopedEmulatedDevice&) = delete;
  testing_support::EmulatedDevice device;
};
inline const Device kEmulated{DeviceKind::kEmulated, 0};

// On a device with the same strides and offset, and the same bytes around it. Requires a gradient if the original does.
Tensor same_on(const Tensor& tensor, const Device& device);
// A tensor of another dtype with the same layout.
Tensor same_as(const Tensor& tensor, DType dtype);

// The bits, row-major; NaNs all the same one, for their payload is not promised.
std::vector<double> values_of(const Tensor& tensor);
::testing::AssertionResult same_values(const Tensor& expected, const Tensor& actual);

}  // namespace nanhunt::engine::testing
