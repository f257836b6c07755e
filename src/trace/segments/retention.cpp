// SPDX-License-Identifier: Apache-2.0
#include "src/trace/segments/retention.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>

namespace nanhunt::trace {
namespace {

constexpr std::uint64_t kLargestSegment = 16u << 20;  // bounds the memory of a rewrite
constexpr std::size_t kMostStretches = 65536;

}  // namespace

void BadSteps::add(std::uint32_t step) {
  if (!stretches_.empty() && step <= stretches_.back().second) {  // seldom: steps grow
    if (near(step, 0)) return;
    const auto at = std::ranges::lower_bound(stretches_, step, {}, [](const auto& s) { return s.first; });
    stretches_.insert(at, {step, step});
    return;
  }
  if (!stretches_.empty() && step == stretches_.back().second + 1) {
    stretches_.back().second = step;
    return;
  }
  if (stretches_.size() >= kMostStretches) {  // two become one with what lies between them: that keeps more
    for (std::size_t i = 0; i < kMostStretches / 2; ++i) {
      stretches_[i] = {stretches_[2 * i].first, stretches_[2 * i + 1].second};
    }
    stretches_.resize(kMostStretches / 2);
  }
  stretches_.emplace_back(step, step);
}

bool BadSteps::near(std::uint32_t step, std::uint32_t neighbourhood) const {
  const std::uint64_t from = step > neighbourhood ? step - neighbourhood : 0;
  const auto it = std::ranges::lower_bound(stretches_, from, {}, [](const auto& s) { return std::uint64_t{s.second}; });
  return it != stretches_.end() && it->first <= std::uint64_t{step} + neighbourhood;
}

bool BadSteps::begins(std::uint32_t step) const {
  const auto it = std::ranges::lower_bound(stretches_, step, {}, [](const auto& s) { return s.first; });
  return it != stretches_.end() && it->first == step;
}

Retention::Retention(std::string dir, const TraceWriterOptions& options)
    : dir_(std::move(dir)),
      options_(options),
      every_(options.retention.keep_every),
      neighbourhood_(options.retention.neighbourhood),
      first_steps_(options.retention.keep_first_steps) {}

std::uint64_t Retention::segment_bytes() const {
  const std::uint64_t max = options_.retention.max_bytes;
  return max == 0 ? options_.segment_bytes : std::min({options_.segment_bytes, max / 16, kLargestSegment});
}

std::uint64_t Retention::room_for_open_segment() const {
  const std::uint64_t max = options_.retention.max_bytes;
  return max > closed_bytes_ ? max - closed_bytes_ : 0;
}

void Retention::note(const RecordBatch& batch) {
  bad_values_.clear();
  for (const ValueRecord& value : batch.values) {
    if (value.has_stats && (value.stats.any_nonfinite || value.stats.nonfinite() > 0)) bad_values_.push_back(value.id);
  }
  std::sort(bad_values_.begin(), bad_values_.end());
  std::vector<std::uint32_t> bad;
  for (const OpRecord& op : batch.ops) {
    newest_step_ = std::max(newest_step_, op.step);
    if (bad_values_.empty()) continue;
    const std::size_t end = std::min<std::size_t>(batch.outputs.size(), std::size_t{op.first_output} + op.output_count);
    for (std::size_t i = op.first_output; i < end; ++i) {
      if (std::binary_search(bad_values_.begin(), bad_values_.end(), batch.outputs[i].value)) bad.push_back(op.step);
    }
  }
  for (const StepRecord& step : batch.steps) {
    newest_step_ = std::max(newest_step_, step.step);
    if (step.skipped || !std::isfinite(step.loss)) bad.push_back(step.step);
  }
  for (const ScalerRecord& row : batch.scaler) {
    if (row.found_inf) bad.push_back(row.step);
  }
  for (const HealthRecord& row : batch.health) {
    if (row.bad != 0) bad.push_back(row.step);
  }
  std::sort(bad.begin(), bad.end());
  for (const std::uint32_t step : bad) bad_.add(step);
}

bool Retention::keeps(std::uint32_t step) const {
  if (step < first_steps_) return true;
  if (every_ != 0 && step % every_ == 0) return true;
  if (bad_steps_go_) return false;
  return first_of_stretch_only_ ? bad_.begins(step) : bad_.near(step, neighbourhood_);
}

bool Retention::escalate() {
  ++level_;
  if (every_ != 0) {
    every_ = every_ * 2 > newest_step_ ? 0 : every_ * 2;
  } else if (neighbourhood_ != 0) {
    neighbourhood_ = 0;
  } else if (!first_of_stretch_only_) {
    first_of_stretch_only_ = true;
  } else if (first_steps_ != 0) {
    first_steps_ = 0;
  } else if (!bad_steps_go_) {
    bad_steps_go_ = true;
  } else {
    --level_;
    return false;
  }
  return true;
}

void Retention::add(const ClosedSegment& segment) {
  closed_.push_back(segment);
  closed_bytes_ += segment.bytes;
}

std::size_t Retention::candidates() const {
  std::size_t end = closed_.size();
  std::uint64_t spared = 0;
  while (end > 0) {
    const ClosedSegment& last = closed_[end - 1];
    spared += last.bytes;
    const bool recent = std::uint64_t{last.last_step} + options_.retention.keep_last_steps > newest_step_;
    if (!recent || spared > options_.retention.max_bytes / 4) break;
    --end;
  }
  return end;
}

void Retention::make_room(std::uint64_t open_bytes, const RecordBatch& tables) {
  const std::uint64_t max = options_.retention.max_bytes;
  const auto total = [&] { return closed_bytes_ + open_bytes; };
  if (total() <= max / 8 * 5) return;
  while (candidates() > 0) {
    for (std::size_t begin = 0; begin < candidates();) {
      if (closed_[begin].level >= level_ || closed_[begin].lossy) {
        ++begin;
        continue;
      }
      std::size_t end = begin + 1;
      std::uint64_t bytes = closed_[begin].bytes;
      while (end < candidates() && closed_[end].level < level_ && !closed_[end].lossy &&
             bytes + closed_[end].bytes <= 2 * segment_bytes()) {
        bytes += closed_[end++].bytes;
      }
      if (!rewrite(begin, end, open_bytes, tables)) return;  // a disk in trouble: the next rotation tries again
      ++begin;
      if (total() <= max / 2) return;
    }
    if (!escalate()) return;
  }
}

// Segments [begin, end) become one, in the place of the first.
bool Retention::rewrite(std::size_t begin, std::size_t end, std::uint64_t open_bytes, const RecordBatch& tables) {
  const ClosedSegment first = closed_[begin], last = closed_[end - 1];
  const std::string name = segment_name(first.number), path = dir_ + "/" + name,
                    temporary = dir_ + "/." + name + ".tmp";
  std::vector<std::string> sources;
  std::uint64_t old_bytes = 0;
  for (std::size_t i = begin; i < end; ++i) {
    sources.push_back(dir_ + "/" + segment_name(closed_[i].number));
    old_bytes += closed_[i].bytes;
  }
  FileHeader header = header_;
  header.segment = first.number;
  header.first_sequence = first.first_sequence;
  header.next_sequence = last.next_sequence;
  const std::uint64_t used = closed_bytes_ + open_bytes, max = options_.retention.max_bytes;
  ::unlink(temporary.c_str());  // of an attempt that failed
  SegmentWriter out(options_.zstd_level);
  out.set_max_bytes(max > used ? max - used : 0);
  out.set_written(first.tables_before);
  Status status(StatusCode::kWriteFailed, {});
  try {
    status = rewrite_segments(sources, *this, header, tables, last.tables_after, temporary, out);
  } catch (const std::exception&) {  // no memory
  }
  if (!status || std::rename(temporary.c_str(), path.c_str()) != 0) {
    ::unlink(temporary.c_str());
    if (status.code() == StatusCode::kDamaged || status.code() == StatusCode::kUnreadable) {
      for (std::size_t i = begin; i < end; ++i) closed_[i].lossy = true;
      return true;
    }
    return false;
  }
  // A kill from here on leaves segments whose chunks the new one stands for: a reader passes them over.
  for (std::size_t i = 1; i < sources.size(); ++i) ::unlink(sources[i].c_str());
  ClosedSegment merged = last;
  merged.number = first.number;
  merged.bytes = out.bytes();
  merged.first_sequence = first.first_sequence;
  merged.tables_before = first.tables_before;
  merged.level = level_;
  closed_bytes_ = closed_bytes_ - old_bytes + merged.bytes;
  closed_[begin] = merged;
  closed_.erase(closed_.begin() + static_cast<std::ptrdiff_t>(begin) + 1,
                closed_.begin() + static_cast<std::ptrdiff_t>(end));
  return true;
}

}  // namespace nanhunt::trace
