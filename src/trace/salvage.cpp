// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "nanhunt/trace.h"

namespace nanhunt {

Status salvage_attempt(const AttemptTrace& attempt, const std::string& out_dir, TraceHealth& health) {
  // Once for what there is: a trace of which nothing can be read leaves no folder behind, and the copy says what it
  // lacks.
  Status readable = read_attempt(
      attempt, [](const RecordBatch&) {}, health);
  if (!readable && readable.code() != StatusCode::kDamaged) return readable;
  RunInfo info = attempt.info;
  info.options.emplace_back("salvaged", fmt::format("chunks lost {}, rows lost {}, bytes skipped {}",
                                                    health.chunks_lost, health.rows_lost, health.bytes_skipped));
  auto writer = TraceWriter::create(out_dir, std::move(info));
  if (!writer) return writer.status();
  Status written;
  std::uint64_t next_seq = 0;
  const auto copy = [&](const RecordBatch& batch) {
    if (!batch.ops.empty()) next_seq = batch.ops.back().seq + 1;
    if (Status status = (*writer)->write(batch); written && !status) written = std::move(status);
  };
  readable = read_attempt(attempt, copy, health);
  if (!readable && readable.code() != StatusCode::kDamaged) return readable;  // it changed while we read it
  if (health.rows_lost != 0) {
    RecordBatch lost;
    lost.drops.push_back({.seq = next_seq, .ops = 0, .values = 0, .other = health.rows_lost});
    if (Status status = (*writer)->write(lost); written && !status) written = std::move(status);
  }
  if (Status closed = (*writer)->close(); written && !closed) written = std::move(closed);
  return written;
}

}  // namespace nanhunt
