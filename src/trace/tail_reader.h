// SPDX-License-Identifier: Apache-2.0
// The rows that came to an attempt since they were last asked for, while somebody still writes it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "nanhunt/trace.h"
#include "src/trace/encoding/chunk.h"
#include "src/trace/encoding/columns.h"
#include "src/trace/segments/files.h"

namespace nanhunt::trace {

// Passes over each chunk once, by its header; only chunks of the kinds that were asked for are read. Files are opened to
// be read, and nothing is written. A row of a segment that was rewritten meanwhile may come twice.
class TailReader {
 public:
  // `kinds`: numbers of RecordKind::type.
  TailReader(std::string attempt_dir, std::vector<std::uint16_t> kinds);

  // Hands over what came since the last call, chunk by chunk, of at most `most_bytes` of the trace (at least one chunk):
  // then behind() is true. A torn end is waited for: it may be being written.
  void read(const std::function<void(const RecordBatch&)>& on_batch, std::uint64_t most_bytes);

  bool behind() const { return behind_; }
  bool ended() const { return ended_; }      // the writer has closed it
  bool damaged() const { return damaged_; }  // something before the end could not be read

 private:
  // False: nothing more of this segment can be read for now.
  bool read_chunk(InputFile& file, const std::function<void(const RecordBatch&)>& on_batch);
  bool find_chunk(InputFile& file);
  void decode(const ChunkHeader& header, std::span<const std::byte> stored,
              const std::function<void(const RecordBatch&)>& on_batch);

  const std::string dir_;
  const std::vector<std::uint16_t> kinds_;
  ChunkUnpacker unpacker_;
  Scratch scratch_;
  RecordBatch batch_;
  std::uint32_t segment_ = 0;
  std::uint64_t identity_ = 0;  // of the file that is read: its device and inode; 0: none
  std::uint64_t at_ = 0;
  bool behind_ = false, ended_ = false, damaged_ = false;
};

}  // namespace nanhunt::trace
