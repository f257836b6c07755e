// SPDX-License-Identifier: Apache-2.0
#include "src/trace/segments/segment_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "src/trace/encoding/frames.h"
#include "src/trace/encoding/limits.h"

namespace nanhunt::trace {

Result<OutputFile> SegmentWriter::create_file(const std::string& path, const FileHeader& header) {
  auto file = OutputFile::create(path);
  if (!file) return file;
  if (Status status = file->append(store_file_header(header)); !status) {
    ::unlink(path.c_str());
    return status;
  }
  return file;
}

void SegmentWriter::begin(OutputFile file) {
  file_ = std::move(file);
  index_.clear();
  frame_open_ = false;
  strings_.in_segment = layouts_.in_segment = 0;
}

ColumnWriter& SegmentWriter::columns() {
  columns_.clear();
  return columns_;
}

bool SegmentWriter::index_is_full() const { return index_.size() + kKindCount > kMaxIndexRows; }

void SegmentWriter::set_written(TableCounts counts) {
  strings_.in_attempt = counts.strings;
  layouts_.in_attempt = counts.layouts;
}

Status SegmentWriter::write_tables(const RecordBatch& tables, TableCounts end) {
  Status status = write_table(strings_, tables, end.strings);
  return status ? write_table(layouts_, tables, end.layouts) : status;
}

// What fails is tried again with the next frame.
Status SegmentWriter::write_table(Table& table, const RecordBatch& tables, std::size_t end) {
  while (table.in_segment < end) {
    const bool restated = table.in_segment < table.in_attempt;
    const std::size_t limit = restated ? std::min(table.in_attempt, end) : end;
    const RowRange rows{table.in_segment, chunk_end(table.kind, tables, table.in_segment, limit)};
    table.kind.encode(tables, rows, columns());
    Status status = append_chunk(table.kind, tables, rows, restated ? kFlagRestated : 0);
    if (!status) return status;
    table.in_segment = rows.end;
    table.in_attempt = std::max(table.in_attempt, rows.end);
  }
  return Status::ok();
}

Status SegmentWriter::append_chunk(const RecordKind& kind, const RecordBatch& batch, RowRange rows, unsigned flags) {
  ChunkIndexRow entry{file_.size(), kind.type, rows.size(), {}};
  if (kind.keys != nullptr) entry.keys = kind.keys(batch, rows);
  if (!frame_open_ || kind.type <= last_type_) flags |= kFlagFrameStart;
  Status status = append(kind.type, flags, rows.size());
  if (!status) return status;
  frame_open_ = true;
  last_type_ = kind.type;
  if (index_.size() < kMaxIndexRows) index_.push_back(entry);
  return status;
}

Status SegmentWriter::append(std::uint16_t type, unsigned flags, std::size_t rows) {
  ChunkHeader header;
  header.type = type;
  header.flags = static_cast<std::uint16_t>(flags);
  header.rows = static_cast<std::uint32_t>(rows);
  header.sequence = sequence_;
  const auto bytes = packer_.pack(header, columns_);
  if (bytes.empty()) {
    return {StatusCode::kUsage,
            fmt::format("{} {} rows need more than 16 MiB in one chunk", rows, record_kind_name(type))};
  }
  if (file_.size() + bytes.size() > max_bytes_) {
    return {
        StatusCode::kWriteFailed,
        fmt::format("'{}' would grow past the limit that was set for the trace and nothing more can be retired. Raise "
                    "the limit; what was written before stays readable.",
                    file_.path())};
  }
  Status status = file_.append(bytes);
  if (status) ++sequence_;
  return status;
}

Status SegmentWriter::write_end(unsigned flags) {
  encode_index(index_, columns());
  return append(kEndType, flags | kFlagFrameStart, index_.size());
}

}  // namespace nanhunt::trace
