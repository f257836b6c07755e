// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/tensor_stats_instance.h"

namespace nanhunt::kernels::cuda {

NANHUNT_DEFINE_STATS(StatsLevel::kHistogram, FewViews)

}  // namespace nanhunt::kernels::cuda
