// SPDX-License-Identifier: Apache-2.0
#include "src/trace/attempt_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/core/text.h"
#include "src/trace/encoding/crc32c.h"
#include "src/trace/encoding/end_chunk.h"
#include "src/trace/encoding/limits.h"

namespace nanhunt::trace {
namespace {

// A reader's work on a hostile segment: FORMAT.md, "Rules for readers".
constexpr std::uint64_t kFreeCells = 64u << 20, kCellsPerByte = 512;
constexpr std::uint64_t kFreeBadBytes = 64u << 20, kBadBytesPerByte = 8;
constexpr std::size_t kScanBytes = 65536;
constexpr std::size_t kMaxGaps = 1024;

std::string describe(const ChunkHeader& header) {
  return fmt::format("chunk {} ({}, {} rows)", header.sequence, record_kind_name(header.type), header.rows);
}

}  // namespace

void AttemptReader::problem(std::string text) {
  if (health_.problems.size() < kMaxProblems) health_.problems.push_back(printable(name_) + ": " + std::move(text));
}

void AttemptReader::skip(std::uint64_t bytes) {
  health_.bytes_skipped += bytes;
  at_ += bytes;
}

void AttemptReader::reject(Verdict verdict, std::string message) {
  problem(message);
  if (verdict_ != Verdict::kNone && !(verdict == Verdict::kOtherVersion && verdict_ != Verdict::kOtherVersion)) return;
  verdict_ = verdict;
  verdict_message_ = std::move(message);
}

void AttemptReader::deliver() {
  last_type_ = 0;
  if (batch_.empty()) return;
  for (const RetiredRecord& row : batch_.retired) {
    health_.steps_retired += row.steps;
    health_.rows_retired += row.ops + row.values + row.other;
  }
  on_batch_(batch_);
  batch_.clear();
}

void AttemptReader::missed(std::uint64_t from, std::uint64_t to) {
  problem(to - from == 1 ? fmt::format("chunk {} is lost", from)
                         : fmt::format("chunks {} to {} are lost", from, to - 1));
  health_.chunks_lost += to - from;
  if (gaps_.size() < kMaxGaps) gaps_.emplace_back(from, to);
}

bool AttemptReader::in_gap(std::uint64_t sequence) const {
  return std::ranges::any_of(gaps_, [&](const auto& gap) { return sequence >= gap.first && sequence < gap.second; });
}

void AttemptReader::bad_chunk(const ChunkHeader& header, const char* what) {
  problem(fmt::format("offset {}: {} {}", at_, describe(header), what));
  const std::uint64_t floor = std::max(bad_floor_, expected_);
  if (header.sequence < floor) return;  // a copy of one that is counted or was delivered
  health_.rows_lost += header.rows;
  bad_floor_ = header.sequence + 1;
}

void AttemptReader::skip_segment(const std::string& name, const Status& why) {
  name_ = name;
  reject(Verdict::kUnreadable, why.message());
}

void AttemptReader::miss_vanished_segment(const std::string& name) {
  name_ = name;
  problem("was retired while the trace was read: read it again to see what is left of it");
  vanished_ = true;
}

void AttemptReader::read_segment(InputFile& file, const std::string& name, bool alone) {
  name_ = name;
  at_ = bad_bytes_ = 0;
  alone_ = alone;
  cells_ = kFreeCells + kCellsPerByte * file.size();
  ++health_.segments;
  health_.bytes += file.size();
  const bool ended_cleanly = std::exchange(health_.clean_end, false);
  next_sequence_ = 0;
  ended_ = false;
  superseded_ = false;
  if (start_segment(file, alone)) read_chunks(file);
  deliver();
  if (superseded_) health_.clean_end = ended_cleanly;
  if (next_sequence_ != 0) {
    // A rewritten segment was whole when it got its name.
    if (!ended_) missed(expected_, expected_ + 1);
    covered_ = next_sequence_;
    expected_ = bad_floor_ = std::max(expected_, covered_);
  }
  first_segment_ = false;
}

constexpr std::string_view kNothingWritten =
    "the run was killed before its first write, or the disk was full. Look for room on the disk and run it again";

// False if the segment is not to be read on; its bytes are then accounted for.
bool AttemptReader::start_segment(InputFile& file, bool alone) {
  header_good_ = false;
  if (file.size() == 0) {
    reject(Verdict::kEmpty, fmt::format("is empty: {}", kNothingWritten));
    return false;
  }
  FileHeader header;
  const HeaderCheck check = load_file_header(file.view(0, kFileHeaderBytes), header);
  const bool other_version =
      check != HeaderCheck::kNotTrace && check != HeaderCheck::kCut && header.major != kFormatMajor;
  std::string why = "is not a nanhunt trace";
  Verdict verdict = Verdict::kNotTrace;
  if (check == HeaderCheck::kCut) {
    verdict = Verdict::kCut;
    why = fmt::format("ends inside its file header: {}", kNothingWritten);
  } else if (other_version) {
    verdict = Verdict::kOtherVersion;
    why = fmt::format(
        "is a trace of format version {}.{}; this build reads {}.x. Read it with the nanhunt that wrote it or a newer "
        "one",
        header.major, header.minor, kFormatMajor);
  } else if (check == HeaderCheck::kBadCrc) {
    verdict = Verdict::kUnreadable;
    why = "has a damaged file header and no readable chunk";
  }
  if (check != HeaderCheck::kGood) {
    // The header may just be damaged: chunks of this version prove that it is a trace all the same.
    std::uint64_t first = 0;
    if (check == HeaderCheck::kCut || !next_header(file, 0, first)) {
      reject(verdict, std::move(why));
      skip(file.size());
      return false;
    }
    problem("offset 0: the file header is damaged");
    skip(first);
    return true;
  }
  if (other_version) {
    reject(verdict, std::move(why));
    skip(file.size());
    return false;
  }
  if (have_identity_ && identity_ != header.identity) {
    reject(Verdict::kForeign, "belongs to another attempt");
    skip(file.size());
    return false;
  }
  readable_ = header_good_ = have_identity_ = true;
  identity_ = header.identity;
  if (!alone && header.first_sequence < covered_) {  // a kill came before it could be taken away
    --health_.segments;
    health_.bytes -= file.size();
    superseded_ = true;
    return false;
  }
  next_sequence_ = header.next_sequence;
  if (alone) {
    expected_ = bad_floor_ = header.first_sequence;
  } else if (header.first_sequence > expected_) {
    if (!vanished_) missed(expected_, header.first_sequence);
    expected_ = header.first_sequence;
  } else if (header.first_sequence < expected_) {
    problem(fmt::format("starts at chunk {}, which was passed already", header.first_sequence));
    expected_ = bad_floor_ = header.first_sequence;
  }
  vanished_ = false;
  at_ = std::min<std::uint64_t>(header.header_size, file.size());
  return true;
}

void AttemptReader::read_chunks(InputFile& file) {
  bool after_bad_chunk = false;
  while (at_ < file.size()) {
    ChunkHeader header;
    const auto bytes = file.view(at_, kChunkHeaderBytes);
    if (bytes.size() < kChunkHeaderBytes || !load_chunk_header(bytes, header)) {
      resynchronise(file, !after_bad_chunk);
      after_bad_chunk = false;
      continue;
    }
    after_bad_chunk = true;
    if (header.stored_size > file.size() - at_ - kChunkHeaderBytes) {
      bad_chunk(header, "is cut off by the end of the file");
      skip(kChunkHeaderBytes);
      continue;
    }
    if (bad_bytes_ > kFreeBadBytes + kBadBytesPerByte * file.size()) {
      problem(fmt::format("offset {}: too much damage, the rest is given up", at_));
      skip(file.size() - at_);
      return;
    }
    const auto stored = file.view(at_ + kChunkHeaderBytes, header.stored_size);
    if (stored.size() < header.stored_size || crc32c(stored) != header.payload_crc) {
      bad_bytes_ += header.stored_size;
      bad_chunk(header, "fails its checksum");
      skip(kChunkHeaderBytes);
      continue;
    }
    after_bad_chunk = !read_chunk(header, stored);
  }
}

// Handles a chunk whose CRCs hold and moves past it, or past its header if it cannot be used.
bool AttemptReader::read_chunk(const ChunkHeader& header, std::span<const std::byte> stored) {
  const std::uint64_t size = kChunkHeaderBytes + stored.size();
  if (header.sequence < expected_) {
    const bool late = in_gap(header.sequence);
    problem(fmt::format("offset {}: {} is {}", at_, describe(header), late ? "out of order" : "a copy"));
    if (late) health_.rows_lost += header.rows;
    skip(size);
    return true;
  }
  const bool known = header.understood() && (header.type == kEndType || find_record_kind(header.type) != nullptr);
  if (known && !decode_chunk(header, stored)) {
    skip(kChunkHeaderBytes);
    return false;
  }
  if (!known) {
    if (header.sequence > expected_) {
      deliver();
      missed(expected_, header.sequence);
    }
    ++health_.unknown_chunks;
  }
  expected_ = header.sequence + 1;
  readable_ = true;
  ++health_.chunks;
  ended_ = known && header.type == kEndType;
  health_.clean_end = ended_ && (alone_ || (header.flags & kFlagFinal) != 0);
  at_ += size;
  return true;
}

bool AttemptReader::decode_chunk(const ChunkHeader& header, std::span<const std::byte> stored) {
  // A later segment's copy of the tables is news only if the first one may have been missed.
  const bool told =
      (header.flags & kFlagRestated) != 0 && !first_segment_ && !health_.damaged() && header.sequence == expected_;
  if (told) return true;
  std::span<const std::byte> packed, plain;
  if (!unpacker_.unpack(header, stored, packed, plain)) {
    bad_chunk(header, "does not unpack to the size it states");
    return false;
  }
  scratch_.clear();
  ColumnReader columns(scratch_, packed, plain, cells_);
  if (header.type == kEndType) {
    std::vector<ChunkIndexRow> index;
    if (!decode_index(columns, header.rows, index)) {
      bad_chunk(header, kBadColumns);
      return false;
    }
    if (header.sequence > expected_) missed(expected_, header.sequence);
    deliver();
    return true;
  }
  const RecordKind& kind = *find_record_kind(header.type);
  if ((header.flags & kFlagFrameStart) != 0 || kind.type <= last_type_ || header.sequence > expected_) deliver();
  if (const char* why = kind.decode(columns, header.rows, batch_)) {
    kind.clear(batch_);
    bad_chunk(header, why);
    return false;
  }
  if (header.sequence > expected_) missed(expected_, header.sequence);
  last_type_ = kind.type;
  health_.rows += header.rows;
  return true;
}

void AttemptReader::resynchronise(InputFile& file, bool say) {
  const std::uint64_t from = at_;
  std::uint64_t found = file.size();
  next_header(file, from + 1, found);
  if (file.failed() != 0) {
    problem(fmt::format("offset {}: cannot be read: {}", from, error_text(file.failed())));
  } else if (say) {
    problem(fmt::format("offset {}: {} bytes are not a chunk{}", from, found - from,
                        found == file.size() ? " (cut off or overwritten)" : ""));
  }
  skip(found - from);
}

bool AttemptReader::next_header(InputFile& file, std::uint64_t from, std::uint64_t& found) {
  const std::string_view magic(reinterpret_cast<const char*>(kChunkMagic.data()), kChunkMagic.size());
  while (from < file.size()) {
    const auto bytes = file.view(from, kScanBytes);
    if (bytes.size() < kChunkHeaderBytes) return false;
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const std::size_t last = bytes.size() - kChunkHeaderBytes;  // the last place where a whole header fits
    for (std::size_t hit = text.find(magic); hit <= last; hit = text.find(magic, hit + 1)) {
      ChunkHeader header;
      if (!load_chunk_header(bytes.subspan(hit), header)) continue;
      found = from + hit;
      return true;
    }
    from += last + 1;
  }
  return false;
}

Status AttemptReader::finish(const std::string& what) {
  if (bad_floor_ > expected_) {
    health_.chunks_lost += bad_floor_ - expected_;
    expected_ = bad_floor_;
  }
  const std::string shown = printable(what);
  if (!readable_) {
    const bool other = verdict_ == Verdict::kOtherVersion;
    return {other ? StatusCode::kUnsupported : StatusCode::kUnreadable,
            fmt::format("'{}' {}.{}", shown, verdict_ == Verdict::kNone ? "holds nothing readable" : verdict_message_,
                        verdict_ == Verdict::kNotTrace ? " Name a run folder, an attempt folder or a .nht file." : "")};
  }
  if (!health_.damaged()) return Status::ok();
  return {StatusCode::kDamaged,
          fmt::format(
              "'{}' is damaged: chunks lost {} (rows in those whose header is intact: {}), bytes skipped {}; all else "
              "was read. `nanhunt doctor` lists the places and can salvage a copy.",
              shown, health_.chunks_lost, health_.rows_lost, health_.bytes_skipped)};
}

}  // namespace nanhunt::trace
