// SPDX-License-Identifier: Apache-2.0
// What reads whole tensors (tensor_stats_kernel.h, checksum_stats_kernel.h, checksum_kernel.h), as launches. A block for each
// item; each starts the launch and nothing else.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/portable/checksum_stats_kernel.h"
#include "kernels/portable/finite_kernel.h"
#include "kernels/portable/tensor_stats_kernel.h"

namespace nanhunt::kernels::cuda {

cudaError_t launch(const StatsKernel& kernel, std::uint32_t items, cudaStream_t stream);
cudaError_t launch(const HistogramKernel& kernel, std::uint32_t items, cudaStream_t stream);
cudaError_t launch(const ChecksumStatsKernel& kernel, std::uint32_t items, cudaStream_t stream);
cudaError_t launch(const ChecksumKernel& kernel, cudaStream_t stream);
cudaError_t launch(const FiniteKernel& kernel, std::uint32_t items, cudaStream_t stream);

// Kernels are loaded when they are first used, which takes memory and may wait for the device: this does it before.
cudaError_t load_stats();
cudaError_t load_histograms();
cudaError_t load_checks();
cudaError_t load_finite();

}  // namespace nanhunt::kernels::cuda
