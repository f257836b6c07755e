// SPDX-License-Identifier: Apache-2.0
// The vector paths of convert.h; nullptr in a build without them.
#pragma once

#include "kernels/cpu/convert.h"

namespace nanhunt::kernels {

const ConvertPath* convert_path_avx2();
const ConvertPath* convert_path_avx512();

}  // namespace nanhunt::kernels
