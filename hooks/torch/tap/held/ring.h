// SPDX-License-Identifier: Apache-2.0
// Rows of a step of which it is not known yet whether anybody wants them. They stay here as words, and what they show is
// not read: most steps are healthy, and their rows are forgotten. Where one is not, the recorder gets what came so far
// and reads what is still there; from then on rows go to it at once.
#pragma once

#include <c10/core/Storage.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "hooks/torch/tap/identity.h"
#include "hooks/torch/tap/owners.h"
#include "hooks/torch/tap/recording.h"
#include "hooks/torch/tap/rows/words.h"
#include "hooks/torch/tap/tensor_set.h"

namespace nanhunt::tap {

class StepRing {
 public:
  // Contents of before a write, as a row names them, and a copy of them that still is there.
  struct StandIn {
    std::int64_t word, offset, layout, data;
  };

  Owners owners;  // of this step

  static constexpr std::size_t kMaxWords = (std::size_t{64} << 20) / sizeof(std::int64_t);
  static constexpr const char* kLost = "operations of a step that did not fit into memory";

  bool is_held() const { return state_ != State::kOff; }  // it is not known yet whether the step is wanted
  bool keeps() const { return state_ == State::kKeeps; }  // rows stay here
  bool is_handed_over() const { return state_ == State::kHandedOver; }

  // A step begins whose rows stay here.
  void begin() {
    clear();
    owners.begin_step();
    state_ = State::kKeeps;
    last_before_ = last_storage_number();
  }
  // Whether contents are of a storage that was known before the step.
  bool is_older(std::int64_t word) const { return word >> kVersionBits <= last_before_; }
  // What a row names from here on the recorder may know.
  void note_reported() { reported_up_to_ = last_storage_number(); }

  // An op's row goes to the end of words(), then this is called with how many words there were before, and how many
  Words& words() { return words_; }
  // tensors it was given and has made.
  void end_row(std::size_t at, std::size_t inputs, std::size_t outputs, Notes& notes) {
    rows_.push_back({static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(inputs), static_cast<std::uint32_t>(outputs)});
    if (words_.size() > kMaxWords) forget_oldest(notes);
  }
  // Rows that are no op's.
  void append(const Words& rows, Notes& notes) {
    for (std::size_t at = 0; at < rows.size();) {
      const std::size_t size = size_of(rows[at]);
      if (rows[at] == NANHUNT_ROW_RELEASE && rows[at + 1] <= reported_up_to_) ended_.push_back(rows[at + 1]);
      const std::size_t begin = words_.size();
      words_.insert(words_.end(), rows.begin() + static_cast<std::ptrdiff_t>(at),
                    rows.begin() + static_cast<std::ptrdiff_t>(at + size));
      end_row(begin, rows[at] == NANHUNT_ROW_RELEASE ? 0 : 1, 0, notes);
      at += size;
    }
  }

  // Contents that are written over by what has no row yet.
  void note_before(std::int64_t word) { before_.push_back(word); }

  // What an op has made is not known to be finite.
  void note_not_finite(std::int64_t word) { not_finite_.push_back(word); }

  // A single number that an op has made: it says much, and takes little.
  void keep_number(const Quad& quad, std::size_t bytes) {
    if (bytes > sizeof(Number::bits) || numbers_.size() >= kMostNumbers || quad.layout >> 32 != 0) return;
    Number number{quad.word, quad.offset, quad.layout, {}};
    std::memcpy(number.bits, reinterpret_cast<const void*>(static_cast<std::uintptr_t>(quad.data)), bytes);
    numbers_.push_back(number);
  }

  // Memory with an infinity that may be meant lives until the step is over, as far as there is room: should the step go
  // bad, it says that nothing overflowed.
  void keep_alive(const c10::Storage& storage) {
    const auto size = static_cast<std::int64_t>(storage.nbytes());
    if (size > kMostAlive - alive_bytes_) return;
    for (const c10::Storage& known : alive_)
      if (known.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) return;
    alive_bytes_ += size;
    alive_.push_back(storage);
  }
  // It may go, but not under the tap's mutex: memory of NumPy's wants Python's lock.
  std::vector<c10::Storage> take_alive() {
    alive_bytes_ = 0;
    return std::exchange(alive_, {});
  }

  // The part that these play, as they are when the step begins: told with its rows.
  void mark_later(SharedTensorSet set, std::vector<std::int64_t> kinds, std::int64_t step, std::int64_t micro_batch) {
    marks_.push_back({std::move(set), std::move(kinds), step, micro_batch});
  }
  // Rows of those marks. `changed`: contents that are others by now.
  Words take_marks(Describer& describer, const Words& changed) {
    Words marks;
    if (marks_.empty()) return marks;
    std::unordered_map<std::int64_t, std::int64_t> first;  // contents of each storage that a row names
    for (const Row& row : rows_) {
      std::size_t quad = row.at + header_of(words_[row.at]);
      for (std::uint32_t i = 0; i < row.inputs + row.outputs; ++i, quad += kValueWords)
        first.try_emplace(words_[quad + 1] >> kVersionBits, words_[quad + 1]);
    }
    for (const std::int64_t word : before_) first.try_emplace(word >> kVersionBits, word);
    for (const Mark& mark : marks_) {
      std::size_t at = 0;
      each_alive(*mark.set, [&](const at::Tensor& t, std::int64_t text) {
        const std::int64_t kind = mark.kinds[std::min(at++, mark.kinds.size() - 1)];
        auto quad = describer.describe(t, true);
        if (!quad) return;
        const auto began = first.find(quad->word >> kVersionBits);
        if (began != first.end()) quad->word = began->second;
        if (quad->word != quad->identity->word || std::find(changed.begin(), changed.end(), quad->word) != changed.end()) {
          quad->data = quad->identity->was_finite(quad->word) ? NANHUNT_WAS_FINITE : 0;
          quad->layout &= 0xffffffff;
        }
        marks.insert(marks.end(), {NANHUNT_ROW_MARK, kind, mark.step, mark.micro_batch, text});
        put(marks, *quad);
      });
    }
    marks_.clear();
    return marks;
  }

  // The recorder gets all rows, and every one that follows. `marks`: rows that come first. `changed`: contents that are others by now, though nobody
  // was heard to write them. False: it has refused some.
  bool hand_over(const Identities& identities, const Recording& to, const Words& marks, std::vector<StandIn>& stand_ins,
                 const Words& changed) {
    if (!keeps()) return true;
    state_ = State::kHandedOver;
    bool taken = to.hold == nullptr || is_recorder_holding_ || to.hold(to.self, NANHUNT_HOLD) == NANHUNT_OK;
    if (!marks.empty()) taken = to.rows(to.self, marks.data(), marks.size()) == NANHUNT_OK && taken;
    for (const Number& one : numbers_)
      stand_ins.push_back({one.word, one.offset, one.layout,
                           static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(one.bits))});
    std::sort(stand_ins.begin(), stand_ins.end(), [](const StandIn& a, const StandIn& b) { return a.word < b.word; });
    Gone gone{stand_ins, {not_finite_.begin(), not_finite_.end()}, {}};
    Identities::Alive alive = identities.alive();
    for (const std::int64_t word : changed)
      if (const auto one = alive.find(word >> kVersionBits); one != alive.end() && one->second.identity->word == word) alive.erase(one);
    for (const Row& row : rows_) {
      std::size_t quad = row.at + header_of(words_[row.at]);
      if (words_[row.at] == NANHUNT_ROW_OP) own(row, quad, identities);
      for (std::uint32_t i = 0; i < row.inputs; ++i, quad += kValueWords) point(&words_[quad], alive, gone);
      for (std::uint32_t i = 0; i < row.outputs; ++i, quad += kValueWords) {
        if (words_[quad] != 0) gone.made.insert(words_[quad + 1]);
        point(&words_[quad], alive, gone);
      }
    }
    taken = send(to) && taken;
    clear();
    note_reported();
    return taken;
  }

  // The recorder knows of the step, whose rows stay here.
  void note_recorder_holds() { is_recorder_holding_ = true; }
  // What comes after the step, which is over: a ring of its own.
  StepRing next() const {
    StepRing ring;
    ring.reported_up_to_ = reported_up_to_;
    return ring;
  }
  // The recorder gets all rows of a step that is over. `point`: what is known of what a device had, by its quad.
  template <typename Point>
  bool hand_over_late(const Identities& identities, const Recording& to, Words marks, Point&& point_there) {
    std::vector<StandIn> stand_ins;
    for (const Number& one : numbers_)
      stand_ins.push_back({one.word, one.offset, one.layout,
                           static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(one.bits))});
    std::sort(stand_ins.begin(), stand_ins.end(), [](const StandIn& a, const StandIn& b) { return a.word < b.word; });
    const Gone gone{stand_ins, {not_finite_.begin(), not_finite_.end()}, {}};
    const Identities::Alive alive = identities.alive();
    const auto aim = [&](std::int64_t* quad) {
      const bool here = quad[3] >> 32 == 0 && quad[0] != 0;
      if (here) point(quad, alive, gone);
      if (here && quad[0] != 0) return;
      point_there(quad);
      const auto known = alive.find(quad[1] >> kVersionBits);
      if (quad[0] == 0 && known != alive.end() && known->second.identity->was_finite(quad[1])) quad[0] = NANHUNT_WAS_FINITE;
    };
    for (std::size_t at = 0; at + kMarkHeader + kValueWords <= marks.size(); at += kMarkHeader + kValueWords)
      aim(&marks[at + kMarkHeader]);
    bool taken = marks.empty() || to.rows(to.self, marks.data(), marks.size()) == NANHUNT_OK;
    for (const Row& row : rows_) {
      std::size_t quad = row.at + header_of(words_[row.at]);
      if (words_[row.at] == NANHUNT_ROW_OP) own(row, quad, identities);
      for (std::uint32_t i = 0; i < row.inputs + row.outputs; ++i, quad += kValueWords) aim(&words_[quad]);
    }
    taken = send(to) && taken;
    rows_.clear();
    words_.clear();
    return taken;
  }
  // Of each op its quads: what it was given, then what it has made.
  template <typename F>
  void each_op(F&& take) {
    for (const Row& row : rows_)
      if (words_[row.at] == NANHUNT_ROW_OP) take(&words_[row.at + kOpHeader], row.inputs, row.outputs);
  }

  // The step is over and forgotten: the recorder hears of ends of storages that it knows. False: it refused.
  bool forget(const Recording& to) {
    bool taken = true;
    if (!ended_.empty()) {
      words_.clear();
      for (const std::int64_t storage : ended_) words_.insert(words_.end(), {NANHUNT_ROW_RELEASE, storage});
      taken = to.rows(to.self, words_.data(), words_.size()) == NANHUNT_OK;
    }
    clear();
    state_ = State::kOff;
    return taken;
  }
  void end() { state_ = State::kOff; }

 private:
  enum class State : std::uint8_t { kOff, kKeeps, kHandedOver };
  struct Number {
    std::int64_t word, offset, layout;
    alignas(16) char bits[16];
  };
  struct Row {
    std::uint32_t at, inputs, outputs;
  };
  // Before the quads say where to read.
  void own(const Row& row, std::size_t quads, const Identities& identities) {
    std::int64_t& path = words_[row.at + kPath];
    const std::size_t inputs = row.inputs * kValueWords;
    if (Owners::is_later(path)) path = owners.of_later(path, &words_[quads], inputs, inputs + row.outputs * kValueWords, identities);
  }
  struct Mark {
    SharedTensorSet set;
    std::vector<std::int64_t> kinds;
    std::int64_t step, micro_batch;
  };
  // What is left of contents that are gone.
  struct Gone {
    const std::vector<StandIn>& stand_ins;
    std::unordered_set<std::int64_t> not_finite;
    std::unordered_set<std::int64_t> made;  // by ops of the step, and looked at then
  };
  static constexpr std::size_t kAtOnce = 4096;  // words
  static constexpr std::size_t kMostNumbers = std::size_t{1} << 16;
  static constexpr std::int64_t kMostAlive = 16 << 20;  // bytes
  static constexpr std::size_t kMarkHeader = 5, kCheckHeader = 2;
  static constexpr std::size_t kPath = 5;  // of an op's row

  static std::size_t header_of(std::int64_t kind) {
    return kind == NANHUNT_ROW_OP ? kOpHeader : kind == NANHUNT_ROW_MARK ? kMarkHeader : kCheckHeader;
  }
  static std::size_t size_of(std::int64_t kind) {
    return kind == NANHUNT_ROW_RELEASE ? 2 : header_of(kind) + kValueWords;
  }

  // Where what a row shows is to be read now. Where it was written since, or its memory is gone: a copy, or that it was
  // finite, or nothing.
  static void point(std::int64_t* quad, const Identities::Alive& alive, const Gone& gone) {
    const auto known = alive.find(quad[1] >> kVersionBits);
    if (quad[0] != 0 && known != alive.end() && known->second.identity->word == quad[1] && known->second.holds(quad[0])) return;
    if (quad[0] != 0) quad[3] &= 0xffffffff;  // of the host
    const auto before = [](const StandIn& a, std::int64_t word) { return a.word < word; };
    auto one = std::lower_bound(gone.stand_ins.begin(), gone.stand_ins.end(), quad[1], before);
    for (; quad[0] != 0 && one != gone.stand_ins.end() && one->word == quad[1]; ++one) {
      if (one->offset != quad[2] || one->layout != quad[3]) continue;
      quad[0] = one->data;
      return;
    }
    const bool looked_at = gone.made.contains(quad[1]) && !gone.not_finite.contains(quad[1]);
    const bool was_finite = looked_at || (known != alive.end() && known->second.identity->was_finite(quad[1]));
    quad[0] = was_finite ? NANHUNT_WAS_FINITE : 0;
  }

  // Where the recorder refuses a row, it takes nothing more of the same call.
  bool send(const Recording& to) const {
    bool taken = true;
    for (std::size_t first = 0; first < rows_.size();) {
      std::size_t last = first + 1;
      const std::size_t begin = rows_[first].at;
      while (last < rows_.size() && rows_[last].at - begin < kAtOnce) ++last;
      const std::size_t end = last < rows_.size() ? rows_[last].at : words_.size();
      taken = to.rows(to.self, words_.data() + begin, end - begin) == NANHUNT_OK && taken;
      first = last;
    }
    return taken;
  }

  void clear() {
    is_recorder_holding_ = false;
    words_.clear();
    rows_.clear();
    ended_.clear();
    not_finite_.clear();
    before_.clear();
    numbers_.clear();
    marks_.clear();
  }
  void forget_oldest(Notes& notes) {
    const std::size_t gone = rows_.size() / 2;
    const std::size_t from = rows_[gone].at;
    std::int64_t ops = 0;
    for (std::size_t i = 0; i < gone; ++i) ops += words_[rows_[i].at] == NANHUNT_ROW_OP;
    notes[kLost] += ops;
    words_.erase(words_.begin(), words_.begin() + static_cast<std::ptrdiff_t>(from));
    rows_.erase(rows_.begin(), rows_.begin() + static_cast<std::ptrdiff_t>(gone));
    for (Row& row : rows_) row.at -= static_cast<std::uint32_t>(from);
  }

  State state_ = State::kOff;
  bool is_recorder_holding_ = false;
  Words words_;                      // rows, one after the other
  std::vector<Row> rows_;
  std::vector<std::int64_t> ended_;  // storages that the recorder knows, and that have ended in this step
  std::vector<Number> numbers_;
  std::vector<Mark> marks_;
  Words not_finite_;  // contents that ops have made
  Words before_;
  std::vector<c10::Storage> alive_;
  std::int64_t alive_bytes_ = 0;
  std::int64_t last_before_ = 0;     // the last storage that had a number when the step began
  std::int64_t reported_up_to_ = 0;      // a storage with a higher number the recorder does not know
};

}  // namespace nanhunt::tap
