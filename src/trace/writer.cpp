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
#include "src/trace/segments/files.h"
#include "src/trace/encoding/frames.h"
#include "src/trace/encoding/limits.h"
#include "src/trace/segments/retention.h"
#include "src/trace/run/run_info.h"
#include "src/trace/segments/segment.h"
#include "src/trace/segments/segment_writer.h"

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
      : dir_(std::move(dir)),
        options_(options),
        segment_(options.zstd_level),
        retention_(dir_, options),
        segment_bytes_(retention_.segment_bytes()) {
    header_.major = kFormatMajor;
    header_.minor = kFormatMinor;
    header_.identity = identity;
    header_.rank = info.rank;
    header_.attempt = info.attempt;
    retention_.set_header(header_);
  }

  Status start() {
    auto file = SegmentWriter::create_file(dir_ + "/" + segment_name(0), header_);
    if (!file) return file.status();
    segment_.begin(std::move(*file));
    return Status::ok();
  }

  Status write(const RecordBatch& batch, RecordBatch* unwritten) override {
    if (closed_) {
      if (unwritten != nullptr) *unwritten = batch;
      return {StatusCode::kUsage, "the trace is closed: open another attempt to write more"};
    }
    unwritten_ = unwritten;
    Status status;
    add_to_tables(batch, status);
    if (options_.retention.max_bytes != 0) retention_.note(batch);
    if (batch.empty()) return status;
    bool failed = false;  // then nothing follows: a row never stands without those it names, which come before it
    for_each_frame(batch, [&](const Frame& frame) {
      if (!failed) {
        rotate_if_full();
        segment_.begin_frame();
        const bool restates = !segment_.holds_chunks() && tables_before_.strings + tables_before_.layouts > 0;
        Status tables = write_tables();
        if (restates) restated_bytes_ = segment_.bytes();
        failed = !tables;
        if (failed) lose_sequence();
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
    keep(status, segment_.write_end(kFlagFinal));
    keep(status, segment_.close_file());
    closed_ = true;
    return status;
  }

  const std::string& attempt_dir() const override { return dir_; }
  std::uint64_t bytes_written() const override { return retention_.closed_bytes() + segment_.bytes(); }

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

  Status write_tables() { return segment_.write_tables(tables_, {tables_.strings.size(), tables_.layouts.size()}); }

  // Rows that cannot be stored are left out and named in the status; the others are written.
  Status write_rows(const RecordKind& kind, const RecordBatch& batch, RowRange rows, bool& failed) {
    ColumnWriter& columns = segment_.columns();
    kind.encode(batch, rows, columns);
    if (!columns.refused()) return append_rows(kind, batch, rows, failed);
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
    kind.encode(good, all, segment_.columns());
    if (Status written = append_rows(kind, good, all, failed); !written) return written;
    return status;
  }

  // A number that failed stays used: a reader then knows that something is missing.
  Status append_rows(const RecordKind& kind, const RecordBatch& batch, RowRange rows, bool& failed) {
    Status written = segment_.append_chunk(kind, batch, rows);
    if (written) return written;
    failed = true;
    lose_sequence();
    note_unwritten(kind, batch, rows);
    return written;
  }

  void lose_sequence() {
    segment_.skip_sequence();
    lossy_ = true;
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

  // Where no next segment can be had the current one goes on, and the next frame tries again.
  void rotate_if_full() {
    if (options_.retention.max_bytes != 0) segment_.set_max_bytes(retention_.room_for_open_segment());
    const bool full = segment_.bytes() >= segment_bytes_ + restated_bytes_ || segment_.index_is_full();
    if (!full || !segment_.holds_chunks()) return;
    FileHeader header = header_;
    ++header.segment;
    header.first_sequence = segment_.sequence() + 1;  // after the end chunk of this one
    auto next = SegmentWriter::create_file(dir_ + "/" + segment_name(header.segment), header);
    if (!next) return;
    if (!segment_.write_end(0)) {
      segment_.skip_sequence();
      lossy_ = true;
    }
    const TableCounts tables = segment_.written();
    retention_.add({.number = header_.segment,
                    .bytes = segment_.bytes(),
                    .first_sequence = header_.first_sequence,
                    .next_sequence = header.first_sequence,
                    .last_step = retention_.newest_step(),
                    .tables_before = tables_before_,
                    .tables_after = tables,
                    .lossy = lossy_});
    segment_.begin(std::move(*next));
    header_ = header;
    tables_before_ = tables;
    restated_bytes_ = 0;
    lossy_ = false;
    if (options_.retention.max_bytes == 0) return;
    retention_.make_room(segment_.bytes(), tables_);
    segment_.set_max_bytes(retention_.room_for_open_segment());
  }

  std::string dir_;
  TraceWriterOptions options_;
  FileHeader header_;
  SegmentWriter segment_;
  Retention retention_;
  const std::uint64_t segment_bytes_;
  RecordBatch tables_;  // every string and layout so far
  std::vector<bool> known_strings_, known_layouts_;
  TableCounts tables_before_;         // written when this segment began
  std::uint64_t restated_bytes_ = 0;  // of the segment, taken by tables that earlier segments hold
  RecordBatch* unwritten_ = nullptr;  // of the write at hand
  bool lossy_ = false;                // some number of this segment was used up by a failure
  bool closed_ = false;
};

}  // namespace
}  // namespace trace

Result<std::unique_ptr<TraceWriter>> TraceWriter::create(const std::string& run_dir, RunInfo info,
                                                         const TraceWriterOptions& options) {
  if (run_dir.empty()) return Status{StatusCode::kUsage, "no run folder was named"};
  if (trace::run_info_text(info).size() + 16 > trace::kMaxRunInfoBytes) {  // + 16: the attempt's number may grow
    return Status{StatusCode::kUsage, "the description of the run is over 1 MiB: shorten its command or options"};
  }
  const std::uint64_t max_bytes = options.retention.max_bytes;
  if (max_bytes != 0 && max_bytes < kMinMaxBytes) {
    return Status{StatusCode::kUsage,
                  fmt::format("a limit of {} bytes is too small for a trace: set at least {}, or 0 for none", max_bytes,
                              kMinMaxBytes)};
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
