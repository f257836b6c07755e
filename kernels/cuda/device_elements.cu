// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device_row_threads.h"
#include "kernels/cuda/device_launches.h"
#include "kernels/portable/index_kernels.h"
#include "kernels/portable/map_kernels.h"

namespace nanhunt::kernels::cuda {

void launch(const MapCall& call, cudaStream_t stream) {
  call.wide ? launch_each(MapKernel<double>{call}, stream) : launch_each(MapKernel<float>{call}, stream);
}
void launch(const CopyCall& call, cudaStream_t stream) {
  switch (call.bytes) {
    case 1:
      return launch_each(CopyKernel<std::uint8_t>{call}, stream);
    case 2:
      return launch_each(CopyKernel<std::uint16_t>{call}, stream);
    case 4:
      return launch_each(CopyKernel<std::uint32_t>{call}, stream);
    default:
      return launch_each(CopyKernel<std::uint64_t>{call}, stream);
  }
}
void launch(const GradientSumCall& call, cudaStream_t stream) {
  call.map.wide ? launch_each(GradientSumKernel<double>{call}, stream)
                : launch_each(GradientSumKernel<float>{call}, stream);
}
void launch(const PickedLossGradientCall& call, cudaStream_t stream) {
  call.wide ? launch_each(PickedLossGradientKernel<double>{call}, stream)
            : launch_each(PickedLossGradientKernel<float>{call}, stream);
}
void launch(const GatherRowsCall& call, cudaStream_t stream) {
  switch (call.bytes) {
    case 2:
      return launch_each(GatherRowsKernel<std::uint16_t>{call}, stream);
    case 4:
      return launch_each(GatherRowsKernel<std::uint32_t>{call}, stream);
    default:
      return launch_each(GatherRowsKernel<std::uint64_t>{call}, stream);
  }
}
void launch(const ScatterRowsCall& call, cudaStream_t stream) {
  call.wide ? launch_each(ScatterRowsKernel<double>{call}, stream)
            : launch_each(ScatterRowsKernel<float>{call}, stream);
}
void launch(const DropoutMaskCall& call, cudaStream_t stream) { launch_each(DropoutMaskKernel{call}, stream); }
void launch(const UnscaleCall& call, cudaStream_t stream) {
  call.wide ? launch_each(UnscaleKernel<double>{call}, stream) : launch_each(UnscaleKernel<float>{call}, stream);
}
void launch(const FusedSgdCall& call, cudaStream_t stream) {
  call.wide ? launch_each(FusedSgdKernel<double>{call}, stream) : launch_each(FusedSgdKernel<float>{call}, stream);
}
void launch(const FusedAdamCall& call, cudaStream_t stream) {
  call.wide ? launch_each(FusedAdamKernel<double>{call}, stream) : launch_each(FusedAdamKernel<float>{call}, stream);
}

}  // namespace nanhunt::kernels::cuda
