// SPDX-License-Identifier: Apache-2.0
#include "hooks/cupti/kernel_join.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace nanhunt::hooks {
namespace {

constexpr std::size_t kMaxNames = 1u << 16;

// Of a kernel record: two of one launch that agree in all of this are the same record.
std::uint64_t fingerprint(const KernelRun& run) {
  std::uint64_t hash = std::hash<std::string_view>()(run.name);
  for (const std::uint64_t part : {std::uint64_t{run.correlation}, run.start, run.end, run.graph_node}) {
    hash = (hash ^ part) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash;
}

std::int64_t duration_of(const KernelRun& run) {
  if (run.end < run.start || run.end == 0 || run.start == 0) return -1;
  const std::uint64_t nanoseconds = run.end - run.start;
  return nanoseconds > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())
             ? -1
             : static_cast<std::int64_t>(nanoseconds);
}

}  // namespace

KernelJoin::Entry* KernelJoin::entry(std::uint32_t correlation) {
  const auto found = entries_.find(correlation);
  if (found == entries_.end() && entries_.size() >= limits_.max_pending) {
    ++stats_.given_up;
    return nullptr;
  }
  Entry& it = found != entries_.end() ? found->second : entries_[correlation];
  it.touched = collection_;
  return &it;
}

KernelJoin::NameId KernelJoin::number(std::string_view name) {
  if (name.empty()) return 0;
  const auto found = names_.find(std::string(name));
  if (found != names_.end()) return found->second;
  if (names_.size() >= kMaxNames) return 0;
  const auto added = names_.emplace(name, static_cast<NameId>(names_.size() + 1)).first;
  texts_.push_back(&added->first);
  return added->second;
}

void KernelJoin::bind(std::uint64_t ticket, std::uint64_t seq, std::uint32_t step) {
  if (!bound_.contains(ticket) && bound_.size() >= limits_.max_pending) {
    ++stats_.given_up;
    return;
  }
  bound_[ticket] = {seq, step, collection_};
}

void KernelJoin::add(const OpTag& tag) {
  if (Entry* it = entry(tag.correlation)) it->ticket = std::max(it->ticket, tag.ticket);
}

void KernelJoin::add(const PlaceTag& tag) {
  if (Entry* it = entry(tag.correlation)) it->place = std::max(it->place, tag.place);
}

void KernelJoin::add(const Launch& launch) {
  if (Entry* it = entry(launch.correlation)) {
    it->launched = true;
    it->of_graph = it->of_graph || launch.of_graph;
  }
}

void KernelJoin::add(const KernelRun& run) {
  if (seen_.size() >= limits_.max_pending) forget_old_prints();
  const std::uint64_t print = fingerprint(run);
  if (seen_before_.contains(print) || !seen_.insert(print).second) {
    ++stats_.duplicates;
    return;
  }
  if (kernels_.size() >= limits_.max_pending) {
    ++stats_.given_up;
    return;
  }
  kernels_.push_back({run.correlation, number(run.name), duration_of(run), collection_});
}

bool KernelJoin::join_one(const Waiting& kernel, bool last_chance, std::uint32_t now, Rows& rows) {
  const auto found = entries_.find(kernel.correlation);
  Entry* launch = found == entries_.end() ? nullptr : &found->second;
  if (launch != nullptr) {
    launch->has_kernel = true;
    launch->touched = collection_;
  }
  const std::uint64_t ticket = launch == nullptr ? 0 : launch->ticket;
  const bool own = ticket == kOwnTicket;
  const auto op = bound_.find(ticket);
  const bool known = own || (ticket != 0 && op != bound_.end());
  if (!known && !last_chance && collection_ - kernel.since < limits_.max_age) return false;

  std::uint64_t seq = kNoSeq;
  std::uint32_t step = launch != nullptr && launch->place != 0 ? step_of_place(launch->place) : now;
  if (known && !own) {
    op->second.touched = collection_;
    seq = op->second.seq;
    step = op->second.step;
  }
  Sums& sums = rows[{step, seq, own, kernel.name}];
  ++sums.count;
  ++stats_.kernels;
  stats_.own += own;
  stats_.without_op += !own && seq == kNoSeq;
  stats_.unnamed += kernel.name == 0;
  if (kernel.duration_ns < 0) {
    ++stats_.untimed;
  } else {
    ++sums.timed;
    // A clock gone mad may not overflow the sum.
    sums.duration_ns += std::min(kernel.duration_ns, std::numeric_limits<std::int64_t>::max() - sums.duration_ns);
  }
  return true;
}

void KernelJoin::forget_old_prints() {
  seen_before_ = std::move(seen_);
  seen_.clear();
}

// What nothing came for in a long time: launches from before a late attach, ops that launched nothing.
void KernelJoin::age() {
  const auto old = [&](std::uint32_t touched) { return collection_ - touched >= limits_.max_age; };
  std::erase_if(entries_, [&](const auto& it) {
    if (!old(it.second.touched)) return false;
    stats_.launches_without_kernel += it.second.launched && !it.second.has_kernel && !it.second.of_graph;
    return true;
  });
  std::erase_if(bound_, [&](const auto& it) { return old(it.second.touched); });
  if (limits_.max_age == 0 || collection_ % limits_.max_age == 0) forget_old_prints();
}

std::vector<JoinedKernels> KernelJoin::collect(std::uint32_t now, bool all) {
  Rows rows;
  std::erase_if(kernels_, [&](const Waiting& kernel) { return join_one(kernel, all, now, rows); });
  ++collection_;
  if (all) {
    for (const auto& [correlation, it] : entries_) {
      stats_.launches_without_kernel += it.launched && !it.has_kernel && !it.of_graph;
    }
    entries_.clear();
    bound_.clear();
    seen_.clear();
    seen_before_.clear();
  } else {
    age();
  }
  std::vector<JoinedKernels> out;
  out.reserve(rows.size());
  for (const auto& [key, sums] : rows) {
    const auto& [step, seq, own, name] = key;
    const std::string text = name == 0 ? std::string() : *texts_[name - 1u];
    out.push_back({seq, step, own, text, sums.count, sums.timed, sums.duration_ns});
  }
  // By name, not by its number: that depends on the order in which records came.
  std::sort(out.begin(), out.end(), [](const JoinedKernels& a, const JoinedKernels& b) {
    return std::tie(a.step, a.seq, a.own, a.name) < std::tie(b.step, b.seq, b.own, b.name);
  });
  return out;
}

}  // namespace nanhunt::hooks
