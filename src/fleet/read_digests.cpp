// SPDX-License-Identifier: Apache-2.0
#include "src/fleet/read_digests.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>

#include "src/fleet/make_digest.h"
#include "src/trace/segments/files.h"
#include "src/trace/segments/segment.h"

namespace nanhunt::fleet {
namespace {

namespace fs = std::filesystem;

// The folders right in `folder` whose names `parse` knows, by number.
template <typename F>
std::map<std::uint32_t, std::string> numbered(const std::string& folder, F&& parse) {
  std::map<std::uint32_t, std::string> found;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    if (const auto number = parse(at->path().filename().string())) found.emplace(*number, at->path().string());
  }
  return found;
}

}  // namespace

std::vector<RankFolder> rank_folders(const std::string& run) {
  std::vector<RankFolder> all;
  for (const auto& [rank, path] : numbered(run, trace::parse_rank_folder_name)) {
    for (const auto& [attempt, inner] : numbered(path, trace::parse_attempt_folder_name)) all.push_back({inner, rank, attempt});
  }
  return all;
}

Result<Digest> read_digest(const RankFolder& folder) {
  const std::string path = folder.path + "/" + kDigestName;
  auto file = trace::InputFile::open(path, /*follow_links=*/false);
  if (!file) return file.status();
  const std::span<const std::byte> bytes = file->view(0, kMaxReadBytes + 1);
  if (file->failed() != 0) return Status(StatusCode::kUnreadable, trace::error_text(file->failed()));
  Result<Digest> digest = parse_digest({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!digest) return digest;
  if (digest->rank != folder.rank || digest->attempt != folder.attempt) {
    return Status(StatusCode::kUnreadable, fmt::format("it is of rank {}, attempt {}, and lies in the folder of another",
                                                       digest->rank, digest->attempt));
  }
  return digest;
}

namespace {

// What became of one folder.
struct Outcome {
  std::optional<Digest> digest;
  Status failure;
  bool made = false, kept = true, stale = false;
};

Outcome look_at(const RankFolder& folder, const ReadOptions& options) {
  Outcome outcome;
  Result<Digest> digest = read_digest(folder);
  const std::uint64_t bytes = segment_bytes(folder.path);
  // Of more than lies here: a copy of the trace is older, or there is none.
  const bool whole = digest && digest->trace_bytes >= bytes;
  if (whole || (digest && !options.make)) {
    outcome.stale = !whole;
    outcome.digest = std::move(*digest);
    return outcome;
  }
  if (bytes != 0 && options.make) {
    Result<Digest> fresh = make_digest(folder.path);
    if (fresh) {
      outcome.made = true;
      outcome.kept = write_digest(folder.path, *fresh).is_ok();
      outcome.digest = std::move(*fresh);
      return outcome;
    }
    outcome.failure = fresh.status();
  } else {
    outcome.failure = digest.status();
  }
  outcome.stale = digest.is_ok();
  if (digest) outcome.digest = std::move(*digest);  // older than its trace, which cannot be read: better than nothing
  return outcome;
}

}  // namespace

const Digest* Digests::find(std::uint32_t rank) const {
  const auto at = std::lower_bound(ranks.begin(), ranks.end(), rank, [](const Digest& one, std::uint32_t r) { return one.rank < r; });
  return at == ranks.end() || at->rank != rank ? nullptr : &*at;
}

std::uint64_t Digests::missing_count() const {
  const std::uint64_t there = static_cast<std::uint64_t>(
      std::count_if(ranks.begin(), ranks.end(), [&](const Digest& one) { return one.rank < world_size; }));
  return world_size - std::min<std::uint64_t>(there, world_size);
}

std::vector<std::uint32_t> Digests::missing(std::size_t most) const {
  std::vector<std::uint32_t> out;
  auto next = ranks.begin();
  for (std::uint32_t rank = 0; rank < world_size && out.size() < most; ++rank) {
    while (next != ranks.end() && next->rank < rank) ++next;
    if (next == ranks.end() || next->rank != rank) out.push_back(rank);
  }
  return out;
}

std::vector<RankRange> Digests::missing_ranges(std::size_t most) const {
  std::vector<RankRange> ranges;
  std::uint64_t next = 0;  // the first rank that is not looked at yet
  const auto add = [&](std::uint64_t end) {
    if (next < end && ranges.size() < most) ranges.emplace_back(static_cast<std::uint32_t>(next), static_cast<std::uint32_t>(end - 1));
  };
  for (const Digest& one : ranks) {
    add(std::min(one.rank, world_size));
    next = std::uint64_t{one.rank} + 1;
  }
  add(world_size);
  return ranges;
}

namespace {

using OfRank = std::map<std::uint32_t, std::vector<const Digest*>>;  // ascending by attempt

// The job of the newest launch that at least half as many ranks took part in as in any other.
std::string newest_job(const std::vector<Digest>& all) {
  struct Job {
    std::set<std::uint32_t> ranks;
    std::uint32_t attempt = 0;
  };
  std::map<std::string, Job> jobs;
  std::size_t most = 0;
  for (const Digest& one : all) {
    Job& job = jobs[one.job];
    job.ranks.insert(one.rank);
    job.attempt = std::max(job.attempt, one.attempt);
    most = std::max(most, job.ranks.size());
  }
  const auto key = [](const auto& job) { return std::pair(job.second.attempt, job.second.ranks.size()); };
  auto best = jobs.end();
  for (auto at = jobs.begin(); at != jobs.end(); ++at) {
    if (2 * at->second.ranks.size() >= most && (best == jobs.end() || key(*at) > key(*best))) best = at;
  }
  return best->first;
}

// Runs that ranks have left behind: an earlier attempt of theirs is of it, and the newest is of another.
std::set<std::string> left_runs(const OfRank& ranks) {
  std::set<std::string> runs;
  for (const auto& [rank, attempts] : ranks) {
    for (const Digest* one : attempts) {
      if (!one->run.empty() && one->run != attempts.back()->run) runs.insert(one->run);
    }
  }
  return runs;
}

std::uint32_t most_common_attempt(const OfRank& ranks, std::size_t& count) {
  std::map<std::uint32_t, std::size_t> counts;
  for (const auto& [rank, attempts] : ranks) ++counts[attempts.back()->attempt];
  const auto most = std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  count = most->second;
  return most->first;
}

// What another process of the same rank and run saw counts as the rank's own.
void add_process(Digest& rank, const Digest& other) {
  rank.origins.insert(rank.origins.end(), other.origins.begin(), other.origins.end());
  if (!rank.arrival || (other.arrival && other.arrival->step < rank.arrival->step)) rank.arrival = other.arrival;
  if (!other.last_step) return;
  if (!rank.clean_through || !other.clean_through) {
    rank.clean_through.reset();
  } else if (other.status == VerdictStatus::kFault) {
    rank.clean_through = std::min(*rank.clean_through, *other.clean_through);
  }
}

// Of the processes of one rank in one run: the one that trained most, with what the others saw. `used`: how many.
Digest one_digest(const std::vector<const Digest*>& attempts, std::size_t& used) {
  const std::string& run = attempts.back()->run;
  std::vector<const Digest*> beside;
  for (const Digest* one : attempts) {
    if (one == attempts.back() || (!run.empty() && one->run == run)) beside.push_back(one);
  }
  const Digest* base = *std::max_element(beside.begin(), beside.end(), [](const Digest* a, const Digest* b) { return a->steps < b->steps; });
  used += beside.size();
  Digest digest = *base;
  for (const Digest* one : beside) {
    if (one != base) add_process(digest, *one);
  }
  return digest;
}

}  // namespace

void choose_attempts(std::vector<Digest> all, Digests& into) {
  if (all.empty()) return;
  std::stable_sort(all.begin(), all.end(), [](const Digest& a, const Digest& b) { return std::tuple(a.rank, a.attempt) < std::tuple(b.rank, b.attempt); });
  const std::string job = newest_job(all);
  OfRank ranks;
  std::set<std::uint32_t> others;
  for (const Digest& one : all) {
    if (one.job == job) {
      ranks[one.rank].push_back(&one);
    } else {
      others.insert(one.rank);
    }
  }
  // Without a job to go by, the attempt of most ranks counts: one that has only an earlier one is not there.
  const bool nameless = job.empty() || job.starts_with("torchelastic none");
  std::size_t count = 0;
  const std::uint32_t attempt = most_common_attempt(ranks, count);
  const std::set<std::string> left = left_runs(ranks);
  std::size_t used = 0;
  for (const auto& [rank, attempts] : ranks) {
    const Digest& newest = *attempts.back();
    if ((nameless && newest.run.empty() && newest.attempt < attempt && 2 * count > ranks.size()) || left.contains(newest.run)) {
      others.insert(rank);
      continue;
    }
    into.world_size = std::max({into.world_size, newest.world_size, rank + 1 == 0 ? rank : rank + 1});
    into.ranks.push_back(one_digest(attempts, used));
  }
  for (const std::uint32_t rank : others) {
    if (into.find(rank) == nullptr) into.older.push_back(rank);
  }
  const auto of_ranks_there = std::count_if(all.begin(), all.end(), [&](const Digest& one) { return into.find(one.rank) != nullptr; });
  into.earlier = static_cast<std::uint64_t>(of_ranks_there) - used;
}

Result<Digests> read_digests(const std::string& run, const ReadOptions& options) {
  const std::vector<RankFolder> folders = rank_folders(run);
  if (folders.empty()) {
    return Status(StatusCode::kNotFound, run + ": no rank of a run is there. Give a run folder made by nanhunt.");
  }
  std::vector<Outcome> outcomes(folders.size());
  std::atomic<std::size_t> next{0};
  std::size_t done = 0;
  std::mutex mutex;
  const auto work = [&] {
    for (std::size_t i = next++; i < folders.size(); i = next++) {
      try {
        outcomes[i] = look_at(folders[i], options);
      } catch (const std::exception& error) {  // no memory: the other ranks are still read
        outcomes[i].failure = Status(StatusCode::kUnreadable, error.what());
      }
      if (!options.progress) continue;
      const std::lock_guard lock(mutex);
      options.progress(++done, folders.size());
    }
  };
  const unsigned processors = std::max(1u, std::thread::hardware_concurrency());
  const unsigned workers = options.workers == 0 ? processors : options.workers;
  std::vector<std::thread> threads;
  try {
    for (unsigned i = 1; i < workers && i < folders.size(); ++i) threads.emplace_back(work);
  } catch (const std::system_error&) {  // then with fewer
  }
  work();
  for (std::thread& thread : threads) thread.join();

  Digests digests;
  std::vector<Digest> all;
  for (std::size_t i = 0; i < folders.size(); ++i) {
    Outcome& outcome = outcomes[i];
    digests.made += outcome.made ? 1 : 0;
    digests.unkept += outcome.kept ? 0 : 1;
    digests.stale += outcome.stale ? 1 : 0;
    if (!outcome.failure.is_ok()) {
      const bool nothing = outcome.failure.code() == StatusCode::kNotFound && !outcome.digest;
      if (!nothing) digests.unread.push_back({folders[i].rank, folders[i].path + "/" + kDigestName, outcome.failure.message()});
    }
    if (outcome.digest) all.push_back(std::move(*outcome.digest));
  }
  if (all.empty()) {
    if (!digests.unread.empty()) {
      return Status(StatusCode::kUnreadable, fmt::format("{}: no rank left a digest that can be read ({}: {}).", run,
                                                         digests.unread.front().path, digests.unread.front().why));
    }
    return Status(StatusCode::kNotFound, run + ": no rank left a digest or a trace.");
  }
  choose_attempts(std::move(all), digests);
  return digests;
}

}  // namespace nanhunt::fleet
