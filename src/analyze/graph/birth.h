// SPDX-License-Identifier: Apache-2.0
// A birth is one place and moment where bad numbers came into being: an op, or a value that was already bad when it
// was first seen. Origins are the births whose badness reached a sink.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nanhunt/analyzer.h"
#include "src/analyze/graph/labels.h"
#include "src/analyze/stream/value_table.h"

namespace nanhunt::analyze {

enum class BirthKind : std::uint8_t {
  kOp,         // an op made it
  kBatch,      // an input of the step was bad
  kState,      // a parameter, optimizer state or buffer was bad, and no watched op had made it so
  kUnwatched,  // bad when first seen, and neither of the above
  kKept,       // an op of backward added to gradients that a skipped step had left bad
  kUnseenWrite,  // contents changed although nothing that was watched wrote them
  kGarbage,      // memory that nothing had written yet was read
  kGiven,        // a number of the program's own, written into something
};

// A value as an op saw it, kept past the value's life.
struct ArgSnapshot {
  ValueId value = 0;
  StringId slot = 0, name = 0;
  LayoutId layout = 0;
  ArgRole role = ArgRole::kRead;
  bool known = false;        // its row was there, with statistics
  bool is_parameter = false, is_made = false;  // is_made: by a watched op, or it is a view
  bool is_gradient = false;  // `name` is the parameter whose gradient this is
  std::uint8_t bad = 0;
  std::int64_t flushed = -1;
  ValueStats stats;
  std::int32_t producer = -1;  // index into OriginContext::slice, -1: not in it
};

struct ScalarSnapshot {
  StringId name = 0;
  double value = 0;
};

// One op with its arguments: the origin itself, or an op of the slice that ends at it.
struct OpSnapshot {
  std::uint64_t seq = kNoSeq;
  std::uint32_t step = 0;
  Phase phase = Phase::kForward;
  StringId module = 0, op = 0, call_site = 0;
  DType compute_dtype = DType::kF32;
  std::vector<ScalarSnapshot> scalars;
  std::vector<ArgSnapshot> inputs, outputs;
};

inline constexpr std::size_t kMaxSlice = 16;  // ops walked back (rules/GUIDE.md)

struct OriginContext {
  OpSnapshot op;
  std::size_t bad_output = 0;     // index into op.outputs
  std::vector<OpSnapshot> slice;  // ops that led to the inputs, nearest first
  // Where backward made what can be singular, through views and in-place writes: the op that made it, and the one forward
  // op whose results alone it was made of. 0: not so. Where it is such a result itself, or a view of one, the second alone.
  StringId pole_maker = 0, pole_of = 0, pole_site = 0;  // pole_site: the line of pole_of
  // Of backward: the forward op of the same line whose derivative this is a part of. It divides by what log was given,
  // or by what sqrt gave.
  std::optional<OpSnapshot> derivative_of;
  std::optional<OpSnapshot> selected_by;  // of backward: what selected among the results of that forward op
  std::optional<ArgSnapshot> ignored_labels;  // of the loss that is divided: there is no other label
};

// A place in the trace, still as ids.
struct OpRef {
  std::uint64_t seq = kNoSeq;
  std::uint32_t step = 0, micro_batch = 0;
  Phase phase = Phase::kForward;
  StringId module = 0, op = 0;
};

struct SinkHit {
  TensorRole kind = TensorRole::kLoss;
  StringId path = 0;
  ValueId value = 0;
  NodeId node = kNoNode;
  std::uint8_t bad = 0;
  ValueStats stats;
  Phase made_in = Phase::kForward;
};

// Steps, as runs of consecutive ones: first and last of each.
class StepSet {
 public:
  void add(std::uint32_t step) { merge({step, step}); }
  void add(const StepSet& other) {
    for (const Run& run : other.runs_) merge(run);
  }
  // Adds what is missing of these, both included; what that was.
  StepSet fill(std::uint32_t first, std::uint32_t last);
  std::uint64_t count() const {
    std::uint64_t n = 0;
    for (const Run& run : runs_) n += std::uint64_t{run.last} - run.first + 1;
    return n;
  }
  std::uint64_t count_in(const StepSet& other) const;  // of the steps that both hold
  std::uint64_t count_between(std::uint32_t first, std::uint32_t last) const;  // both included
  bool empty() const { return runs_.empty(); }
  bool contains(std::uint32_t step) const {
    for (const Run& run : runs_) {
      if (run.first <= step && step <= run.last) return true;
    }
    return false;
  }
  std::uint32_t first() const { return runs_.front().first; }
  std::uint32_t last() const { return runs_.back().last; }

 private:
  struct Run {
    std::uint32_t first = 0, last = 0;
  };
  static constexpr std::size_t kMaxRuns = 4096;  // then gaps are counted as if they were bad too
  void merge(Run run);
  std::vector<Run> runs_;
};

// What the loss scaler made of the steps in which a birth's badness reached a sink.
struct ScaleTrial {
  bool scaled = true;          // a scaler was at work in each of them
  bool only_gradients = true;  // no parameter, state or buffer was reached
  bool reached_loss = false;
  bool all_held_back = true;   // the optimizer ran in none of them
  bool open = false;           // no step has been clean since the last of them
  bool kept = false;           // ... nor could be: the gradients of one were kept, and later ones added to them
  bool lowered = true;         // each time it was gone at a lower scale; else also at the same one
  double largest = 0, least = 0, last = 0;  // scales of those steps
  double gone_at = 0;          // scale of the clean step after the last of them
  std::uint32_t ended = 0;     // how many of them have a step record
};

struct Swallow;  // src/analyze/graph/swallow.h

// Contents that changed unseen, or were never written: what may have come of them.
struct Change {
  ArgSnapshot before;  // not known: its record is missing, or only a checksum was kept
  double amax_before = -1;  // known without `before`, from norms; negative: not known
  OpRef since;         // last op after which they were as recorded; seq kNoSeq: not known
  std::uint32_t since_step = 0;
  bool has_since = false;  // since_step means something
  OpRef reader;        // the op that read them first; seq kNoSeq: a look between ops
  bool opaque = false;
  bool gross = false;    // became bad or far larger
  bool carries = false;  // what is made of it may go wrong because of it
};

// Data that first did harm in the step after they were made are that step's: its batch is read ahead, or a step ends with
// the next forward.
inline bool is_of_next_step(Phase phase, std::uint32_t made, const StepSet& events) {
  return phase == Phase::kData && !events.empty() && events.first() == made + 1;
}

// A factor of 0 and 1 alone that NaN from outside of the arithmetic was multiplied by: a mask that takes none of it
// away.
struct MaskedBy {
  OpRef at;
  StringId call_site = 0;
  ArgSnapshot mask;
};

// Bad numbers of a birth that this rank gave to others.
struct Outgoing {
  std::uint32_t step = 0;  // the first time
  NodeId node = kNoNode;   // of what was given; until the step is over
  Chain chain;             // to there, where no sink of this rank was reached
};

struct Birth {
  Birth();
  ~Birth();
  BirthId id = 0;
  BirthKind kind = BirthKind::kOp;
  OpRef at;
  StringId call_site = 0;
  Lifecycle lifecycle = Lifecycle::kUnknown;
  Deliberate deliberate = Deliberate::kNo;
  bool watched = true;      // every input was
  bool after_loss = false;  // records are missing before it
  bool was_clean = false;   // kState: it had been seen clean before
  double scale = 1;
  TensorRole role = TensorRole::kBatch;        // kBatch, kState: the part the value played
  ArgSnapshot source;                      // kBatch, kState, kUnwatched, kUnseenWrite, kGarbage, kGiven: the value
  std::unique_ptr<OriginContext> context;  // kOp
  std::shared_ptr<const std::vector<std::int64_t>> samples;
  NodeId node = kNoNode;
  // A constant was written into this storage, or an optimizer updated it as state of before; 0: not so. And what that
  // is, once it is known.
  std::uint64_t into = 0;
  std::optional<TensorRole> into_role;
  StringId into_name = 0;

  // Filled as its badness is followed.
  std::optional<OpRef> first_inf, first_nan;
  bool harmful = false;               // reached a sink
  bool settled = false;               // its first event is over and `chain` is final
  StepSet events;                     // steps in which a sink was bad because of it
  StepSet unwatched;                  // of these: counted for it although their ops are not in the trace
  bool open_end = false;              // what it left bad was not seen to become finite after the last of `events`
  StepSet born;                       // steps in which it began, with births that it leads, as far as they did harm
  bool taken_back = false;            // it came of weights that the program tried and took back
  bool counted = false;               // `born` of it or of its lead holds its step
  BirthId lead = 0;                   // not 0: an earlier birth at the same place counts for this one
  std::uint64_t repeats_in_step = 0;  // births at the same place and step that count as this one
  std::vector<SinkHit> sinks;         // of the first event, at most kMaxSinks
  std::uint64_t more_sinks = 0;
  std::optional<std::uint32_t> first_bad_loss;
  ScaleTrial trial;
  std::optional<OpRef> dropped_at;    // an op of forward that did not select its infinities: where
  std::unique_ptr<MaskedBy> masked;   // the first such op
  std::unique_ptr<Change> change;     // kUnseenWrite, kGarbage
  std::unique_ptr<Outgoing> sent;     // it went to other ranks
  std::unique_ptr<Swallow> swallow;   // its infinities disappeared in an op; leads all of its place
  bool hit_in_step = false;           // a sink of the step at hand is bad because of it
  Chain chain;

  // As far as its badness went nothing but gradients was harmed. The scaled loss is the scaler's, not the program's.
  bool harmed_only_gradients() const {
    return trial.only_gradients && (!trial.reached_loss || at.phase == Phase::kScale);
  }
};

// The op of forward that dropped its infinities, where the loss of the first bad step stayed finite; nullptr: none did.
inline const OpRef* dropped_in_forward(const Birth& birth) {
  if (!birth.dropped_at || birth.events.empty()) return nullptr;
  const std::uint32_t step = birth.events.first();
  const bool loss_bad = birth.first_bad_loss && *birth.first_bad_loss <= step;
  return birth.dropped_at->step == step && !loss_bad ? &*birth.dropped_at : nullptr;
}

inline constexpr std::size_t kMaxSinks = 256;

}  // namespace nanhunt::analyze
