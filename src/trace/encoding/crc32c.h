// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli), with the processor's instruction where it has one, else by table. Same result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nanhunt::trace {

std::uint32_t crc32c(std::span<const std::byte> data);

// The two ways by themselves, so that tests can compare them.
std::uint32_t crc32c_table(std::span<const std::byte> data);
bool crc32c_has_hardware();
std::uint32_t crc32c_hardware(std::span<const std::byte> data);  // only if crc32c_has_hardware()

}  // namespace nanhunt::trace
