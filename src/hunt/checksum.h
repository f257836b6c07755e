// SPDX-License-Identifier: Apache-2.0
// A checksum of contents, to tell whether they changed: as fast as memory, no defence against intent. Every change within
// one 8-byte word changes it for certain, any other with odds of 1 in 2^64.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nanhunt::hunt {

std::uint64_t compute_checksum(const void* data, std::size_t bytes);

}  // namespace nanhunt::hunt
