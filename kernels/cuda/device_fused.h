// SPDX-License-Identifier: Apache-2.0
// Maps with statistics (fused_map.h) as launches on one stream, and the memory that they leave them in. For .cu files.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/portable/fused_map.h"
#include "kernels/fused_looks.h"
#include "nanhunt/status.h"

namespace nanhunt::kernels::cuda {

class FusedMaps {
 public:
  FusedMaps() = default;
  ~FusedMaps();
  FusedMaps(const FusedMaps&) = delete;
  FusedMaps& operator=(const FusedMaps&) = delete;

  // One for each who looks at contents on that stream. The first one allocates, and loads the kernel.
  Status arm(cudaStream_t stream);
  void disarm() { looks_.disarm(); }
  // False: it is not one that is fused, and nothing was launched. Throws where a launch fails.
  bool launch(const MapCall& call, cudaStream_t stream);

  FusedLooks& looks() { return looks_; }
  const FusedLook* memory() const { return memory_.looks; }

 private:
  FusedLooks looks_;
  FusedMemory memory_;  // one piece, which begins with `looks`
};

}  // namespace nanhunt::kernels::cuda
