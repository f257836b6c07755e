// SPDX-License-Identifier: Apache-2.0
#include "src/fleet/make_digest.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "src/analyze/findings/merge.h"
#include "src/analyze/ranks/comm_join.h"
#include "src/analyze/ranks/rank_pass.h"
#include "src/analyze/wording/text.h"
#include "src/trace/segments/files.h"

namespace nanhunt::fleet {
namespace {

namespace fs = std::filesystem;

// What rows say beside the analysis.
class RowFacts {
 public:
  void add(const RecordBatch& batch) {
    for (const StringRecord& row : batch.strings) texts_.insert_or_assign(row.id, row.text);
    for (const SetupRecord& row : batch.setup) add_setup(row);
    for (const CollectiveRecord& row : batch.collectives) {
      if (row.kind != CollectiveKind::kBarrier) last_call_ = {row.step, row.group, row.call};
    }
    has_scaler_ = has_scaler_ || !batch.scaler.empty();
    for (const StepRecord& row : batch.steps) last_step_ = std::max(last_step_.value_or(0), row.step);
  }

  bool has_scaler() const { return has_scaler_; }

  void fill(Digest& digest) {
    digest.coordinates = std::move(coordinates_);
    digest.accelerator_name = std::move(accelerator_name_);
    digest.accelerator_id = std::move(accelerator_id_);
    digest.last_step = last_step_;
    if (last_call_) digest.last_call = {last_call_->step, text(last_call_->group), last_call_->call};
  }

 private:
  struct Call {
    std::uint32_t step = 0;
    StringId group = 0;
    std::uint64_t call = 0;
  };

  std::string text(StringId id) const {
    const auto at = texts_.find(id);
    return at == texts_.end() ? std::string() : at->second;
  }

  void add_setup(const SetupRecord& row) {
    if (row.fact == SetupFact::kCoordinate && row.number >= 0 && row.number < 9e15) {
      coordinates_.insert_or_assign(text(row.path), static_cast<std::int64_t>(row.number));
    } else if (row.fact == SetupFact::kAccelerator) {
      accelerator_id_ = text(row.path);
      accelerator_name_ = text(row.text);
    }
  }

  std::map<StringId, std::string> texts_;
  std::map<std::string, std::int64_t> coordinates_;
  std::string accelerator_name_, accelerator_id_;
  std::optional<Call> last_call_;
  std::optional<std::uint32_t> last_step_;
  bool has_scaler_ = false;
};

// Calls by which bad numbers came to this rank, by the number of their op.
struct Arrivals {
  struct Call {
    const analyze::CommStream* stream = nullptr;
    const analyze::CallFacts* facts = nullptr;
  };
  std::map<std::uint64_t, Call> by_seq;

  explicit Arrivals(const analyze::CommWatch& comm) {
    for (const auto& [stream, calls] : comm.streams()) {
      for (const auto& [call, facts] : calls.facts) {
        if (facts.born != 0 && facts.gave == 0) by_seq.emplace(facts.seq, Call{&stream, &facts});
      }
    }
  }
};

// What began here, did no harm here and was given to others is an origin: they cannot say where it began. Under a loss
// scaler a backward may overflow on purpose; whether it did shows where it did harm.
void count_what_was_given(analyze::RankPass& pass, bool scaled) {
  for (const auto& [stream, calls] : pass.comm().streams()) {
    for (const auto& [call, facts] : calls.facts) {
      for (const analyze::BirthId id : facts.given) {
        const analyze::Birth* birth = pass.graph().birth(id);
        const bool meant = birth == nullptr || birth->deliberate == analyze::Deliberate::kYes;
        if (meant || birth->harmful || (scaled && birth->at.phase == Phase::kBackward)) continue;
        analyze::Birth there;
        there.events.add(facts.step);
        there.born.add(facts.step);
        there.trial.scaled = false;
        pass.graph().add_harm_elsewhere(id, there, /*came_back=*/false);
      }
    }
  }
}

DigestArrival arrival_of(const Finding& f, const Arrivals::Call& call) {
  DigestArrival arrival;
  arrival.step = f.place.step;
  arrival.micro_batch = f.place.micro_batch;
  arrival.severity = f.severity;
  arrival.through = std::string(collective_kind_name(call.facts->kind));
  arrival.group = call.stream->group;
  arrival.call = call.facts->call;
  arrival.members = call.stream->from >= 0 ? 1 : call.stream->ranks.size();
  arrival.lowest = call.stream->from >= 0      ? static_cast<std::uint32_t>(call.stream->from)
                   : call.stream->ranks.empty() ? 0
                                                : call.stream->ranks.front();
  return arrival;
}

DigestOrigin origin_of(const Finding& f) {
  DigestOrigin one;
  one.place = f.place;
  one.cls = f.cls;
  one.severity = f.severity;
  one.confidence = f.confidence;
  one.call_site = f.call_site;
  one.cause = f.cause;
  one.title = f.title;
  one.count = f.occurrence_count;
  one.first_step = analyze::began(f);
  one.last_step = analyze::ended(f);
  one.sinks.assign(f.sinks.begin(), f.sinks.begin() + static_cast<std::ptrdiff_t>(std::min(f.sinks.size(), kMaxSinks)));
  return one;
}

void add_findings(Digest& digest, const Analysis& analysis, const Arrivals& arrivals) {
  std::optional<std::uint32_t> first_harm;
  for (const Finding& f : analysis.findings) {
    if (f.severity == Severity::kInfo) continue;
    if (f.severity == Severity::kFault || f.bad_steps.count > 0)
      first_harm = std::min(first_harm.value_or(UINT32_MAX), std::min(f.place.step, analyze::began(f)));
    const auto call = arrivals.by_seq.find(f.place.seq);
    if (f.place.seq == kNoSeq || call == arrivals.by_seq.end()) {
      digest.origins.push_back(origin_of(f));
      continue;
    }
    DigestArrival arrival = arrival_of(f, call->second);
    const auto key = [](const DigestArrival& a) { return std::tuple(a.step, a.micro_batch, a.call); };
    if (!digest.arrival || key(arrival) < key(*digest.arrival)) digest.arrival = std::move(arrival);
  }
  std::stable_sort(digest.origins.begin(), digest.origins.end(), [](const DigestOrigin& a, const DigestOrigin& b) {
    return std::tuple(-static_cast<int>(a.severity), a.place.step, a.place.micro_batch) <
           std::tuple(-static_cast<int>(b.severity), b.place.step, b.place.micro_batch);
  });
  if (digest.origins.size() > kMaxOrigins) digest.origins.resize(kMaxOrigins);
  if (!digest.last_step) return;
  if (!first_harm) {
    digest.clean_through = digest.last_step;
  } else if (*first_harm > 0) {
    digest.clean_through = *first_harm - 1;
  }
}

std::string option_of(const RunInfo& info, std::string_view name) {
  for (const auto& [key, value] : info.options) {
    if (key == name) return value;
  }
  return "";
}

}  // namespace

std::uint64_t segment_bytes(const std::string& attempt_dir) {
  std::uint64_t bytes = 0;
  std::error_code failed;
  for (fs::directory_iterator at(attempt_dir, failed), end; !failed && at != end; at.increment(failed)) {
    std::error_code gone;
    if (at->path().extension() != ".nht" || at->path().filename().string().starts_with('.')) continue;
    const std::uint64_t size = at->file_size(gone);
    if (!gone) bytes += size;
  }
  return bytes;
}

Result<Digest> make_digest(const AttemptTrace& attempt) {
  const std::uint64_t bytes = segment_bytes(attempt.dir);
  const RunInfo& info = attempt.info;
  const AnalyzeOptions options;
  std::unique_ptr<analyze::RankPass> pass = analyze::RankPass::make(options, info.rank);
  RowFacts rows;
  TraceHealth health;
  const Status read = read_attempt(
      attempt,
      [&](const RecordBatch& batch) {
        rows.add(batch);
        pass->add(batch);
      },
      health);
  if (!read && read.code() != StatusCode::kDamaged) return read;
  pass->end(health);
  count_what_was_given(*pass, rows.has_scaler());
  const Arrivals arrivals(pass->comm());
  const analyze::ReplicaWatch replicas = pass->replicas();
  const std::vector<analyze::RankVerdict> verdicts = analyze::join_ranks({pass.get()});
  std::vector<Analysis> alone;
  alone.push_back(pass->judge(info, health, verdicts.front()));
  const Analysis analysis = analyze::merge_ranks(std::move(alone), options);

  Digest digest;
  digest.rank = info.rank;
  digest.world_size = info.world_size;
  digest.attempt = info.attempt;
  digest.run = info.run;
  digest.job = option_of(info, "job");
  digest.host = info.host;
  digest.nanhunt = info.nanhunt_version;
  digest.framework = info.framework;
  digest.level = info.level;
  digest.ended = health.clean_end;
  digest.trace_bytes = bytes;
  digest.status = analysis.verdict.status;
  digest.steps = analysis.coverage.steps;
  digest.ops = analysis.coverage.ops;
  digest.records_dropped = analysis.coverage.records_dropped;
  digest.chunks_lost = analysis.coverage.chunks_lost;
  digest.unwatched = analysis.coverage.unwatched.size();
  if (analysis.scaler) digest.scaler = {analysis.scaler->final_scale, analysis.scaler->steps, analysis.scaler->skipped};
  rows.fill(digest);
  digest.replicas = replicas.replicas();
  digest.checksums = replicas.checksums();
  add_findings(digest, analysis, arrivals);
  return digest;
}

Result<Digest> make_digest(const std::string& attempt_dir) {
  const Result<std::vector<AttemptTrace>> attempts = find_attempts(attempt_dir);
  if (!attempts) return attempts.status();
  if (attempts->empty()) return Status(StatusCode::kNotFound, attempt_dir + ": no trace is there.");
  return make_digest(attempts->front());
}

Status write_digest(const std::string& attempt_dir, const Digest& digest) {
  return trace::write_whole_file(attempt_dir, kDigestName, render_digest(digest));
}

}  // namespace nanhunt::fleet
