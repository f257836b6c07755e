// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <system_error>

#include "nanhunt/trace.h"

namespace nanhunt {
namespace {

constexpr std::string_view kSalvaged = "salvaged";
constexpr std::string_view kNoCleanEnd = "no clean end";
constexpr std::uint64_t kMostSaid = (std::uint64_t{1} << 53) - 1;  // run.json may say anything

// "chunks lost 1, rows lost 20, bytes skipped 300, no clean end"
std::string losses_text(const TraceHealth& health) {
  std::string text = fmt::format("chunks lost {}, rows lost {}, bytes skipped {}", health.chunks_lost,
                                 health.rows_lost, health.bytes_skipped);
  if (!health.clean_end) text.append(", ").append(kNoCleanEnd);
  return text;
}

// The number behind `label`; 0 where there is none.
std::uint64_t number_after(std::string_view text, std::string_view label) {
  const auto at = text.find(label);
  if (at == std::string_view::npos) return 0;
  text.remove_prefix(at + label.size());
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc::result_out_of_range ? kMostSaid : std::min(number, kMostSaid);
}

void add_up(std::uint64_t& sum, std::uint64_t more) { sum = std::min(sum + more, kMostSaid); }

}  // namespace

TraceHealth lost_before_salvage(const RunInfo& info) {
  TraceHealth lost;
  lost.clean_end = true;
  for (const auto& [name, text] : info.options) {  // a copy of a copy has one for each
    if (name != kSalvaged) continue;
    add_up(lost.chunks_lost, number_after(text, "chunks lost "));
    add_up(lost.rows_lost, number_after(text, "rows lost "));
    add_up(lost.bytes_skipped, number_after(text, "bytes skipped "));
    lost.clean_end = lost.clean_end && !text.ends_with(kNoCleanEnd);
  }
  return lost;
}

Status salvage_attempt(const AttemptTrace& attempt, const std::string& out_dir, TraceHealth& health) {
  // Once for what there is: a trace of which nothing can be read leaves no folder behind, and the copy says what it
  // lacks.
  Status readable = read_attempt(
      attempt, [](const RecordBatch&) {}, health);
  if (!readable && readable.code() != StatusCode::kDamaged) return readable;
  RunInfo info = attempt.info;
  info.options.emplace_back(kSalvaged, losses_text(health));
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
