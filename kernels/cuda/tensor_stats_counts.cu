// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/tensor_stats_instance.h"

namespace nanhunt::kernels::cuda {

NANHUNT_DEFINE_STATS(StatsLevel::kCounts, ViewOrRows)
NANHUNT_DEFINE_STATS(StatsLevel::kCounts, FewRows)
NANHUNT_DEFINE_STATS(StatsLevel::kCounts, ParameterTable)

}  // namespace nanhunt::kernels::cuda
