// SPDX-License-Identifier: Apache-2.0
#include "kernels/portable/batch_norm_kernels.h"
#include "kernels/cuda/device_row_threads.h"
#include "kernels/cuda/device_launches.h"
#include "kernels/portable/image_kernels.h"

namespace nanhunt::kernels::cuda {

void launch(const UnfoldCall& call, cudaStream_t stream) {
  switch (call.bytes) {
    case 2:
      return launch_each(UnfoldKernel<std::uint16_t>{call}, stream);
    case 4:
      return launch_each(UnfoldKernel<std::uint32_t>{call}, stream);
    default:
      return launch_each(UnfoldKernel<std::uint64_t>{call}, stream);
  }
}
void launch(const FoldCall& call, cudaStream_t stream) {
  call.wide ? launch_each(FoldKernel<double>{call}, stream) : launch_each(FoldKernel<float>{call}, stream);
}
void launch(const ChannelBiasCall& call, cudaStream_t stream) {
  call.wide ? launch_each(ChannelBiasKernel<double>{call}, stream)
            : launch_each(ChannelBiasKernel<float>{call}, stream);
}
void launch(const ChannelSumCall& call, cudaStream_t stream) {
  call.wide ? launch_rows(ChannelSumKernel<double>{call}, stream) : launch_rows(ChannelSumKernel<float>{call}, stream);
}
void launch(const MaxPoolCall& call, cudaStream_t stream) {
  call.wide ? launch_each(MaxPoolKernel<double>{call}, stream) : launch_each(MaxPoolKernel<float>{call}, stream);
}
void launch(const MaxPoolGradientCall& call, cudaStream_t stream) {
  call.wide ? launch_each(MaxPoolGradientKernel<double>{call}, stream)
            : launch_each(MaxPoolGradientKernel<float>{call}, stream);
}
void launch(const AvgPoolCall& call, cudaStream_t stream) {
  call.wide ? launch_each(AvgPoolKernel<double>{call}, stream) : launch_each(AvgPoolKernel<float>{call}, stream);
}
void launch(const AvgPoolGradientCall& call, cudaStream_t stream) {
  call.wide ? launch_each(AvgPoolGradientKernel<double>{call}, stream)
            : launch_each(AvgPoolGradientKernel<float>{call}, stream);
}
void launch(const UpsampleGradientCall& call, cudaStream_t stream) {
  call.wide ? launch_each(UpsampleGradientKernel<double>{call}, stream)
            : launch_each(UpsampleGradientKernel<float>{call}, stream);
}
void launch(const BatchNormCall& call, cudaStream_t stream) {
  in_arithmetic_of(call.arithmetic, [&]<class T>(T) { launch_rows(BatchNormKernel<T>{call}, stream); });
}
void launch(const BatchNormGradientCall& call, cudaStream_t stream) {
  in_arithmetic_of(call.arithmetic, [&]<class T>(T) { launch_rows(BatchNormGradientKernel<T>{call}, stream); });
}

}  // namespace nanhunt::kernels::cuda
