// SPDX-License-Identifier: Apache-2.0
// Numbers that device code takes as constants, for it may not call the functions of std::numeric_limits.
#pragma once

#include <limits>

namespace nanhunt::kernels::cuda {

template <class T>
inline constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();
template <class T>
inline constexpr T kInfinity = std::numeric_limits<T>::infinity();

}  // namespace nanhunt::kernels::cuda
