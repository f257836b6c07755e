// SPDX-License-Identifier: Apache-2.0
// The vector paths of products.h; nullptr in a build without them.
#pragma once

#include "kernels/cpu/products.h"

namespace nanhunt::kernels {

const ProductPath* product_path_avx2();
const ProductPath* product_path_avx512();

}  // namespace nanhunt::kernels
