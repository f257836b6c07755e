// SPDX-License-Identifier: Apache-2.0
// The chunks of segment files, one file at a time: tables, rows, the index at the end.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "nanhunt/status.h"
#include "nanhunt/trace.h"
#include "src/trace/encoding/chunk.h"
#include "src/trace/encoding/end_chunk.h"
#include "src/trace/segments/files.h"
#include "src/trace/record_kind.h"
#include "src/trace/segments/segment.h"

namespace nanhunt::trace {

// How many strings and layouts of an attempt, in the order in which they came.
struct TableCounts {
  std::size_t strings = 0, layouts = 0;
};

class SegmentWriter {
 public:
  explicit SegmentWriter(int zstd_level) : packer_(zstd_level) {}

  // A new file with its header.
  static Result<OutputFile> create_file(const std::string& path, const FileHeader& header);
  // Goes on in this file; the numbers of chunks go on as well.
  void begin(OutputFile file);
  void begin_frame() { frame_open_ = false; }

  // Rows of the tables, up to `end`, that this segment does not hold yet. Those below written() are restated.
  Status write_tables(const RecordBatch& tables, TableCounts end);
  // For the rows of the next append_chunk(), empty.
  ColumnWriter& columns();
  Status append_chunk(const RecordKind& kind, const RecordBatch& batch, RowRange rows, unsigned flags = 0);
  Status write_end(unsigned flags);
  Status close_file() { return file_.close(); }

  // A chunk that could not be written uses its number up: a reader then knows that something is missing.
  void skip_sequence() { ++sequence_; }
  void set_sequence(std::uint64_t sequence) { sequence_ = sequence; }
  std::uint64_t sequence() const { return sequence_; }  // of the next chunk
  std::uint64_t bytes() const { return file_.size(); }
  bool holds_chunks() const { return !index_.empty(); }
  bool index_is_full() const;
  TableCounts written() const { return {strings_.in_attempt, layouts_.in_attempt}; }
  void set_written(TableCounts counts);
  void set_max_bytes(std::uint64_t bytes) { max_bytes_ = bytes; }  // of this file; a chunk past it is refused

 private:
  struct Table {
    const RecordKind& kind;
    std::size_t in_segment = 0, in_attempt = 0;  // rows written
  };
  Status write_table(Table& table, const RecordBatch& tables, std::size_t end);
  Status append(std::uint16_t type, unsigned flags, std::size_t rows);

  OutputFile file_;
  ChunkPacker packer_;
  ColumnWriter columns_;
  std::vector<ChunkIndexRow> index_;
  Table strings_{kStrings}, layouts_{kLayouts};
  std::uint64_t sequence_ = 0, max_bytes_ = std::numeric_limits<std::uint64_t>::max();
  bool frame_open_ = false;
  std::uint16_t last_type_ = 0;
};

}  // namespace nanhunt::trace
