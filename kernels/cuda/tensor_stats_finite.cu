// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/tensor_stats_instance.h"

namespace nanhunt::kernels::cuda {

NANHUNT_DEFINE_STATS(StatsLevel::kFinite, ViewOrRows)
NANHUNT_DEFINE_STATS(StatsLevel::kFinite, FewRows)
NANHUNT_DEFINE_STATS(StatsLevel::kFinite, ParameterTable)

}  // namespace nanhunt::kernels::cuda
