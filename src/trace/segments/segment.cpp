// SPDX-License-Identifier: Apache-2.0
#include "src/trace/segments/segment.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "src/trace/encoding/bytes.h"
#include "src/trace/encoding/crc32c.h"

namespace nanhunt::trace {
namespace {

constexpr std::array<std::byte, 8> kFileMagic = {std::byte{0x89}, std::byte{'N'},  std::byte{'H'},  std::byte{'T'},
                                                 std::byte{'\r'}, std::byte{'\n'}, std::byte{0x1a}, std::byte{'\n'}};
constexpr std::size_t kCrcAt = kFileHeaderBytes - 4;

// Exactly the names that the writer makes: "7" or "0000007" would be a second name of the same number.
std::optional<std::uint32_t> parse_number(std::string_view name, std::string_view prefix, std::string_view suffix,
                                          std::string (*make)(std::uint32_t)) {
  if (name.size() <= prefix.size() + suffix.size() || !name.starts_with(prefix) || !name.ends_with(suffix)) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  std::uint32_t number = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (parsed.ec != std::errc{} || parsed.ptr != digits.data() + digits.size() || make(number) != name) {
    return std::nullopt;
  }
  return number;
}

}  // namespace

std::array<std::byte, kFileHeaderBytes> store_file_header(const FileHeader& header) {
  std::array<std::byte, kFileHeaderBytes> out{};
  std::copy(kFileMagic.begin(), kFileMagic.end(), out.begin());
  store(out.data() + 8, header.major);
  store(out.data() + 10, header.minor);
  store(out.data() + 12, header.header_size);
  store(out.data() + 16, header.identity);
  store(out.data() + 24, header.rank);
  store(out.data() + 28, header.attempt);
  store(out.data() + 32, header.segment);
  store(out.data() + 40, header.first_sequence);
  store(out.data() + 48, header.next_sequence);
  store(out.data() + kCrcAt, crc32c({out.data(), kCrcAt}));
  return out;
}

HeaderCheck load_file_header(std::span<const std::byte> bytes, FileHeader& header) {
  const std::size_t magic_bytes = std::min(bytes.size(), kFileMagic.size());
  if (bytes.empty() || !std::equal(bytes.begin(), bytes.begin() + magic_bytes, kFileMagic.begin())) {
    return HeaderCheck::kNotTrace;
  }
  if (bytes.size() < kFileHeaderBytes) return HeaderCheck::kCut;
  const std::byte* at = bytes.data();
  header.major = load<std::uint16_t>(at + 8);
  header.minor = load<std::uint16_t>(at + 10);
  header.header_size = load<std::uint32_t>(at + 12);
  header.identity = load<std::uint64_t>(at + 16);
  header.rank = load<std::uint32_t>(at + 24);
  header.attempt = load<std::uint32_t>(at + 28);
  header.segment = load<std::uint32_t>(at + 32);
  header.first_sequence = load<std::uint64_t>(at + 40);
  header.next_sequence = load<std::uint64_t>(at + 48);
  if (load<std::uint32_t>(at + kCrcAt) != crc32c(bytes.first(kCrcAt))) return HeaderCheck::kBadCrc;
  if (header.header_size < kFileHeaderBytes || header.header_size > kMaxFileHeaderBytes) return HeaderCheck::kBadCrc;
  if (header.first_sequence >> 63 != 0 || header.next_sequence >> 63 != 0) return HeaderCheck::kBadCrc;
  if (header.next_sequence != 0 && header.next_sequence <= header.first_sequence) return HeaderCheck::kBadCrc;
  return HeaderCheck::kGood;
}

std::uint64_t attempt_identity(std::string_view run_info_text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : run_info_text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

std::string segment_name(std::uint32_t segment) { return fmt::format("{:06}.nht", segment); }
std::string rank_folder_name(std::uint32_t rank) { return fmt::format("rank-{:05}", rank); }
std::string attempt_folder_name(std::uint32_t attempt) { return fmt::format("attempt-{}", attempt); }

std::optional<std::uint32_t> parse_segment_name(std::string_view name) {
  return parse_number(name, "", ".nht", segment_name);
}
std::optional<std::uint32_t> parse_rank_folder_name(std::string_view name) {
  return parse_number(name, "rank-", "", rank_folder_name);
}
std::optional<std::uint32_t> parse_attempt_folder_name(std::string_view name) {
  return parse_number(name, "attempt-", "", attempt_folder_name);
}

}  // namespace nanhunt::trace
