// SPDX-License-Identifier: Apache-2.0
// Header and names of the segment files of an attempt.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace nanhunt::trace {

inline constexpr std::size_t kFileHeaderBytes = 64;
inline constexpr std::size_t kMaxFileHeaderBytes = 4096;

struct FileHeader {
  std::uint16_t major = 0, minor = 0;
  std::uint32_t header_size = kFileHeaderBytes;
  std::uint64_t identity = 0;
  std::uint32_t rank = 0, attempt = 0, segment = 0;
  std::uint64_t first_sequence = 0;
  // Not 0: retention rewrote the segment, which stands for every chunk from first_sequence to below this one.
  std::uint64_t next_sequence = 0;
};

std::array<std::byte, kFileHeaderBytes> store_file_header(const FileHeader& header);

enum class HeaderCheck {
  kGood,
  kNotTrace,  // another magic, or too short to have one
  kCut,       // begins like one, but ends inside the header
  kBadCrc,    // major and minor are filled in, but may be wrong
};
HeaderCheck load_file_header(std::span<const std::byte> bytes, FileHeader& header);

std::uint64_t attempt_identity(std::string_view run_info_text);  // FNV-1a 64

std::string segment_name(std::uint32_t segment);                         // "000000.nht"
std::optional<std::uint32_t> parse_segment_name(std::string_view name);  // nullopt: not a segment's name
std::string rank_folder_name(std::uint32_t rank);                        // "rank-00000"
std::string attempt_folder_name(std::uint32_t attempt);                  // "attempt-0"
std::optional<std::uint32_t> parse_rank_folder_name(std::string_view name);
std::optional<std::uint32_t> parse_attempt_folder_name(std::string_view name);

}  // namespace nanhunt::trace
