// SPDX-License-Identifier: Apache-2.0
// Caps of the .nht format. Writer and reader both keep them: FORMAT.md names each.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nanhunt::trace {

inline constexpr std::uint16_t kFormatMajor = 1;
inline constexpr std::uint16_t kFormatMinor = 0;

inline constexpr std::uint32_t kMaxRows = 65536;              // a reader's cap
inline constexpr std::uint32_t kFrameRows = 4096;             // where this writer cuts
inline constexpr std::size_t kFrameBytes = 2u << 20;          // ... or at about this much payload of one kind
inline constexpr std::uint32_t kMaxRawBytes = 16u << 20;      // payload once unpacked
inline constexpr std::size_t kMaxItems = 1u << 20;            // list items in a chunk
inline constexpr std::size_t kMaxRowItems = 1u << 19;         // list items of one row that this writer accepts
inline constexpr std::uint32_t kMaxTableId = (1u << 20) - 1;  // string and layout ids
inline constexpr std::size_t kMaxTextBytes = 65536;
inline constexpr std::size_t kMaxDims = 64;
inline constexpr std::size_t kMaxUnpackRatio = 256;
inline constexpr std::size_t kMaxIndexRows = kMaxRows;  // chunks in a segment; then it rotates
inline constexpr std::size_t kMaxRunInfoBytes = 1u << 20;
inline constexpr std::size_t kMaxProblems = 100;

}  // namespace nanhunt::trace
