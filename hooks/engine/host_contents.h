// SPDX-License-Identifier: Apache-2.0
// Contents of tensors where the host can read them. On the CPU that is the tensor itself; of one on a device a copy is
// made, which waits for the device.
#pragma once

#include "nanhunt/engine/tensor.h"

namespace nanhunt::hooks {

// Valid until release_host_contents() of this thread, and while `tensor` lives. The same contents are copied once.
TensorView host_view(const engine::Tensor& tensor);
void release_host_contents() noexcept;

// Releases what its scope copied, unless an outer scope does.
class ScopedHostContents {
 public:
  ScopedHostContents() noexcept;
  ~ScopedHostContents();
  ScopedHostContents(const ScopedHostContents&) = delete;
  ScopedHostContents& operator=(const ScopedHostContents&) = delete;
};

}  // namespace nanhunt::hooks
