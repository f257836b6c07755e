// SPDX-License-Identifier: Apache-2.0
// What the statistics need of a recorder of this backend: where its rings are. For .cu files.
#pragma once

#include "kernels/cuda/record_ring.h"

namespace nanhunt::kernels::cuda {

class RingOwner {
 public:
  virtual ~RingOwner() = default;
  virtual Ring ring() const = 0;
};

}  // namespace nanhunt::kernels::cuda
