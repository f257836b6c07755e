// SPDX-License-Identifier: Apache-2.0
// The engine's kernels as functions, so that they are compiled in several units.
#pragma once

#include <cuda_runtime.h>

#include <functional>

#include "kernels/device_ops.h"

namespace nanhunt::kernels::cuda {

void launch(const MapCall& call, cudaStream_t stream);  // of a known formula
void launch(const CopyCall& call, cudaStream_t stream);
void launch(const GradientSumCall& call, cudaStream_t stream);  // of values as they are
// `room` gives memory of the device that nobody else uses until the reduction is done.
void launch(const ReduceCall& call, cudaStream_t stream, const std::function<void*(std::size_t)>& room);
void launch(const SoftmaxCall& call, cudaStream_t stream);
void launch(const SoftmaxGradientCall& call, cudaStream_t stream);
void launch(const LayerNormCall& call, cudaStream_t stream);
void launch(const LayerNormGradientCall& call, cudaStream_t stream);
void launch(const PickedLossCall& call, cudaStream_t stream);
void launch(const PickedLossGradientCall& call, cudaStream_t stream);
void launch(const GatherRowsCall& call, cudaStream_t stream);
void launch(const ScatterRowsCall& call, cudaStream_t stream);
void launch(const DropoutMaskCall& call, cudaStream_t stream);
void launch(const UnscaleCall& call, cudaStream_t stream);
void launch(const UnscaleManyCall& call, cudaStream_t stream);
void launch(const FusedSgdCall& call, cudaStream_t stream);
void launch(const FusedAdamCall& call, cudaStream_t stream);
void launch(const UnfoldCall& call, cudaStream_t stream);
void launch(const FoldCall& call, cudaStream_t stream);
void launch(const ChannelBiasCall& call, cudaStream_t stream);
void launch(const ChannelSumCall& call, cudaStream_t stream);
void launch(const MaxPoolCall& call, cudaStream_t stream);
void launch(const MaxPoolGradientCall& call, cudaStream_t stream);
void launch(const AvgPoolCall& call, cudaStream_t stream);
void launch(const AvgPoolGradientCall& call, cudaStream_t stream);
void launch(const UpsampleGradientCall& call, cudaStream_t stream);
void launch(const BatchNormCall& call, cudaStream_t stream);
void launch(const BatchNormGradientCall& call, cudaStream_t stream);

}  // namespace nanhunt::kernels::cuda
