// SPDX-License-Identifier: Apache-2.0
// Contents of tensors where the host can read them. On the CPU that is the tensor itself; of one on a device a copy is
// made, which waits for the device.
#pragma once

#include "nanhunt/engine/tensor.h"

namespace nanhunt::hooks {

// Valid until a ScopedHostContents of this thread ends, and while `tensor` lives. The same contents are copied once.
TensorView host_view(const engine::Tensor& tensor);

// Releases what was copied; there is one at a time.
class ScopedHostContents {
 public:
  ScopedHostContents() = default;
  ~ScopedHostContents();
  ScopedHostContents(const ScopedHostContents&) = delete;
  ScopedHostContents& operator=(const ScopedHostContents&) = delete;
};

}  // namespace nanhunt::hooks
