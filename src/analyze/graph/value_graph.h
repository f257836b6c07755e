// SPDX-License-Identifier: Apache-2.0
// One forward pass over the records. Every bad value carries the set of births it descends from; a bad value that is a
// sink makes those births origins. Memory stays bounded however long the run is.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "src/analyze/graph/birth.h"
#include "src/analyze/graph/chain.h"
#include "src/analyze/graph/labels.h"
#include "src/analyze/stream/names.h"
#include "src/analyze/stream/op_ring.h"
#include "src/analyze/graph/step_outcome.h"
#include "src/analyze/stream/value_table.h"

namespace nanhunt::analyze {

// Contents that changed unseen. Thresholds: src/analyze/rules/GUIDE.md.
inline constexpr double kGrossChange = 16;            // factor of the largest or the least magnitude
inline constexpr double kNegligible = 0x1p-10;        // what was smaller than this counts as this large
inline constexpr std::uint32_t kSuspectSteps = 16;    // how long what descends from a change may be blamed on it

// One op as the pass sees it. Pointers may be nullptr: the value's row was lost.
struct OpInView {
  const OpRecord* record = nullptr;
  const OpInfo* info = nullptr;
  std::span<const OpArg> inputs, outputs;
  std::span<const ScalarArg> scalars;
  std::span<Value*const> in, out;
  const CollectiveRecord* call = nullptr;  // what ranks exchange by it; nullptr: nothing, or not known
  bool gives = true, gets = true;          // this rank, in that call
};

// Whether an op of an optimizer takes its step: a fused one is given what the scaler has found, and may hold itself
// back.
bool takes_step(const OpInView& op, const Names& names);

struct GraphCounts {
  std::uint64_t ops = 0, values = 0, bad_ops = 0;
  std::uint64_t lost_ops = 0;          // gaps in sequence numbers
  std::uint64_t unwatched_inputs = 0;  // inputs whose row or statistics were missing
  std::vector<StringId> unread_by;     // the first kinds of ops that read them
  void note_unread(StringId op) {
    ++unwatched_inputs;
    if (unread_by.size() < 3 && std::find(unread_by.begin(), unread_by.end(), op) == unread_by.end()) unread_by.push_back(op);
  }
  std::uint64_t births_forgotten = 0;  // origins beyond kMaxOrigins
  std::uint64_t changes = 0;           // of contents, unseen
};

class ValueGraph {
 public:
  explicit ValueGraph(Names& names) : names_(names) {}

  void add_value(const ValueRecord& record);
  // Returns the view, valid until the next call, so that the audits need no look-ups of their own.
  const OpInView& on_op(const RecordBatch& batch, const OpRecord& op, const CollectiveRecord* call = nullptr);
  void set_rank(std::uint32_t rank) { rank_ = rank; }
  // Of the op handled last: the births of what it gave to other ranks, and the one that it was itself (0: none).
  const std::vector<BirthId>& given() const { return given_; }
  BirthId born() const { return born_; }
  // Results of calls between ranks that were not read at once, and turned out bad at the op or mark handled last.
  struct DeferredResult {
    std::uint64_t seq = kNoSeq;  // of the call's op
    BirthId born = 0;            // 0: what this rank gave explains it
    std::uint8_t bad = 0;
  };
  std::vector<DeferredResult> take_deferred_results() { return std::exchange(deferred_results_, {}); }
  void on_mark(const MarkRecord& mark);
  void on_changed(const ChangedRecord& record);
  // Of a step that was not heard: what is known already answers for it, what is not stays without a place.
  void on_unheard_mark(const MarkRecord& mark);
  // The norm of a parameter before a bad step: how large it was before it changed.
  void on_norm(const NormRecord& record);
  // Sinks of this step are bad, and no record shows it. `bad`: HealthRecord::bad. True: the origins of the
  // streak that the step belongs to, or of earlier skips, answer for it.
  bool on_unheard(std::uint32_t step, std::uint32_t bad, bool held_back);
  // What began to be bad in the step at hand began behind the loss.
  bool only_backward_went_bad();
  // The op with this number multiplied the loss by the scale of a scaler of the program's own.
  void on_scaling(std::uint64_t seq);
  // The parts of training (1 << TensorRole) that were finite when this step ended.
  void on_clean_parts(std::uint32_t step, std::uint32_t kinds);
  // The step that ended was given up by the program: the last number that it made is what it is judged by; where the
  // program `stopped` at it, what it looked at last. Before on_step_end(). True: that was bad, and nobody had meant it.
  bool judge_unfinished(std::uint32_t step, bool stopped, bool gave_up);
  // The same of a step in which nothing was trained. What its model gave is marked. Beside that a single NaN counts
  // that the program made of it, and what it made last where the program `ends`, unless something read it and came out
  // finite.
  bool judge_forward(std::uint32_t step, bool ends, bool stopped);
  void on_end_of_life(std::uint64_t storage) {
    values_.free_storage(storage);
    copied_.erase(storage);
    end_standing(storage);
  }
  void on_loss_of_records() { lost_records_ = true; }
  void on_samples(const SampleIdsRecord& record);
  // Reports births of this step what only the step's end knows. Returns how many of its ops were bad.
  // `bad_unseen`: it was bad, though no record of it is.
  std::uint64_t on_step_end(const StepRecord& step, const StepOutcome& outcome, bool bad_unseen = false);
  void finish();  // no more records: only births stay
  bool step_was_bad() const { return step_was_bad_; }            // the step that ended last had a bad sink
  bool made_bad_number() const { return last_number_.bad && !last_number_.cured; }  // ... a number that is not finite
  bool step_is_bad() const { return !hit_in_step_.empty(); }     // the one at hand has, so far
  // What an op left bad in a parameter is a sink even where no mark says so: the run may have been killed first.
  void hit_bad_homes();
  TensorRole kind_of_home(const Value& value) const;
  void leave_standing(const Value& value, TensorRole kind);
  bool gradients_are_bad() const { return backward_is_bad_ || !bad_gradients_.empty(); }
  // ... what was computed with gradients off, or by a model where nothing is trained
  bool validation_is_bad() const { return last_validated_.bad || (!trained_ && last_given_.bad); }
  bool trained() const { return trained_; }  // a backward, an optimizer or what belongs to them was seen
  void note_trained() { trained_ = true; }
  // A step was a forward: derivatives that it took were none of a training.
  void note_forward() {
    trained_ = false;
    infers_ = true;
  }
  bool took_back() const { return !taken_back_.empty() && took_back_in_ == step_; }  // ... with weights taken back since
  // The same in a step whose operations are not in the trace. False: the last step with operations had no trial.
  bool take_back_again(std::uint32_t step);
  std::uint32_t step() const { return step_; }
  std::uint32_t last_ended() const { return last_ended_; }  // the last step that has a record

  const Value* value(ValueId id) { return values_.find(id); }
  const OpRing& ring() const { return ring_; }
  std::uint64_t producer_of(const Value& value) { return values_.producer_of(value); }
  const GraphCounts& counts() const { return counts_; }
  std::uint64_t evicted() const { return values_.evicted(); }
  struct Footprint {
    std::size_t values = 0, births = 0, label_sets = 0, nodes = 0;
  };
  Footprint footprint() const { return {values_.size(), births_.size(), labels_.size(), graph_.size()}; }
  // Origins in order of birth.
  // Path of the parameter that the program itself writes over, before the forward.
  std::optional<StringId> written_parameter(const OpInView& op);
  std::vector<const Birth*> origins() const;

  // Once all records are in; nullptr: it was forgotten. The one that counts for it, where there is another.
  const Birth* birth(BirthId id);
  // Its badness did harm on another rank, as that rank's birth `there` knows; or here, once it had come back.
  void add_harm_elsewhere(BirthId id, const Birth& there, bool came_back);
  // Contents that changed unseen, whether or not harm was seen to come of it.
  std::vector<const Birth*> changes() const;
  // Of dimensions that are known not to be the batch's: of parameters and buffers, and of the batch but its first.
  const std::set<std::int64_t>& other_sizes() const { return other_sizes_; }
  // Births that did no harm seen anywhere, but whose infinities an op absorbed.
  std::vector<const Birth*> swallowed() const;

 private:
  static constexpr std::size_t kMaxOrigins = 4096;  // harmful births kept; more are counted
  static constexpr std::size_t kMaxChains = 512;    // of which get a full chain
  static constexpr std::size_t kMaxChanges = 1024;  // of contents, kept; more are counted
  static constexpr std::size_t kMaxNorms = 1u << 14;
  static constexpr std::size_t kMaxQuestions = 1u << 10;  // of a step
  static constexpr std::size_t kMaxSwallowed = 256; // places at which infinities came into being that disappeared
  // births that went to other ranks, kept whether or not they did harm here
  static constexpr std::size_t kMaxSent = 256;
  static constexpr std::size_t kMaxPerPlace = 4;    // of one op in one module; later ones count for the first
  // Op, module, phase, call site, whether it could be more than a matter of magnitude, and whether it was taken back:
  // what a scaler calibrates away, or the program undoes, may not stand for what it does not.
  using Place = std::tuple<BirthKind, StringId, StringId, Phase, StringId, bool, bool>;

  void enter_step(std::uint32_t step);
  void found_updating(const Value& value);
  void settle();
  // Only between records: ids of label sets and nodes change.
  void collect_garbage_if_needed();
  void collect_garbage();

  // Finds out where the badness of a value that no watched op made comes from.
  bool inherit(Value& value, int depth);
  void resolve(Value& value, BirthKind kind, TensorRole role, const OpRef& at);
  void read_at(const Value& value, StringId call_site);  // what came from outside has the line that read it first
  // Does this op of backward add to gradients that a skipped step has left bad?
  bool reads_kept_gradient(const Value& value, const OpRef& at);
  bool is_left_by_skip(const Value& value, const OpRef& at);
  Birth& new_birth(BirthKind kind, const OpRef& at);
  void taint_outputs(const OpInView& op);
  void note_copied(const OpInView& op);
  void bad_outputs(const OpInView& given, const OpRef& at);
  void finish_outputs(const OpInView& op);
  bool becomes_origin(Birth& birth, std::uint32_t step);
  bool is_as_at_first(const Value& value, TensorRole kind, StringId path, std::uint32_t step);
  bool is_moved(const Value& value);
  void hit_sink(const Value& value, TensorRole kind, StringId path, std::uint32_t step);
  void judge_hits(const StepOutcome& outcome, bool bad_unseen);
  void follow_suspects(const OpInView& op);
  void place_change(Birth& birth, const Value& value);
  void weigh_change(Birth& birth);
  void suspect_unseen(Value& value);
  void suspect_view(Value& value);
  BirthId suspect_of(const OpInView& op, bool to_blame);
  void note_reader(const OpInView& op, const OpRef& at);
  void make_garbage(const OpInView& op, const OpRef& at);
  void note_sizes(TensorRole kind, LayoutId layout);
  void mark_unscaled();
  void note_last_number(const OpInView& op);
  bool is_written_alone(LabelSetId labels);
  static bool reads_nan_alone(const OpInView& op);
  void note_question(const OpInView& op);
  void forget_cured(const OpInView& op);
  void judge_validation();
  bool may_be_singular(const Birth& birth) const;
  void note_swallowed(const OpInView& op, const OpRef& at);
  void note_dropped(const OpInView& op, const OpRef& at);
  void note_masked(const OpInView& op, const OpRef& at);
  void watch_swallowers(const OpInView& op);
  void note_update(const OpInView& op, const Value& parameter);
  void follow_faded(const OpInView& op);
  BirthId faded_of(const OpInView& op) const;
  void settle_sent();
  const RecentOp* call_behind(const Value& value) const;  // the call between ranks whose unread result it is
  const RecentOp* unread_call_of(const Value& value);     // ... or shows
  Birth& deferred_birth(const RecentOp& call, const Value& result);
  void note_given(const OpInView& op, const OpRef& at);
  void note_exchanged(const OpInView& op);
  const Value* exchanged_as(const Value& value);
  const Value* exchanged_behind(const OpInView& op);
  void note_first(LabelSetId labels, std::uint8_t kinds, const OpRef& at);
  void note_target(const OpInView& op);
  void carry(Value& value, LabelSetId labels, Deliberate deliberate, NodeId node);
  bool is_parameter_home(std::uint64_t storage);
  void note_trial(const OpInView& op);
  void note_tried(const OpInView& op, const Value& parameter, bool copies);
  void take_back();
  LabelSetId less_asked_for(const OpInView& op, LabelSetId labels);
  // A mean or a sum of log-probabilities, those of masked entries among them.
  bool reduces_masked_logs(const OpInView& op, std::span<const Value* const> bad);
  void lead_masks(std::span<const Value* const> masks, BirthId there);
  bool all_settled(LabelSetId labels);
  NodeId add_node(const Value& value, const OpRef& at, Lifecycle lifecycle, BirthId birth,
                  std::span<const NodeId> parents);
  Birth* find_birth(BirthId id);

  Names& names_;
  ValueTable values_;
  LabelSets labels_;
  BadGraph graph_;
  OpRing ring_;
  GraphCounts counts_;
  std::map<BirthId, std::unique_ptr<Birth>> births_;
  BirthId next_birth_ = 1;
  std::map<Place, std::vector<BirthId>> harmful_at_;
  std::size_t harmful_ = 0, chains_ = 0;
  std::map<Place, BirthId> swallowed_at_;
  std::set<StringId> swallowers_;  // modules of ops that absorbed
  std::optional<std::uint32_t> faded_in_;  // the last step in which one made zeros of infinities
  std::map<std::pair<std::uint64_t, std::uint32_t>, BirthId> changed_at_;  // by storage and version
  // The last norms of each parameter that were written: step and largest magnitude.
  static constexpr std::size_t kNormsKept = 4;
  std::map<StringId, std::vector<std::pair<std::uint32_t, double>>> amax_before_;
  // The last op output of the step that is NaN, or one infinite number, and that nobody meant; apart for validation.
  struct LastNumber {
    bool bad = false;
    Value value;
    bool cured = false;  // something finite was made of it, in a step of a training
  };
  LastNumber last_number_, last_validated_;
  LastNumber last_alone_, last_given_;  // as long as nothing was trained: a single NaN outside of modules; by a model
  bool trained_ = false;
  bool infers_ = false;  // until a loss or an optimizer is seen
  LastNumber looked_at_;  // ... about which it made a yes or no, and that no op made finite again
  std::map<std::uint64_t, std::uint64_t> copied_;  // by storage of a copy: of which parameter, as it is before a trial
  std::map<std::uint64_t, bool> tried_;  // parameters written since, by storage; true: only by ops that computed with them
  std::vector<BirthId> taken_back_;      // told of the trial that was bad, if there was one in the last step with ops
  std::uint32_t took_back_in_ = 0, heard_step_ = 0;  // those steps
  bool swapped_in_ = false;              // ... one that was put back since held other numbers
  std::map<ValueId, ValueId> questions_;  // what is no floating number and was made of what is bad: of which value
  std::uint32_t suspect_until_ = 0;             // last step in which descent from a change counts
  std::vector<BirthId> unread_changes_;         // nobody was seen to read them yet
  std::vector<BirthId> streak_;                 // hit in the last bad step, and no step was clean since
  std::vector<BirthId> scaled_;                 // of the last bad step that was held back
  std::uint32_t clean_step_ = 0, clean_kinds_ = 0;
  std::vector<BirthId> pending_;                // first event in the current step
  std::optional<std::uint32_t> rank_;           // this one, where it is known
  std::vector<BirthId> given_;                  // by the op at hand
  BirthId born_ = 0;                            // at the op at hand
  std::vector<DeferredResult> deferred_results_;
  std::vector<BirthId> sent_in_step_;           // went to other ranks for the first time
  std::size_t sent_ = 0;
  std::vector<ValueId> exchanged_;              // bad results of calls between ranks in the step of the last of them
  std::vector<BirthId> born_in_step_;           // need the step's scale
  std::vector<BirthId> hit_in_step_;            // reached a sink in the current step
  std::vector<BirthId> open_trials_;            // reached gradients of skipped steps, and no step was clean since
  std::vector<ValueId> unscaled_bad_;           // gradients that an unscale of this step found bad
  bool changed_while_bad_ = false;              // the optimizer wrote a parameter whose gradient was bad
  bool backward_is_bad_ = false;                // an op of this step's backward made something bad
  std::vector<StringId> bad_gradients_;         // of this step, by name
  std::set<std::int64_t> other_sizes_;
  std::set<std::pair<LayoutId, bool>> sized_;  // layouts that other_sizes_ has; true: as of the batch
  std::optional<std::uint32_t> last_skip_;      // the last skipped step
  // Storages that were left bad, and that no op has written since: of which kind, and by which births.
  struct Standing {
    TensorRole kind;
    std::uint32_t step;  // in which it was bad last
    std::vector<BirthId> births;
  };
  void fill_gap(const Standing& before, const std::vector<BirthId>& births, std::uint32_t last);
  void leave_open(const Standing& standing);
  void end_standing(std::uint64_t storage);
  std::map<std::uint64_t, Standing> standing_;
  std::uint32_t unread_kinds_ = 0;              // 1 << TensorRole: these are not read
  std::map<std::uint64_t, ValueId> bad_homes_;  // parameter, state and buffer storages left bad by an op of this step
  struct AtFirst {
    ValueId value = 0;
    std::int64_t nan = 0, inf = 0;
  };
  std::map<std::uint64_t, AtFirst> bad_at_first_;  // ... that were bad before the first forward: their contents then
  std::map<StringId, AtFirst> named_at_first_;     // the same, by name: a buffer may be assigned anew

  std::uint32_t step_ = 0, last_ended_ = 0;
  bool step_was_bad_ = false;
  bool step_over_ = false;  // its record has come
  std::uint64_t step_bad_ops_ = 0;
  std::uint64_t next_seq_ = 0;
  bool lost_records_ = false;
  std::uint64_t gc_ops_ = 0;  // ops seen at the last garbage collection
  std::size_t max_births_ = 4096, max_sets_ = 1u << 16;
  SampleIdsRecord samples_of_;  // step and micro-batch of samples_; its ids are unused
  std::shared_ptr<const std::vector<std::int64_t>> samples_;

  OpInView view_;
  std::vector<Value*> in_, out_;
  std::vector<NodeId> parents_;
};

}  // namespace nanhunt::analyze
