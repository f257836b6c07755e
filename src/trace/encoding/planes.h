// SPDX-License-Identifier: Apache-2.0
// Numbers to byte planes and back: plane k holds byte k of every number.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace nanhunt::trace {

// One pointer per byte of a number, each to n bytes; nullptr: that byte is the same in all of them.
using PlaneOutputs = std::array<std::byte*, 8>;
using PlaneInputs = std::array<const std::byte*, 8>;

// `wide`: with AVX2 where the processor has it. The result is the same; tests turn it off.
void split_planes(const std::uint64_t* values, std::size_t n, const PlaneOutputs& planes, bool wide = true);
// Bytes without a plane are those of `constants`; its other bytes must be 0.
void join_planes(std::uint64_t* values, std::size_t n, const PlaneInputs& planes, std::uint64_t constants,
                 bool wide = true);

}  // namespace nanhunt::trace
