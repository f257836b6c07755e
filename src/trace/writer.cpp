// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "nanhunt/trace.h"
#include "src/core/text.h"
#include "src/trace/chunk.h"
#include "src/trace/end_chunk.h"
#include "src/trace/files.h"
#include "src/trace/frames.h"
#include "src/trace/limits.h"
#include "src/trace/run_info.h"
#include "src/trace/segment.h"

namespace nanhunt {
namespace trace {
namespace {

constexpr std::uint32_t kMaxAttempts = 1u << 20;

Status cannot_create(const std::string& path, int error) {
  return {StatusCode::kWriteFailed, fmt::format("cannot create folder '{}': {}. Choose a folder that you may write to.",
                                                printable(path), error_text(error))};
}

// Keeps the first failure.
void keep(Status& first, Status next) {
  if (first && !next) first = std::move(next);
}

class Writer final : public TraceWriter {
 public:
  Writer(std::string dir, const RunInfo& info, std::uint64_t identity, const TraceWriterOptions& options)
      : dir_(std::move(dir)), options_(options), packer_(options.zstd_level) {
    header_.major = kFormatMajor;
    header_.minor = kFormatMinor;
    header_.identity = identity;
    header_.rank = info.rank;
    header_.attempt = info.attempt;
  }

  Status start() {
    auto file = OutputFile::create(dir_ + "/" + segment_name(0));
    if (!file) return file.status();
    file_ = std::move(*file);
    return file_.append(store_file_header(header_));
  }

  Status write(const RecordBatch& batch, RecordBatch* unwritten) override {
    if (closed_) {
      if (unwritten != nullptr) *unwritten = batch;
      return {StatusCode::kUsage, "the trace is closed: open another attempt to write more"};
    }
    unwritten_ = unwritten;
    Status status;
    add_to_tables(batch, status);
    if (batch.empty()) return status;
    bool failed = false;  // then nothing follows: a row never stands without those it names, which come before it
    for_each_frame(batch, [&](const Frame& frame) {
      if (!failed) {
        rotate_if_full();
        frame_open_ = false;
        Status tables = write_tables();
        failed = !tables;
        if (failed) ++sequence_;  // stays used, as in append_rows
        keep(status, std::move(tables));
      }
      for (const RecordKind& kind : record_kinds()) {
        const RowRange rows = frame.of(kind.type);
        if (rows.size() == 0) continue;
        if (failed) {
          note_unwritten(kind, batch, rows);
        } else {
          keep(status, write_rows(kind, batch, rows, failed));
        }
      }
    });
    return status;
  }

  Status close() override {
    if (closed_) return Status::ok();
    Status status = write_tables();
    keep(status, write_end(kFlagFinal));
    keep(status, file_.close());
    closed_ = true;
    return status;
  }

  const std::string& attempt_dir() const override { return dir_; }
  std::uint64_t bytes_written() const override { return closed_segments_bytes_ + file_.size(); }

 private:
  static Status refused(const RecordKind& kind, std::size_t row, const char* why) {
    return {StatusCode::kUsage, fmt::format("row {} of {} cannot be stored: {}", row, kind.name, why)};
  }

  void add_to_tables(const RecordBatch& batch, Status& status) {
    const auto is_new = [](std::vector<bool>& known, std::uint32_t id) {
      if (id >= known.size()) known.resize(std::max<std::size_t>(id + std::size_t{1}, 2 * known.size()));
      const bool fresh = !known[id];
      known[id] = true;
      return fresh;
    };
    for (std::size_t row = 0; row < batch.strings.size(); ++row) {
      if (const char* why = kStrings.refuse(batch, row)) {
        keep(status, refused(kStrings, row, why));
      } else if (is_new(known_strings_, batch.strings[row].id)) {
        tables_.strings.push_back(batch.strings[row]);
      }
    }
    for (std::size_t row = 0; row < batch.layouts.size(); ++row) {
      if (const char* why = kLayouts.refuse(batch, row)) {
        keep(status, refused(kLayouts, row, why));
      } else if (is_new(known_layouts_, batch.layouts[row].id)) {
        tables_.layouts.push_back(batch.layouts[row]);
      }
    }
  }

  // Table rows that this segment does not hold yet. What fails is tried again with the next frame.
  Status write_tables() {
    for (Table* table : {&strings_, &layouts_}) {
      const std::size_t count = table->kind.count(tables_);
      while (table->in_segment < count) {
        const bool restated = table->in_segment < table->in_attempt;
        const std::size_t limit = restated ? table->in_attempt : count;
        const RowRange rows{table->in_segment, chunk_end(table->kind, tables_, table->in_segment, limit)};
        columns_.clear();
        table->kind.encode(tables_, rows, columns_);
        Status status = append_chunk(table->kind, tables_, rows, restated ? kFlagRestated : 0);
        if (!status) return status;
        table->in_segment = rows.end;
        table->in_attempt = std::max(table->in_attempt, rows.end);
      }
    }
    return Status::ok();
  }

  // Rows that cannot be stored are left out and named in the status; the others are written.
  Status write_rows(const RecordKind& kind, const RecordBatch& batch, RowRange rows, bool& failed) {
    columns_.clear();
    kind.encode(batch, rows, columns_);
    if (!columns_.refused()) return append_rows(kind, batch, rows, failed);
    Status status;
    RecordBatch good;
    for (std::size_t row = rows.begin; row < rows.end; ++row) {
      const char* why = kind.refuse(batch, row);
      if (why == nullptr) {
        kind.copy(batch, row, good);
      } else {
        keep(status, refused(kind, row, why));
        note_unwritten(kind, batch, {row, row + 1});
      }
    }
    const RowRange all{0, kind.count(good)};
    if (all.size() == 0) return status;
    columns_.clear();
    kind.encode(good, all, columns_);
    if (Status written = append_rows(kind, good, all, failed); !written) return written;
    return status;
  }

  // A number that failed stays used: a reader then knows that something is missing.
  Status append_rows(const RecordKind& kind, const RecordBatch& batch, RowRange rows, bool& failed) {
    Status written = append_chunk(kind, batch, rows, 0);
    if (written) return written;
    failed = true;
    ++sequence_;
    note_unwritten(kind, batch, rows);
    return written;
  }

  void note_unwritten(const RecordKind& kind, const RecordBatch& batch, RowRange rows) {
    if (unwritten_ == nullptr) return;
    for (std::size_t row = rows.begin; row < rows.end; ++row) {
      if (kind.type != kOpsType) {
        kind.copy(batch, row, *unwritten_);
        continue;
      }
      OpRecord op = batch.ops[row];  // its ranges may be what was refused
      op.input_count = op.output_count = op.scalar_count = 0;
      unwritten_->ops.push_back(op);
    }
  }

  // The columns of these rows have been written.
  Status append_chunk(const RecordKind& kind, const RecordBatch& batch, RowRange rows, unsigned flags) {
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

  Status append(std::uint16_t type, unsigned flags, std::size_t rows) {
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
    Status status = file_.append(bytes);
    if (status) ++sequence_;
    return status;
  }

  Status write_end(unsigned flags) {
    columns_.clear();
    encode_index(index_, columns_);
    return append(kEndType, flags | kFlagFrameStart, index_.size());
  }

  // Where no next segment can be had the current one goes on, and the next frame tries again.
  void rotate_if_full() {
    const bool full = file_.size() >= options_.segment_bytes || index_.size() + kKindCount > kMaxIndexRows;
    if (!full || index_.empty()) return;
    FileHeader header = header_;
    ++header.segment;
    header.first_sequence = sequence_ + 1;  // after the end chunk of this one
    const std::string path = dir_ + "/" + segment_name(header.segment);
    auto next = OutputFile::create(path);
    if (!next) return;
    if (!next->append(store_file_header(header))) {
      ::unlink(path.c_str());
      return;
    }
    if (!write_end(0)) ++sequence_;
    closed_segments_bytes_ += file_.size();
    file_ = std::move(*next);
    header_ = header;
    index_.clear();
    strings_.in_segment = layouts_.in_segment = 0;
  }

  struct Table {
    const RecordKind& kind;
    std::size_t in_segment = 0, in_attempt = 0;  // rows written
  };

  std::string dir_;
  TraceWriterOptions options_;
  FileHeader header_;
  OutputFile file_;
  ChunkPacker packer_;
  ColumnWriter columns_;
  std::vector<ChunkIndexRow> index_;
  RecordBatch tables_;  // every string and layout so far
  std::vector<bool> known_strings_, known_layouts_;
  Table strings_{kStrings}, layouts_{kLayouts};
  std::uint64_t sequence_ = 0, closed_segments_bytes_ = 0;
  RecordBatch* unwritten_ = nullptr;  // of the write at hand
  bool frame_open_ = false, closed_ = false;
  std::uint16_t last_type_ = 0;
};

}  // namespace
}  // namespace trace

Result<std::unique_ptr<TraceWriter>> TraceWriter::create(const std::string& run_dir, RunInfo info,
                                                         const TraceWriterOptions& options) {
  if (run_dir.empty()) return Status{StatusCode::kUsage, "no run folder was named"};
  if (trace::run_info_text(info).size() + 16 > trace::kMaxRunInfoBytes) {  // + 16: the attempt's number may grow
    return Status{StatusCode::kUsage, "the description of the run is over 1 MiB: shorten its command or options"};
  }
  const std::string rank_dir = run_dir + "/" + trace::rank_folder_name(info.rank);
  std::error_code error;
  std::filesystem::create_directories(rank_dir, error);
  if (error) return trace::cannot_create(rank_dir, error.value());
  std::string dir;
  for (info.attempt = 0;; ++info.attempt) {
    dir = rank_dir + "/" + trace::attempt_folder_name(info.attempt);
    if (::mkdir(dir.c_str(), 0755) == 0) break;
    if (errno != EEXIST || info.attempt == trace::kMaxAttempts) return trace::cannot_create(dir, errno);
  }
  const std::string text = trace::run_info_text(info);
  auto writer = std::make_unique<trace::Writer>(dir, info, trace::attempt_identity(text), options);
  Status status = trace::write_whole_file(dir, "run.json", text);
  if (status) status = writer->start();
  if (status) return std::unique_ptr<TraceWriter>(std::move(writer));
  // Leave no half attempt behind. The folder is ours alone: mkdir made it.
  for (const char* name : {"/000000.nht", "/run.json"}) ::unlink((dir + name).c_str());
  ::rmdir(dir.c_str());
  return status;
}

}  // namespace nanhunt
