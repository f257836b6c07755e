// SPDX-License-Identifier: Apache-2.0
#include "src/record/child_trace.h"

#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <filesystem>
#include <system_error>
#include <utility>

namespace nanhunt::record {
namespace {

namespace fs = std::filesystem;

// Only segments of its own name, run.json and captures/ are looked for in an attempt's folder.
std::string folder_in(const std::string& attempt_dir) { return attempt_dir + "/.replay.tmp"; }

std::atomic<std::uint64_t> forks{0};

}  // namespace

std::uint64_t forks_so_far() {
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  return forks.load(std::memory_order_relaxed);
}

ChildWriter::ChildWriter(std::string attempt_dir, RecordBatch names)
    : attempt_dir_(std::move(attempt_dir)), names_(std::move(names)) {}

void ChildWriter::write(const RecordBatch& rows) {
  if (writer_ == nullptr && status_) {
    auto writer = TraceWriter::create(folder_in(attempt_dir_), {});
    status_ = writer.status();
    if (!writer) return;
    writer_ = std::move(*writer);
    if (!names_.empty()) status_ = writer_->write(std::exchange(names_, {}));
  }
  if (!status_ || rows.empty()) return;
  status_ = writer_->write(rows);
  if (status_ && writer_->bytes_written() > kMaxChildBytes) {
    status_ = {StatusCode::kWriteFailed, "the rows of a child take too much room"};
  }
}

Status ChildWriter::end() {
  write({});
  return status_ ? writer_->close() : status_;
}

Result<std::vector<RecordBatch>> read_child_trace(const std::string& attempt_dir) {
  auto attempts = find_attempts(folder_in(attempt_dir));
  if (!attempts) return attempts.status();
  if (attempts->size() != 1) {
    return Status(StatusCode::kUnreadable, fmt::format("expected one trace in '{}', got {}. Nothing of them was taken "
                                                       "over; the run goes on",
                                                       folder_in(attempt_dir), attempts->size()));
  }
  std::vector<RecordBatch> batches;
  TraceHealth health;
  const Status read = read_attempt(
      attempts->front(), [&](const RecordBatch& batch) { batches.push_back(batch); }, health);
  if (!read) return read;
  if (!health.clean_end || health.damaged() || health.bytes > kMaxChildBytes) {
    return Status(StatusCode::kDamaged, fmt::format("the trace in '{}' {}. Nothing of it was taken over; the run goes "
                                                    "on",
                                                    folder_in(attempt_dir),
                                                    health.damaged()     ? "is damaged"
                                                    : !health.clean_end ? "has no end"
                                                                         : "is too large"));
  }
  return batches;
}

void remove_child_trace(const std::string& attempt_dir) noexcept {
  try {
    std::error_code ignored;
    fs::remove_all(folder_in(attempt_dir), ignored);
  } catch (...) {  // no memory: the next one is in its way and is refused
  }
}

RecordBatch restated(const StringInterner& strings, const LayoutInterner& layouts) {
  RecordBatch all;
  for (std::size_t i = 1; i <= strings.size(); ++i) {
    const auto id = static_cast<StringId>(i);
    all.strings.push_back({id, std::string(strings.text(id))});
  }
  for (std::size_t i = 1; i <= layouts.size(); ++i) {
    const auto id = static_cast<LayoutId>(i);
    const KnownLayout& layout = layouts.layout(id);
    all.layouts.push_back({id, layout.dtype, layout.sizes, layout.strides});
  }
  return all;
}

}  // namespace nanhunt::record
