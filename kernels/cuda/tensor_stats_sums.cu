// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/tensor_stats_instance.h"

namespace nanhunt::kernels::cuda {

NANHUNT_DEFINE_STATS(StatsLevel::kSums, ViewOrRows)
NANHUNT_DEFINE_STATS(StatsLevel::kSums, FewRows)
NANHUNT_DEFINE_STATS(StatsLevel::kSums, ParameterTable)

}  // namespace nanhunt::kernels::cuda
