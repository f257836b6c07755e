// SPDX-License-Identifier: Apache-2.0
// What the statistics kernels are measured against: reading a buffer and doing nothing with it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nanhunt::bench {

// ORs all of it with the widest loads of this CPU, front to back. `bytes` is a multiple of 32 KiB.
std::uint64_t plain_read(const void* data, std::size_t bytes);

// The same with the kernels' way of prefetching: the fastest read known here.
std::uint64_t prefetched_read(const void* data, std::size_t bytes);

}  // namespace nanhunt::bench
