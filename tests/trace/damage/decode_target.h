// SPDX-License-Identifier: Apache-2.0
// What fuzz targets and mutation tests run on bytes from anywhere: they abort when a promise is broken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace nanhunt::trace_testing {

// Decodes one chunk's columns; the kind is chosen by type (any number), 255 is the index.
void decode_columns(std::uint16_t type, std::size_t rows, std::span<const std::byte> packed,
                    std::span<const std::byte> plain);

// Reads a file as a trace and checks what is delivered and the account of it.
void read_and_check(const std::string& path);

}  // namespace nanhunt::trace_testing
