// SPDX-License-Identifier: Apache-2.0
// A step of which a device tells later what was finite. Its rows stay here (ring.h); what its ops have made is looked at
// there, many tensors by one launch, and kept until then. Once all has come it is known whether anybody wants the rows.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hooks/torch/tap/held/births.h"
#include "hooks/torch/tap/held/ring.h"
#include "hooks/torch/tap/recording.h"

namespace nanhunt::tap {

// What an op has made, and what is asked of it should it not be finite; or, without a plan, what one took.
struct LookedAt {
  Quad quad;
  std::weak_ptr<Identity> identity = {};
  const Plan* plan = nullptr;
  std::int64_t site = 0, phase = 0;
  bool covers = false;  // all of its memory
  bool single = false;  // one number
  bool given = false;   // the op was given a number that is not finite
  bool lasts = false;   // it was there before the step
  bool copies = false;  // the op gives what it was given
};

// What is kept until a launch reads it.
class Unread {
 public:
  bool is_empty() const { return made_.empty(); }
  std::size_t made() const { return made_.size() / kValueWords; }
  std::int64_t stream() const { return made_.empty() ? 0 : made_[3] >> 32; }
  bool is_full() const { return made() >= kMostMade || bytes_ > kMostBytes; }
  const std::vector<Quad>& taken() const { return taken_; }
  // What ops have made, then what they took.
  const Words& all() {
    for (const Quad& one : taken_) put(made_, one);
    return made_;
  }

  void add(const at::Tensor& t, const Quad& quad) {
    put(made_, quad);
    known_.push_back(quad.word);
    keep(t.storage());
  }
  // What an op took says why it made what is not finite.
  void add_taken(const at::Tensor& t, const Quad& quad) {
    if (taken_.size() >= kMostTaken || std::find(known_.begin(), known_.end(), quad.word) != known_.end()) return;
    taken_.push_back(quad);
    known_.push_back(quad.word);
    keep(t.storage());
  }
  bool shows(const at::Tensor& t) const {
    return !kept_.empty() && t.has_storage() && kept_.contains(t.storage().unsafeGetStorageImpl());
  }
  // Memory that was changed under its tensors (sharded training does).
  bool is_gone() const {
    for (const auto& [impl, kept] : kept_)
      if (impl->data() != kept.data || impl->nbytes() != kept.bytes) return true;
    return false;
  }
  void clear() {
    made_.clear();
    taken_.clear();
    known_.clear();
    kept_.clear();
    bytes_ = 0;
  }

 private:
  struct Kept {
    c10::Storage storage;
    const void* data;
    std::size_t bytes;
  };
  void keep(const c10::Storage& storage) {
    if (!kept_.try_emplace(storage.unsafeGetStorageImpl(), Kept{storage, storage.data(), storage.nbytes()}).second) return;
    bytes_ += storage.nbytes();
    // Whoever else gave the memory may want a lock to take it back.
    const c10::Allocator* const allocator = storage.allocator();
    if (allocator == nullptr || storage.data_ptr().get_deleter() != allocator->raw_deleter()) bytes_ = kMostBytes + 1;
  }

  static constexpr std::size_t kMostMade = 64, kMostTaken = 86;     // together as many as a launch may have
  static constexpr std::size_t kMostBytes = std::size_t{192} << 20;  // of memory that lives longer for it

  Words made_;
  std::vector<Quad> taken_;
  Words known_;  // contents of both
  std::unordered_map<const c10::StorageImpl*, Kept> kept_;
  std::size_t bytes_ = 0;
};

class LateStep {
 public:
  static constexpr const char* kGone = "tensors of a device whose memory was changed before it was read";
  static constexpr const char* kUnread = "unread values: readings of a device that were lost";

  StepRing ring;        // once the step is over
  bool wanted = false;  // somebody asked for its rows

  bool is_empty() const { return looked_.empty(); }
  void begin(const Recording& to) {
    for (const Launch& one : launches_)
      if (one.look != 0) to.forget_look(to.self, one.look);
    looked_.clear(), launches_.clear(), met_.clear(), finite_.clear();
    unread_.clear();
    wanted = is_judged_ = false;
  }
  void add(const at::Tensor& t, LookedAt one, const Recording& to, Notes& notes) {
    if (!unread_.is_empty() && (unread_.is_full() || unread_.stream() != one.quad.layout >> 32)) launch(to, notes);
    if (stream_ == 0) stream_ = one.quad.layout >> 32;
    const Quad quad = one.quad;
    looked_.push_back(std::move(one));
    unread_.add(t, quad);
  }
  // What needs no look: it was made of finite numbers in a way that keeps them.
  void note_finite(std::int64_t word) { finite_.push_back(word); }
  void add_taken(const at::Tensor& t, const Quad& quad) {
    if (!unread_.is_empty() && unread_.stream() == quad.layout >> 32) unread_.add_taken(t, quad);
  }
  // Memory of another stream than the run's main one may be given away there, before a look that waits.
  void launch_if_due(const Recording& to, Notes& notes) {
    if (unread_.is_full() || (!unread_.is_empty() && unread_.stream() != stream_)) launch(to, notes);
  }
  void launch_before_write(std::int64_t stream, const Recording& to, Notes& notes) {
    is_lost_ = !unread_.is_empty() && stream > 0 && unread_.stream() != stream >> 32;
    launch(to, notes);
  }
  bool is_to_read(const at::Tensor& t) const { return unread_.shows(t); }
  void launch(const Recording& to, Notes& notes) {
    if (unread_.is_empty()) return;
    const std::size_t made = unread_.made(), first = looked_.size() - made;
    for (const Quad& one : unread_.taken()) looked_.push_back({one});
    const std::size_t count = looked_.size() - first;
    std::uint64_t look = 0;
    if (std::exchange(is_lost_, false) || unread_.is_gone()) {
      notes[kGone] += static_cast<std::int64_t>(made);
    } else {
      look = to.look(to.self, unread_.all().data(), made, count);
    }
    launches_.push_back({look, first, count});
    unread_.clear();
  }

  // Whether all has come, or will not. Never waits.
  bool is_here(const Recording& to) {
    bits_.resize(looked_.size());
    for (Launch& one : launches_) {
      if (one.state != 0) continue;
      one.state = one.look == 0 ? -1 : to.looked(to.self, one.look, bits_.data() + one.first, one.count);
      if (one.state == 0) return false;
    }
    return true;
  }

  // What came: which is known from now on. Whether the rows are wanted for it.
  bool judge(Births& births, std::int64_t& left_bad, Notes& notes) {
    known_.clear(), found_.clear(), taken_.clear();
    bool any = wanted;
    const bool again = std::exchange(is_judged_, true);
    for (const Launch& one : launches_) {
      if (one.state < 0 && one.look != 0 && !again) notes[kUnread] += static_cast<std::int64_t>(one.count);
      for (std::size_t i = one.first; i < one.first + one.count; ++i) {
        const LookedAt& its = looked_[i];
        if (one.state < 0 || bits_[i] == NANHUNT_HAS_NOT_SAID) continue;
        const std::uint8_t bits = of_device(bits_[i]);
        if (its.plan == nullptr) {
          taken_.push_back({i, static_cast<std::int64_t>(one.look << 16 | (i - one.first)), bits});
          continue;
        }
        const auto identity = its.identity.lock();
        if (identity != nullptr && identity->word == its.quad.word && (its.covers || bits != 0)) identity->note_bad(bits);
        any = any || bits != 0;
        if (bits == 0 && its.covers) finite_.push_back(its.quad.word);
        found_.push_back({i, static_cast<std::int64_t>(one.look << 16 | (i - one.first)), bits});
      }
    }
    if (!any) return false;
    std::sort(finite_.begin(), finite_.end());
    for (const Found& one : found_) known_[looked_[one.at].quad.word].push_back(one);
    // What one has made says what it holds better than what others took of it.
    for (const Found& one : taken_) {
      std::vector<Found>& its = known_[looked_[one.at].quad.word];
      if (its.empty() || its.front().bits == 0) its.insert(its.begin(), one);
    }
    any = wanted;
    ring.each_op([&](std::int64_t* inputs, std::size_t given, std::size_t made) {
      std::uint8_t taken = 0;
      for (std::size_t i = 0; i < given; ++i) taken |= bits_of(inputs[i * kValueWords + 1]);
      for (std::size_t i = given; i < given + made; ++i) {
        const Found* const bad = find(inputs + i * kValueWords);
        if (bad == nullptr || bad->bits == 0 || looked_[bad->at].plan == nullptr) continue;
        const LookedAt& its = looked_[bad->at];
        if (given == 1 && its.copies) show_as(inputs, Found{*bad}, inputs + i * kValueWords);
        // Weights, and state.
        if (taken == 0 && (its.phase == NANHUNT_PHASE_OPTIMIZER || its.phase == NANHUNT_PHASE_UPDATE)) left_bad = 1;
        any = births.are_wanted(*its.plan, its.site, bad->bits, taken, its.single, its.given, its.lasts, met_) || any;
      }
    });
    return any;
  }

  // Where what a row shows was looked at.
  void point(std::int64_t* quad) const {
    if (const Found* const its = find(quad)) {
      quad[0] = its->data;
      quad[3] = (quad[3] & 0xffffffff) | std::int64_t{NANHUNT_LOOKS} << 32;
      return;
    }
    quad[0] = std::binary_search(finite_.begin(), finite_.end(), quad[1]) ? NANHUNT_WAS_FINITE : 0;
    quad[3] &= 0xffffffff;
  }

  // The step was healthy: its infinities were, too.
  void end(Births& births, bool healthy, const Recording& to) {
    if (healthy) births.end_healthy_step(met_);
    static_cast<void>(ring.forget(to));
    begin(to);
  }

 private:
  struct Launch {
    std::uint64_t look;
    std::size_t first, count;  // among looked_
    std::int32_t state = 0;
  };
  struct Found {
    std::size_t at;  // among looked_
    std::int64_t data;
    std::uint8_t bits;
  };
  static std::uint8_t of_device(std::uint8_t bits) {
    return static_cast<std::uint8_t>(((bits & NANHUNT_HAS_NAN) != 0 ? finite::kNan : 0) |
                                     ((bits & (NANHUNT_HAS_POS_INF | NANHUNT_HAS_NEG_INF)) != 0 ? finite::kInf : 0));
  }
  // What the host gave to a device, and nobody has read: it held what came there.
  void show_as(const std::int64_t* given, const Found& found, const std::int64_t* made) {
    if (given[3] >> 32 == 0 && given[3] == (made[3] & 0xffffffff) && given[2] == made[2]) known_[given[1]].push_back(found);
  }
  std::uint8_t bits_of(std::int64_t word) const {
    std::uint8_t bits = 0;
    if (const auto its = known_.find(word); its != known_.end())
      for (const Found& one : its->second) bits |= one.bits;
    return bits;
  }
  const Found* find(const std::int64_t* quad) const {
    const auto its = known_.find(quad[1]);
    if (its == known_.end()) return nullptr;
    for (const Found& one : its->second)
      if (looked_[one.at].quad.offset == quad[2] && (looked_[one.at].quad.layout & 0xffffffff) == (quad[3] & 0xffffffff)) return &one;
    return nullptr;
  }

  Unread unread_;
  std::int64_t stream_ = 0;  // on which the first look was
  bool is_lost_ = false, is_judged_ = false;
  std::vector<LookedAt> looked_;
  std::vector<Launch> launches_;
  std::vector<std::uint8_t> bits_;  // of what was looked at
  std::vector<Found> found_, taken_;
  std::unordered_map<std::int64_t, std::vector<Found>> known_;  // by contents; where anything is not finite
  Words finite_;
  Births::Places met_;
};

}  // namespace nanhunt::tap
