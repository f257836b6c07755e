// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device_row_threads.h"
#include "kernels/cuda/device_launches.h"
#include "kernels/portable/row_kernels.h"
#include "kernels/portable/unscale_kernels.h"

namespace nanhunt::kernels::cuda {
namespace {

// By how a kernel is called: an element each, or a row by lanes.
template <class Kernel>
void launch_any(const Kernel& kernel, cudaStream_t stream) {
  if constexpr (requires(const DeviceRowThreads& lanes) { kernel(lanes, std::int64_t{0}); }) {
    launch_rows(kernel, stream);
  } else {
    launch_each(kernel, stream);
  }
}

template <class T>
void reduce(const ReduceCall& call, cudaStream_t stream, const std::function<void*(std::size_t)>& room) {
  if (call.kind == Reduction::kAmax || call.rows.length <= kLongRow) {
    launch_rows(ReduceKernel<T>{call}, stream);
    return;
  }
  const auto launch_one = [stream](const auto& kernel) { launch_any(kernel, stream); };
  reduce_long_rows<T>(call, launch_one, [&](std::int64_t count) {
    return static_cast<T*>(room(static_cast<std::size_t>(count) * sizeof(T)));
  });
}

template <class T>
void layer_norm_gradient(const LayerNormGradientCall& call, cudaStream_t stream) {
  if (call.grad_in.data != nullptr) launch_rows(LayerNormGradientKernel<T>{call}, stream);
  if (call.grad_weight.data == nullptr && call.grad_bias.data == nullptr) return;
  launch_each(LayerNormAffineGradientKernel<T>{call}, stream);
}

}  // namespace

void launch(const ReduceCall& call, cudaStream_t stream, const std::function<void*(std::size_t)>& room) {
  call.wide ? reduce<double>(call, stream, room) : reduce<float>(call, stream, room);
}
void launch(const SoftmaxCall& call, cudaStream_t stream) {
  call.wide ? launch_rows(SoftmaxKernel<double>{call}, stream) : launch_rows(SoftmaxKernel<float>{call}, stream);
}
void launch(const SoftmaxGradientCall& call, cudaStream_t stream) {
  call.wide ? launch_rows(SoftmaxGradientKernel<double>{call}, stream)
            : launch_rows(SoftmaxGradientKernel<float>{call}, stream);
}
void launch(const LayerNormCall& call, cudaStream_t stream) {
  in_arithmetic_of(call.arithmetic, [&]<class T>(T) { launch_rows(LayerNormKernel<T>{call}, stream); });
}
void launch(const LayerNormGradientCall& call, cudaStream_t stream) {
  in_arithmetic_of(call.arithmetic, [&]<class T>(T) { layer_norm_gradient<T>(call, stream); });
}
void launch(const PickedLossCall& call, cudaStream_t stream) {
  call.wide ? launch_rows(PickedLossKernel<double>{call}, stream) : launch_rows(PickedLossKernel<float>{call}, stream);
}

void launch(const UnscaleManyCall& call, cudaStream_t stream) {
  launch_unscale(call, [stream](const auto& kernel) { launch_rows(kernel, stream); });
}

}  // namespace nanhunt::kernels::cuda
