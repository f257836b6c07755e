// SPDX-License-Identifier: Apache-2.0
#include "tests/autopsy/log_files.h"

#include <bit>
#include <span>

#include "src/autopsy/collect.h"
#include "src/trace/encoding/crc32c.h"

namespace nanhunt::autopsy_testing {
namespace {

std::string little_endian(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>((value >> (8 * i)) & 0xffu);
  return out;
}

std::string masked_crc(std::string_view data) {
  const std::uint32_t crc = trace::crc32c(std::as_bytes(std::span(data.data(), data.size())));
  return little_endian(((crc >> 15) | (crc << 17)) + 0xa282ead8u, 4);
}

// Bit by bit, so that it is no copy of the table under test.
std::uint32_t slow_crc32(std::string_view data) {
  std::uint32_t crc = 0xffffffffu;
  for (const char c : data) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0xedb88320u : 0u);
  }
  return ~crc;
}

}  // namespace

std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7fu) | 0x80u);
  return out + static_cast<char>(value);
}

std::string bytes_field(std::uint32_t number, std::string_view bytes) {
  return varint((number << 3) | 2u) + varint(bytes.size()) + std::string(bytes);
}

std::string varint_field(std::uint32_t number, std::uint64_t value) { return varint(number << 3) + varint(value); }

std::string float_field(std::uint32_t number, float value) {
  return varint((number << 3) | 5u) + little_endian(std::bit_cast<std::uint32_t>(value), 4);
}

std::string tfrecord(std::string_view data) {
  const std::string length = little_endian(data.size(), 8);
  return length + masked_crc(length) + std::string(data) + masked_crc(data);
}

std::string scalar_event(std::string_view tag, std::int64_t step, float value) {
  const std::string scalar = bytes_field(1, tag) + float_field(2, value);
  return tfrecord(varint_field(2, static_cast<std::uint64_t>(step)) + bytes_field(5, bytes_field(1, scalar)));
}

std::string wandb_file(const std::vector<std::string>& records) {
  constexpr std::size_t kBlock = 32768, kHead = 7;
  std::string out(":W&B\xe1\xbe\0", kHead);
  for (const std::string& record : records) {
    std::string_view left = record;
    bool first = true;
    do {
      std::size_t room = kBlock - out.size() % kBlock;
      if (room < kHead) {
        out.append(room, '\0');
        room = kBlock;
      }
      const std::string_view part = left.substr(0, room - kHead);
      left.remove_prefix(part.size());
      const char type = static_cast<char>(first ? (left.empty() ? 1 : 2) : (left.empty() ? 4 : 3));
      std::string checked(part.size() + 1, type);
      part.copy(checked.data() + 1, part.size());
      out += little_endian(slow_crc32(checked), 4);
      out += little_endian(part.size(), 2);
      out += checked;
      first = false;
    } while (!left.empty());
  }
  return out;
}

std::string wandb_history(std::int64_t step, const std::vector<std::pair<std::string, std::string>>& items) {
  std::string history;
  for (const auto& [key, json] : items) history += bytes_field(1, bytes_field(2, key) + bytes_field(16, json));
  history += bytes_field(2, step == 0 ? "" : varint_field(1, static_cast<std::uint64_t>(step)));
  return varint_field(1, 7) + bytes_field(2, history);
}

autopsy::Evidence evidence_of(std::string_view name, std::string_view bytes) {
  autopsy::Evidence out;
  if (!autopsy::add_file(std::string(bytes), name, out)) autopsy::add_text(std::string(bytes), name, out);
  autopsy::join_series(out);
  return out;
}

autopsy::Evidence curves_of(const std::vector<std::pair<std::string, std::vector<double>>>& curves) {
  autopsy::Evidence out;
  out.sources.push_back({"curves", "JSON lines", ""});
  autopsy::EvidenceBuilder builder(out, 0);
  for (const auto& [name, values] : curves) {
    for (std::size_t i = 0; i < values.size(); ++i)
      builder.add(name, static_cast<double>(i), autopsy::Unit::kStep, values[i]);
  }
  return out;
}

std::vector<std::string> guesses_of(const autopsy::Evidence& evidence) {
  std::vector<std::string> out;
  for (const autopsy::Guess& guess : autopsy::judge(evidence).guesses) {
    std::string& one = out.emplace_back(guess.pattern);
    if (guess.confidence == autopsy::Confidence::kLikely) one.push_back('!');
  }
  return out;
}

const autopsy::Series* find_series(const autopsy::Evidence& evidence, std::string_view name) {
  for (const autopsy::Series& series : evidence.series) {
    if (series.name == name) return &series;
  }
  return nullptr;
}

}  // namespace nanhunt::autopsy_testing
