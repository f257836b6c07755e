// SPDX-License-Identifier: Apache-2.0
#include "src/trace/tail_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include "src/trace/encoding/crc32c.h"
#include "src/trace/encoding/limits.h"
#include "src/trace/record_kind.h"
#include "src/trace/segments/segment.h"

namespace nanhunt::trace {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kTailScanBytes = 65536;
constexpr std::uint64_t kTailCells = 16u << 20;  // of one chunk

std::map<std::uint32_t, std::string> segments_in(const std::string& folder) {
  std::map<std::uint32_t, std::string> found;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    const std::string name = at->path().filename().string();
    if (const auto number = parse_segment_name(name)) found.emplace(*number, at->path().string());
  }
  return found;
}

// A rewritten segment is another file of the same name.
std::uint64_t file_identity(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return 0;
  return (static_cast<std::uint64_t>(info.st_dev) << 48) ^ static_cast<std::uint64_t>(info.st_ino) ^ 1;
}

}  // namespace

TailReader::TailReader(std::string attempt_dir, std::vector<std::uint16_t> kinds)
    : dir_(std::move(attempt_dir)), kinds_(std::move(kinds)) {}

void TailReader::read(const std::function<void(const RecordBatch&)>& on_batch, std::uint64_t most_bytes) {
  behind_ = false;
  std::uint64_t passed = 0;
  const std::map<std::uint32_t, std::string> segments = segments_in(dir_);
  for (auto segment = segments.lower_bound(segment_); segment != segments.end(); ++segment) {
    const std::uint64_t identity = file_identity(segment->second);
    if (segment->first != segment_ || identity != identity_) {
      segment_ = segment->first;
      identity_ = identity;
      at_ = 0;
    }
    auto file = InputFile::open(segment->second, /*follow_links=*/false);
    if (!file) continue;  // taken away since it was listed
    if (at_ == 0) {
      FileHeader header;
      if (load_file_header(file->view(0, kFileHeaderBytes), header) != HeaderCheck::kGood) {
        damaged_ = damaged_ || file->size() >= kFileHeaderBytes;
        continue;
      }
      at_ = header.header_size;
    }
    for (;;) {
      if (passed >= most_bytes) {
        behind_ = at_ < file->size();
        if (behind_) return;
        break;
      }
      const std::uint64_t from = at_;
      if (!read_chunk(*file, on_batch)) break;
      passed += at_ - from;
    }
    // What is torn in a segment that another one follows stays so.
    damaged_ = damaged_ || (std::next(segment) != segments.end() && at_ < file->size());
  }
}

bool TailReader::read_chunk(InputFile& file, const std::function<void(const RecordBatch&)>& on_batch) {
  const auto bytes = file.view(at_, kChunkHeaderBytes);
  if (bytes.size() < kChunkHeaderBytes) return false;
  ChunkHeader header;
  if (!load_chunk_header(bytes, header)) return find_chunk(file);
  if (header.stored_size > file.size() - at_ - kChunkHeaderBytes) return false;
  const bool wanted = std::find(kinds_.begin(), kinds_.end(), header.type) != kinds_.end();
  if (wanted && header.understood()) {
    const auto stored = file.view(at_ + kChunkHeaderBytes, header.stored_size);
    if (stored.size() < header.stored_size) return false;
    if (crc32c(stored) == header.payload_crc) {
      decode(header, stored, on_batch);
    } else {
      damaged_ = true;
    }
  }
  ended_ = header.type == kEndType && (header.flags & kFlagFinal) != 0;
  at_ += kChunkHeaderBytes + header.stored_size;
  return true;
}

void TailReader::decode(const ChunkHeader& header, std::span<const std::byte> stored,
                        const std::function<void(const RecordBatch&)>& on_batch) {
  const RecordKind* const kind = find_record_kind(header.type);
  std::span<const std::byte> packed, plain;
  if (kind == nullptr || !unpacker_.unpack(header, stored, packed, plain)) {
    damaged_ = true;
    return;
  }
  scratch_.clear();
  std::uint64_t cells = kTailCells;
  ColumnReader columns(scratch_, packed, plain, cells);
  if (kind->decode(columns, header.rows, batch_) != nullptr) {
    damaged_ = true;
  } else {
    on_batch(batch_);
  }
  batch_.clear();
}

// Past what is no chunk, to the next one; false: there is none, and the writer may still be about to make one of it.
bool TailReader::find_chunk(InputFile& file) {
  const std::string_view magic(reinterpret_cast<const char*>(kChunkMagic.data()), kChunkMagic.size());
  for (std::uint64_t from = at_ + 1; from < file.size();) {
    const auto bytes = file.view(from, kTailScanBytes);
    if (bytes.size() < kChunkHeaderBytes) return false;
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const std::size_t last = bytes.size() - kChunkHeaderBytes;
    for (std::size_t hit = text.find(magic); hit <= last; hit = text.find(magic, hit + 1)) {
      ChunkHeader header;
      if (!load_chunk_header(bytes.subspan(hit), header)) continue;
      at_ = from + hit;
      return damaged_ = true;
    }
    from += last + 1;
  }
  return false;
}

}  // namespace nanhunt::trace
