// SPDX-License-Identifier: Apache-2.0
#include "tests/trace/damage/mutator.h"

#include <algorithm>
#include <utility>

#include "src/trace/encoding/columns.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace_testing {

void Mutator::mutate(Bytes& bytes) {
  for (std::uint64_t changes = 1 + random_() % 4; changes > 0 && !bytes.empty(); --changes) {
    const std::size_t at = random_() % bytes.size();
    const std::size_t length = std::min<std::size_t>(1 + random_() % 16, bytes.size() - at);
    const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    switch (random_() % 6) {
      case 0:
        bytes[at] ^= static_cast<std::byte>(1u << (random_() % 8));
        break;
      case 1:
        bytes[at] = static_cast<std::byte>(random_());
        break;
      case 2:
        std::fill_n(place, length, random_() % 2 == 0 ? std::byte{0} : std::byte{0xff});
        break;
      case 3:
        bytes.erase(place, place + static_cast<std::ptrdiff_t>(length));
        break;
      case 4: {
        const Bytes copy(place, place + static_cast<std::ptrdiff_t>(length));
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(random_() % bytes.size()), copy.begin(), copy.end());
        break;
      }
      default:
        bytes.resize(at);
    }
  }
}

// A chunk with the same number whose columns were changed before they were packed, so that its decoder is reached.
Bytes Mutator::mutated_columns(const trace::ChunkHeader& like, const RecordBatch& rows) {
  const auto kinds = trace::record_kinds();
  const trace::RecordKind* kind = trace::find_record_kind(like.type);
  if (kind == nullptr || below(4) == 0) kind = &kinds[below(kinds.size())];
  trace::ColumnWriter columns;
  kind->encode(rows, {0, kind->count(rows)}, columns);
  Bytes packed = columns.packed(), plain = columns.plain();
  if (below(8) != 0) mutate(packed);
  if (below(4) == 0) mutate(plain);
  trace::ChunkHeader header = like;
  header.type = kind->type;
  header.flags = static_cast<std::uint16_t>(below(3) == 0 ? trace::kFlagFrameStart : 0);
  header.rows = static_cast<std::uint32_t>(below(16) == 0 ? below(65537) : kind->count(rows));
  header.raw_size = static_cast<std::uint32_t>(packed.size() + plain.size());
  header.plain_size = static_cast<std::uint32_t>(plain.size());
  return chunk(header, packed + plain);
}

Bytes Mutator::mutated_segment(const Bytes& segment, const Bytes& other, const RecordBatch& rows) {
  const auto piece = [](const Bytes& from, const ChunkPlace& place) {
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(place.offset);
    return Bytes(begin, begin + static_cast<std::ptrdiff_t>(place.size));
  };
  std::vector<Bytes> parts;
  const std::vector<ChunkPlace> places = chunks_of(segment), strange = chunks_of(other);
  for (const ChunkPlace& place : places) parts.push_back(piece(segment, place));
  for (std::uint64_t changes = below(4); changes > 0 && !parts.empty(); --changes) {
    const std::size_t at = below(parts.size());
    const auto where = parts.begin() + static_cast<std::ptrdiff_t>(at);
    trace::ChunkHeader header;
    trace::load_chunk_header(parts[at], header);
    const Bytes payload(parts[at].begin() + trace::kChunkHeaderBytes, parts[at].end());
    switch (below(8)) {
      case 0:
        parts.erase(where);
        break;
      case 1: {
        const Bytes copy = parts[at];
        parts.insert(parts.begin() + static_cast<std::ptrdiff_t>(below(parts.size() + 1)), copy);
        break;
      }
      case 2:
        std::swap(parts[at], parts[below(parts.size())]);
        break;
      case 3:
        if (!strange.empty()) parts.insert(where, piece(other, strange[below(strange.size())]));
        break;
      case 4: {  // a header that lies
        const auto some = [&](std::uint32_t number) {
          return static_cast<std::uint32_t>(below(2) == 0 ? number ^ (1u << below(17)) : below(1u << 25));
        };
        switch (below(6)) {
          case 0:
            header.type = static_cast<std::uint16_t>(below(2) == 0 ? below(18) : 255);
            break;
          case 1:
            header.rows = some(header.rows);
            break;
          case 2:
            header.raw_size = some(header.raw_size);
            break;
          case 3:
            header.plain_size = some(header.plain_size);
            break;
          case 4:
            header.flags = static_cast<std::uint16_t>(header.flags ^ (1u << below(10)));
            break;
          default:
            header.sequence = below(2) == 0 ? below(40) : random_();
        }
        parts[at] = chunk(header, payload);
        break;
      }
      case 5: {  // a payload that does not unpack
        Bytes changed = payload;
        mutate(changed);
        parts[at] = chunk(header, changed);
        break;
      }
      default:
        parts[at] = mutated_columns(header, rows);
    }
  }
  Bytes bytes(segment.begin(), segment.begin() + trace::kFileHeaderBytes);
  if (below(8) == 0) {
    trace::FileHeader header;
    trace::load_file_header(bytes, header);
    header.first_sequence = below(2) == 0 ? below(60) : random_() >> 1;
    header.next_sequence = below(2) == 0 ? below(90) : random_() >> 1;
    const auto stored = trace::store_file_header(header);
    bytes.assign(stored.begin(), stored.end());
  }
  for (const Bytes& part : parts) bytes = std::move(bytes) + part;
  if (below(3) == 0) mutate(bytes);
  return bytes;
}

}  // namespace nanhunt::trace_testing
