// SPDX-License-Identifier: Apache-2.0
#include "src/fleet/live_run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "src/fleet/make_digest.h"
#include "src/trace/run/run_info.h"
#include "src/trace/segments/segment.h"

namespace nanhunt::fleet {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kTailBytes = 256u << 20;     // that one refresh passes over
constexpr std::uint64_t kJudgedBytes = 64u << 20;    // of a trace that is judged while it grows
constexpr std::size_t kEndsLookedFor = 16;           // of ranks without a tail, in one refresh
constexpr std::size_t kMostAttempts = 4;             // of one rank in one run, that are followed
constexpr double kDigestsQuietAfter = 900;           // seconds; where there are digests alone, which come every 5 minutes

// Of a file, or of several together: what changes when it is written.
struct FileMark {
  std::uint64_t files = 0, bytes = 0, inodes = 0;
  std::int64_t newest_ns = 0;
  bool operator==(const FileMark&) const = default;

  void add(const struct stat& info) {
    ++files;
    bytes += static_cast<std::uint64_t>(info.st_size);
    inodes += static_cast<std::uint64_t>(info.st_ino);
    newest_ns = std::max(newest_ns, static_cast<std::int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec);
  }
};

FileMark mark_of(const std::string& path) {
  FileMark mark;
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0) mark.add(info);
  return mark;
}

FileMark segments_mark(const std::string& folder) {
  FileMark mark;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    struct stat info {};
    if (!trace::parse_segment_name(at->path().filename().string())) continue;
    if (::lstat(at->path().c_str(), &info) == 0) mark.add(info);
  }
  return mark;
}

std::string job_of(const RunInfo& info) {
  const auto found = std::find_if(info.options.begin(), info.options.end(), [](const auto& o) { return o.first == "job"; });
  return found == info.options.end() ? "" : found->second;
}

bool has_fault(const Digest& digest) { return digest.status == VerdictStatus::kFault; }

LiveFault fault_of(const DigestOrigin& origin, std::uint32_t rank) {
  LiveFault fault;
  fault.rank = rank;
  fault.step = origin.place.step;
  fault.cls = std::string(finding_class_name(origin.cls));
  fault.op = origin.place.op.value_or("");
  fault.module = origin.place.module.value_or("");
  fault.call_site = origin.call_site;
  fault.title = origin.title;
  return fault;
}

}  // namespace

struct LiveRun::Attempt {
  RankFolder folder;
  RunInfo info;
  bool info_read = false;
  FileMark digest_mark, segments;
  std::optional<Digest> digest, judged;  // from its file; made here, in memory
  std::string unread;                    // why the file cannot be used
  std::uint64_t judged_bytes = 0, judged_events = 0;  // of the trace, of bad and skipped steps, when it was judged
  std::uint64_t end_looked_for_at = 0;                // bytes
  std::unique_ptr<AttemptTail> tail;
  std::optional<Clock::time_point> changed;
  bool ended = false;

  void read_info() {
    if (!info_read) info_read = trace::read_run_info(folder.path, info);
  }

  // The digest that knows most of the trace.
  const Digest* newest_digest() const {
    if (judged && (!digest || judged->trace_bytes >= digest->trace_bytes)) return &*judged;
    return digest ? &*digest : nullptr;
  }
  bool is_fresh() const {
    const Digest* const known = newest_digest();
    return known != nullptr && (segments.files == 0 || known->trace_bytes == segments.bytes);
  }

  // Where there is none: of what its rows show.
  std::optional<Digest> shown_digest() const {
    if (tail == nullptr || segments.files == 0) return std::nullopt;
    const TailNumbers numbers = tail->numbers();
    Digest shown;
    shown.rank = folder.rank;
    shown.attempt = folder.attempt;
    shown.world_size = std::max(info.world_size, folder.rank + 1);
    shown.run = info.run;
    shown.job = job_of(info);
    shown.host = info.host;
    shown.nanhunt = info.nanhunt_version;
    shown.framework = info.framework;
    shown.level = info.level;
    shown.ended = ended;
    shown.trace_bytes = segments.bytes;
    const bool clean = numbers.bad_steps == 0 && numbers.last_step && !tail->damaged();
    shown.status = clean ? VerdictStatus::kClean : VerdictStatus::kInconclusive;
    shown.last_step = numbers.last_step;
    shown.steps = numbers.last_step ? *numbers.last_step + 1ull : 0;
    shown.clean_through = clean_through();
    return shown;
  }

  // Of steps that came since it was written.
  void bring_up_to_date(Digest& digest_of_this) const {
    if (has_fault(digest_of_this) || is_fresh()) return;
    const std::optional<Digest> shown = shown_digest();
    if (!shown || !shown->last_step) return;
    if (digest_of_this.steps == 0) digest_of_this.status = shown->status;  // it was written when the rank began
    digest_of_this.last_step = shown->last_step;
    digest_of_this.steps = shown->steps;
    digest_of_this.clean_through = shown->clean_through;
  }

  std::optional<std::uint32_t> clean_through() const {
    const Digest* const known = newest_digest();
    if (known != nullptr && (is_fresh() || tail == nullptr)) return known->clean_through;
    const TailNumbers numbers = tail->numbers();
    std::optional<std::uint32_t> clean = numbers.last_step;
    if (numbers.first_bad) clean = *numbers.first_bad > 0 ? std::optional(*numbers.first_bad - 1) : std::nullopt;
    if (known != nullptr && has_fault(*known)) clean = clean && known->clean_through ? std::min(clean, known->clean_through) : std::nullopt;
    return clean;
  }
};

LiveRun::LiveRun(std::string run, double quiet_after_seconds) : run_(std::move(run)), quiet_after_(quiet_after_seconds) {}
LiveRun::~LiveRun() = default;

void LiveRun::find_attempts(Clock::time_point now) {
  std::set<Key> there;
  for (RankFolder& folder : rank_folders(run_)) {
    const Key key{folder.rank, folder.attempt};
    there.insert(key);
    std::unique_ptr<Attempt>& attempt = attempts_[key];
    if (attempt != nullptr) continue;
    attempt = std::make_unique<Attempt>();
    attempt->folder = std::move(folder);
    changed_ = true;
  }
  changed_ = std::erase_if(attempts_, [&](const auto& entry) { return !there.contains(entry.first); }) > 0 || changed_;
  choose_current();
  for (auto& [key, attempt] : attempts_) observe(*attempt, now);
}

// Of each rank the newest attempt, and those that other processes of it made in the same run.
void LiveRun::choose_current() {
  current_.clear();
  for (auto at = attempts_.rbegin(); at != attempts_.rend(); ++at) {
    std::vector<Attempt*>& of_rank = current_[at->first.first];
    Attempt& attempt = *at->second;
    if (!of_rank.empty()) {
      if (of_rank.size() >= kMostAttempts) continue;
      of_rank.front()->read_info();
      attempt.read_info();
      if (attempt.info.run.empty() || attempt.info.run != of_rank.front()->info.run) continue;
    }
    of_rank.push_back(&attempt);
  }
  std::size_t tails = 0;
  for (auto& [rank, attempts] : current_) {
    if (tails++ >= kMaxTails) break;
    for (Attempt* const attempt : attempts) {
      attempt->read_info();
      if (attempt->tail == nullptr) attempt->tail = std::make_unique<AttemptTail>(attempt->folder.path);
    }
  }
}

void LiveRun::observe(Attempt& attempt, Clock::time_point now) {
  const std::vector<Attempt*>& of_rank = current_[attempt.folder.rank];
  const bool current = std::find(of_rank.begin(), of_rank.end(), &attempt) != of_rank.end();
  const FileMark digest = mark_of(attempt.folder.path + "/" + kDigestName);
  const FileMark segments = current ? segments_mark(attempt.folder.path) : attempt.segments;
  const bool is_new = digest != attempt.digest_mark || segments != attempt.segments;
  if (!is_new && attempt.changed) return;
  if (digest != attempt.digest_mark) {
    attempt.digest.reset();
    attempt.unread.clear();
    if (digest.files > 0) {
      Result<Digest> read = read_digest(attempt.folder);
      if (read) {
        attempt.digest = std::move(*read);
      } else if (read.status().code() != StatusCode::kNotFound) {
        attempt.unread = read.status().message();
      }
    }
  }
  // At first sight the files say when; from then on what is seen to change does, whatever clock they go by.
  const Clock::time_point written{std::chrono::duration_cast<Clock::duration>(std::chrono::nanoseconds(std::max(digest.newest_ns, segments.newest_ns)))};
  attempt.changed = attempt.changed ? now : std::min(now, written);
  changed_ = changed_ || digest != attempt.digest_mark || attempt.tail != nullptr;
  attempt.digest_mark = digest;
  attempt.segments = segments;
}

void LiveRun::read_tails() {
  behind_ = false;
  std::uint64_t left = kTailBytes;
  for (const auto& [rank, attempts] : current_) {
    for (Attempt* const attempt : attempts) {
      if (attempt->tail == nullptr) continue;
      attempt->tail->read(left);
      behind_ = behind_ || attempt->tail->behind();
      left = attempt->tail->behind() ? 0 : left;
    }
  }
}

void LiveRun::find_end(Attempt& attempt, Clock::time_point now) {
  const bool before = attempt.ended;
  const bool by_digest = attempt.digest && attempt.digest->ended &&
                         (attempt.segments.files == 0 || attempt.digest->trace_bytes == attempt.segments.bytes);
  attempt.ended = by_digest || (attempt.tail != nullptr && attempt.tail->ended());
  if (!attempt.ended && attempt.tail == nullptr && attempt.segments.files > 0) {
    // Its last digest was not written, or is older than its trace. A few at a time, of those that stand still.
    attempt.ended = before && attempt.end_looked_for_at == attempt.segments.bytes;
    if (attempt.end_looked_for_at != attempt.segments.bytes && ends_looked_for_ < kEndsLookedFor &&
        state_of(attempt, now) == LiveState::kQuiet) {
      ++ends_looked_for_;
      AttemptTail tail(attempt.folder.path);
      tail.read(kTailBytes);
      attempt.ended = tail.ended();
      attempt.end_looked_for_at = attempt.segments.bytes;
    }
  }
  changed_ = changed_ || attempt.ended != before;
}

void LiveRun::judge_in_memory(Attempt& attempt) {
  if (attempt.tail == nullptr || attempt.segments.files == 0 || attempt.judged_bytes == attempt.segments.bytes) return;
  if (attempt.is_fresh() || attempt.tail->behind()) return;
  const TailNumbers numbers = attempt.tail->numbers();
  const std::uint64_t events = numbers.bad_steps + numbers.skipped_steps;
  if (!attempt.ended && (events == 0 || events < 2 * attempt.judged_events || attempt.segments.bytes > kJudgedBytes)) return;
  attempt.judged_bytes = attempt.segments.bytes;
  attempt.judged_events = events;
  changed_ = true;
  if (Result<Digest> digest = make_digest(attempt.folder.path)) attempt.judged = std::move(*digest);
}

void LiveRun::judge() {
  Digests digests;
  std::vector<Digest> all;
  for (const auto& [key, attempt] : attempts_) {
    if (!attempt->unread.empty())
      digests.unread.push_back({key.first, attempt->folder.path + "/" + kDigestName, attempt->unread});
    if (const Digest* const known = attempt->newest_digest()) {
      all.push_back(*known);
      attempt->bring_up_to_date(all.back());
      all.back().ended = all.back().ended || attempt->ended;
    } else if (std::optional<Digest> shown = attempt->shown_digest()) {
      all.push_back(std::move(*shown));
    }
  }
  choose_attempts(std::move(all), digests);
  verdict_ = digests.ranks.empty() ? FleetVerdict{} : judge_fleet(digests);
  if (digests.ranks.empty()) verdict_.digests = std::move(digests);
}

LiveState LiveRun::state_of(const Attempt& attempt, Clock::time_point now) const {
  if (attempt.ended) return LiveState::kEnded;
  const double quiet = std::chrono::duration<double>(now - attempt.changed.value_or(now)).count();
  const double after = attempt.segments.files > 0 ? quiet_after_ : std::max(quiet_after_, kDigestsQuietAfter);
  return quiet < after ? LiveState::kTraining : LiveState::kQuiet;
}

const LiveRun::Attempt* LiveRun::shown_attempt(std::uint32_t rank) const {
  const Attempt* shown = nullptr;
  std::optional<std::uint32_t> most;
  for (const Attempt* const attempt : current_.at(rank)) {
    const std::optional<std::uint32_t> step = attempt->tail != nullptr && attempt->segments.files > 0
                                                  ? attempt->tail->numbers().last_step
                                                  : std::optional<std::uint32_t>();
    if (shown != nullptr && (!step || (most && *step <= *most))) continue;
    shown = attempt;
    most = step;
  }
  return shown;
}

LiveRank LiveRun::rank_of(std::uint32_t rank, Clock::time_point now) const {
  LiveRank out;
  out.rank = rank;
  LiveNumbers& n = out.numbers;
  n.ranks = 1;
  std::set<LiveState> states;
  for (const Attempt* const attempt : current_.at(rank)) states.insert(state_of(*attempt, now));
  n.training = states.contains(LiveState::kTraining) ? 1 : 0;
  n.quiet = n.training == 0 && states.contains(LiveState::kQuiet) ? 1 : 0;
  n.ended = n.training + n.quiet == 0 ? 1 : 0;

  const Attempt& attempt = *shown_attempt(rank);
  const Digest* const digest = attempt.newest_digest();
  const bool followed = attempt.tail != nullptr && attempt.segments.files > 0;
  if (followed) {
    const TailNumbers numbers = attempt.tail->numbers();
    n.lowest_step = n.highest_step = numbers.last_step;
    n.bad_steps = numbers.bad_steps;
    n.skipped_steps = numbers.skipped_steps;
    n.scale = numbers.scale;
  } else if (digest != nullptr) {
    n.lowest_step = n.highest_step = digest->last_step;
    for (const DigestOrigin& origin : digest->origins) {
      if (origin.severity == Severity::kFault) n.bad_steps = std::max(n.bad_steps, std::max<std::uint64_t>(origin.count, 1));
    }
    if (digest->arrival && digest->arrival->severity == Severity::kFault) n.bad_steps = std::max<std::uint64_t>(n.bad_steps, 1);
    if (digest->scaler) {
      n.skipped_steps = digest->scaler->skipped;
      n.scale = digest->scaler->scale;
    }
  }
  if (followed || digest != nullptr) n.clean_through = attempt.clean_through();
  n.any_unclean = n.highest_step && !n.clean_through;
  if (digest != nullptr) {
    for (const auto& [dimension, place] : digest->coordinates) out.places.push_back({dimension, std::to_string(place)});
  }
  const std::string& host = digest != nullptr ? digest->host : attempt.info.host;
  if (out.places.empty() && !host.empty()) out.places.push_back({"host", host});
  return out;
}

void LiveRun::add_faults(LiveStatus& status) const {
  std::map<std::string, LiveFault> kinds;
  for (const Digest& digest : verdict_.digests.ranks) {
    std::set<std::string> of_rank;
    for (const DigestOrigin& origin : digest.origins) {
      if (origin.severity != Severity::kFault) continue;
      LiveFault fault = fault_of(origin, digest.rank);
      const bool again = !of_rank.insert(fault.key()).second;
      const auto [at, is_new] = kinds.try_emplace(fault.key(), fault);
      if (is_new) continue;
      LiveFault& known = at->second;
      fault.ranks = known.ranks + (again ? 0 : 1);
      if (fault.step < known.step) known = fault;
      known.ranks = fault.ranks;
    }
  }
  if (kinds.empty() && verdict_.status == VerdictStatus::kFault) {  // it came from elsewhere, or replicas parted
    LiveFault fault;
    fault.title = verdict_.headline;
    fault.cls = verdict_.came_by ? "comm" : "replicas";
    if (verdict_.came_by) fault.step = verdict_.came_by->step;
    if (!verdict_.came_by && verdict_.parting) fault.step = verdict_.parting->step;
    const std::vector<std::uint32_t>& ranks = verdict_.came_by || !verdict_.parting ? verdict_.reached : verdict_.parting->minority;
    if (!ranks.empty()) fault.rank = ranks.front();
    fault.ranks = static_cast<std::uint32_t>(std::max<std::size_t>(ranks.size(), 1));
    kinds.emplace(fault.key(), fault);
  }
  for (auto& [key, fault] : kinds) status.faults.push_back(std::move(fault));
  std::sort(status.faults.begin(), status.faults.end(), [](const LiveFault& a, const LiveFault& b) {
    return std::tuple(a.step, a.rank, a.key()) < std::tuple(b.step, b.rank, b.key());
  });
  if (status.faults.size() > kMaxLiveFaults) status.faults.resize(kMaxLiveFaults);
}

// Where the digests say less than what was followed since, or speak of ranks where there is one.
void LiveRun::write_headline(LiveStatus& status) {
  const bool lone = status.world_size == 1, ended = status.state == LiveState::kEnded;
  const bool clean = status.status == VerdictStatus::kClean && status.numbers.clean_through;
  if (lone && !status.faults.empty()) {
    const LiveFault& first = status.faults.front();
    status.headline = fmt::format("{}{}, step {}", first.title, first.call_site.empty() ? "" : " (" + first.call_site + ")", first.step);
  } else if (clean && (lone || !ended)) {
    status.headline = fmt::format("No harmful NaN or Inf through step {}{}{}", *status.numbers.clean_through,
                                  lone ? "" : fmt::format(" on {} ranks", status.numbers.ranks), ended ? "" : " so far");
  }
}

LiveStatus LiveRun::refresh(Clock::time_point now) {
  find_attempts(now);
  read_tails();
  ends_looked_for_ = 0;
  for (const auto& [rank, attempts] : current_) {
    for (Attempt* const attempt : attempts) {
      find_end(*attempt, now);
      judge_in_memory(*attempt);
    }
  }
  if (std::exchange(changed_, false)) judge();

  LiveStatus status;
  if (current_.empty()) return status;
  status.status = verdict_.status;
  status.headline = verdict_.headline;
  status.world_size = verdict_.digests.world_size;
  status.damaged = verdict_.digests.unread.size();
  const std::set<std::uint32_t> older(verdict_.digests.older.begin(), verdict_.digests.older.end());
  std::vector<LiveRank> ranks;
  Clock::time_point newest{};
  for (const auto& [rank, attempts] : current_) {
    if (older.contains(rank)) continue;
    ranks.push_back(rank_of(rank, now));
    status.numbers.add(ranks.back().numbers);
    for (const Attempt* const attempt : attempts) {
      newest = std::max(newest, attempt->changed.value_or(now));
      status.world_size = std::max<std::uint64_t>({status.world_size, attempt->info.world_size, rank + 1ull});
      if (attempt->tail != nullptr && attempt->tail->damaged()) ++status.damaged;
    }
    const Attempt* const shown = shown_attempt(rank);
    if (status.shown_rank || shown->tail == nullptr || shown->segments.files == 0) continue;
    const TailNumbers numbers = shown->tail->numbers();
    if (!numbers.last_step) continue;
    status.shown_rank = rank;
    status.loss = numbers.loss;
    status.lr = numbers.lr;
    status.gradient_norm = numbers.gradient_norm;
    status.seconds_per_step = numbers.seconds_per_step;
    status.watching = numbers.watching;
  }
  status.quiet_seconds = std::max(0.0, std::chrono::duration<double>(now - newest).count());
  const bool waits = ranks.size() < status.world_size && status.quiet_seconds < quiet_after_;  // for the other ranks
  status.state = status.numbers.training > 0 || waits ? LiveState::kTraining
                 : status.numbers.quiet > 0           ? LiveState::kQuiet
                                                      : LiveState::kEnded;
  status.groups = group_ranks(ranks);
  add_faults(status);
  write_headline(status);
  return status;
}

}  // namespace nanhunt::fleet
