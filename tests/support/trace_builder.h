// SPDX-License-Identifier: Apache-2.0
// Traces written by hand, small enough to read on one screen, and the findings they give as a table.
//
//   TraceBuilder t;
//   auto x = t.value(finite(8).zeros(1));
//   auto y = t.in("<loss>", Phase::kLoss).op("log", {{"self", x}}, finite(8).neg_inf(1));
//   t.mark(TensorRole::kLoss, "loss", y);
//   EXPECT_EQ(table(analysis_of(t)), "divide_by_zero | log | <loss> | loss | step 0 | appear | observed\n");
#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "nanhunt/analyzer.h"
#include "nanhunt/trace.h"

namespace nanhunt::testing_support {

// What one value holds, as statistics tell it.
struct Numbers {
  std::int64_t n = 8;
  std::int64_t nan_count = 0, pos_inf_count = 0, neg_inf_count = 0, zero_count = 0;
  std::int64_t first = -1, flushed_count = -1;
  double low = -1, high = 1, smallest = 0.25, sum_of_squares = 0;
  std::int64_t subnormal_count = 0, offset = 0;  // offset: in its storage
  DType format = DType::kF32;
  std::vector<std::int64_t> dims, steps;  // steps: strides, of a view
  bool read = true, counted = true;

  Numbers with(std::int64_t Numbers::*field, std::int64_t count) const {
    Numbers copy = *this;
    copy.*field = count;
    return copy;
  }
  Numbers nan(std::int64_t count) const { return with(&Numbers::nan_count, count); }
  Numbers inf(std::int64_t count) const { return with(&Numbers::pos_inf_count, count); }
  Numbers neg_inf(std::int64_t count) const { return with(&Numbers::neg_inf_count, count); }
  Numbers zeros(std::int64_t count) const { return with(&Numbers::zero_count, count); }
  Numbers flushed(std::int64_t count) const { return with(&Numbers::flushed_count, count); }
  Numbers at_offset(std::int64_t elements) const { return with(&Numbers::offset, elements); }
  Numbers subnormals(std::int64_t count) const { return with(&Numbers::subnormal_count, count); }
  Numbers first_at(std::int64_t index) const { return with(&Numbers::first, index); }
  Numbers range(double from, double to) const {
    Numbers copy = *this;
    copy.low = from;
    copy.high = to;
    return copy;
  }
  Numbers squares(double total) const {
    Numbers copy = *this;
    copy.sum_of_squares = total;
    return copy;
  }
  Numbers smallest_of(double magnitude) const {  // of those that are not 0
    Numbers copy = *this;
    copy.smallest = magnitude;
    return copy;
  }
  Numbers as(DType dtype) const {
    Numbers copy = *this;
    copy.format = dtype;
    return copy;
  }
  Numbers shape(std::vector<std::int64_t> sizes) const {
    Numbers copy = *this;
    copy.n = 1;
    for (std::int64_t size : sizes) copy.n *= size;
    copy.dims = std::move(sizes);
    return copy;
  }
  Numbers strides(std::vector<std::int64_t> of_dims) const {
    Numbers copy = *this;
    copy.steps = std::move(of_dims);
    return copy;
  }
  // Only whether it is all finite is known.
  Numbers uncounted() const {
    Numbers copy = *this;
    copy.counted = false;
    return copy;
  }
  Numbers unread() const {
    Numbers copy = *this;
    copy.read = false;
    return copy;
  }
};
inline Numbers finite(std::int64_t numel = 8) {
  Numbers numbers;
  numbers.n = numel;
  return numbers;
}

struct Handle {
  ValueId id = 0;
  std::uint64_t storage = 0;
  std::uint32_t version = 0;
};
struct In {
  std::string slot;
  Handle value;
  ArgRole role = ArgRole::kRead;
};
using Scalars = std::vector<std::pair<std::string, double>>;

class TraceBuilder {
 public:
  // What follows happens here.
  TraceBuilder& in(std::string module, Phase phase = Phase::kForward) {
    module_ = std::move(module);
    phase_ = phase;
    return *this;
  }
  TraceBuilder& called_from(std::string site) {  // of the ops from here on
    site_ = std::move(site);
    return *this;
  }
  TraceBuilder& step(std::uint32_t number) {
    step_ = number;
    return *this;
  }
  TraceBuilder& computing_in(DType dtype) {
    compute_ = dtype;
    return *this;
  }

  // A value that no watched op made.
  Handle value(const Numbers& numbers) { return add_value({0, next_storage_++, 0}, numbers, kNoSeq, 0); }
  // The same storage and version, seen through a view that no watched op made.
  Handle seen_as(const Handle& of, const Numbers& numbers, ValueId base) {
    return add_value({0, of.storage, of.version}, numbers, kNoSeq, base);
  }

  Handle op(const std::string& name, const std::vector<In>& inputs, const Numbers& out, const Scalars& scalars = {},
            const std::string& out_slot = "out") {
    const Handle made = add_value({0, next_storage_++, 0}, out, seq_, 0);
    add_op(name, inputs, {made}, scalars, out_slot);
    return made;
  }
  std::vector<Handle> op_with_outputs(const std::string& name, const std::vector<In>& inputs,
                                      const std::vector<Numbers>& outs) {
    std::vector<Handle> made;
    for (const Numbers& out : outs) made.push_back(add_value({0, next_storage_++, 0}, out, seq_, 0));
    add_op(name, inputs, made, {});
    return made;
  }
  Handle view(const std::string& name, const Handle& of, const Numbers& out) {
    const Handle made = add_value({0, of.storage, of.version}, out, seq_, of.id);
    add_op(name, {{"self", of}}, {made}, {});
    return made;
  }
  // Writes `self`; the handle becomes the new version.
  void in_place(const std::string& name, Handle& self, std::vector<In> others, const Numbers& out,
                const Scalars& scalars = {}) {
    others.insert(others.begin(), {"self", self, ArgRole::kOverwritten});
    self = add_value({0, self.storage, self.version + 1}, out, seq_, 0);
    add_op(name, others, {self}, scalars);
  }
  struct Updated {
    std::string slot;
    Handle* value;
    Numbers after;
  };
  // Writes several values, each in the slot in which it is given.
  void update(const std::string& name, std::vector<In> reads, const std::vector<Updated>& written,
              const Scalars& scalars = {}) {
    std::vector<Handle> made;
    std::vector<StringId> slots;
    for (const Updated& one : written) {
      reads.push_back({one.slot, *one.value, ArgRole::kOverwritten});
      slots.push_back(string(one.slot));
      *one.value = add_value({0, one.value->storage, one.value->version + 1}, one.after, seq_, 0);
      made.push_back(*one.value);
    }
    add_op(name, reads, made, scalars);
    for (std::size_t i = 0; i < slots.size(); ++i) log_.back().outputs[i].slot = slots[i];
  }
  // An op whose records never reached the trace. What it made is known by id alone.
  Handle lost_op() {
    ++seq_;
    return {next_value_++, next_storage_++, 0};
  }

  void mark(TensorRole kind, const std::string& path, const Handle& value) {
    MarkRecord record;
    record.seq = seq_;
    record.step = step_;
    record.kind = kind;
    record.path = string(path);
    record.value = value.id;
    RecordBatch event;
    event.marks = {record};
    log_.push_back(std::move(event));
  }
  // Numbers that met in one element of the op made last.
  void element(const Handle& out, std::int64_t index, double number,
               const std::vector<std::pair<In, double>>& operands) {
    EvidenceRecord record{seq_ - 1, out.id, index, number, {}};
    for (const auto& [in_, value] : operands) record.operands.push_back({string(in_.slot), in_.value.id, index, value});
    RecordBatch event;
    event.evidence = {record};
    log_.push_back(std::move(event));
  }
  // How the magnitudes of a value of the op made last are spread.
  void histogram(const Handle& of, std::int32_t min_exponent, std::vector<std::int64_t> bins) {
    RecordBatch event;
    event.histograms = {{seq_ - 1, of.id, min_exponent, std::move(bins)}};
    log_.push_back(std::move(event));
  }
  void samples(std::vector<std::int64_t> ids) {
    RecordBatch event;
    event.sample_ids = {{step_, 0, std::move(ids)}};
    log_.push_back(std::move(event));
  }
  void release(const Handle& value) {
    RecordBatch event;
    event.ends_of_life = {{value.storage, seq_}};
    log_.push_back(std::move(event));
  }
  void lr(double rate) { lr_ = rate; }  // of the steps that end from here on
  void end_step(double loss = 1, double scale = 1, bool skipped = false) {
    RecordBatch event;
    event.steps = {{step_, skipped, loss, lr_, scale, seq_, 0}};
    log_.push_back(std::move(event));
    ++step_;
  }
  // The program gave the step up.
  void give_up(StepEnding ending, const std::string& message = "", bool skipped = false) {
    const StringId said = string(message);
    RecordBatch event;
    event.steps = {{step_, skipped, 0, 1e-3, 1, seq_, 0, ending, said}};
    log_.push_back(std::move(event));
    ++step_;
  }
  // Step, micro-batch and sequence number are those of now.
  void scaler(ScalerRecord record, const std::string& text = "") {
    record.seq = seq_;
    record.step = step_;
    record.text = string(text);
    RecordBatch event;
    event.scaler = {record};
    log_.push_back(std::move(event));
  }
  // A counterfactual of the op that was added last.
  void probe(ProbeRecord record, const std::string& text = "") {
    if (!text.empty()) record.text = string(text);
    record.seq = seq_ - 1;
    record.step = step_;
    RecordBatch event;
    event.probes = {record};
    log_.push_back(std::move(event));
  }
  // The contents of `value` are found changed, last seen right after the op made last. From then on they are what is
  // given back.
  Handle changed(const Handle& value, const Numbers& now, bool opaque = false) {
    const Handle after = add_value({0, value.storage, value.version}, now, kNoSeq, 0);
    RecordBatch event;
    event.changed = {{seq_, step_, value.id, after.id, seq_ == 0 ? kNoSeq : seq_ - 1, step_, opaque}};
    log_.push_back(std::move(event));
    return after;
  }
  // The health of the step at hand: `bad` as in HealthRecord.
  void health(std::uint32_t bad = 0, const std::string& first_bad = "", double gradient_norm = 1,
              std::uint64_t weight_checksum = 0) {
    RecordBatch event;
    event.health = {{seq_, step_, bad, bad == 0 ? 0u : 1u, string(first_bad), gradient_norm, 1, weight_checksum}};
    log_.push_back(std::move(event));
  }
  void norm(const std::string& path, std::uint32_t at_step, double norm, double amax) {
    RecordBatch event;
    event.norms = {{seq_, at_step, TensorRole::kParameter, string(path), norm, amax}};
    log_.push_back(std::move(event));
  }
  void unheard(const std::string& why) {
    RecordBatch event;
    event.unheard = {{seq_, step_, string(why)}};
    log_.push_back(std::move(event));
  }
  // The next op is this call between ranks. Sequence number and step are those of now.
  void collective(CollectiveRecord record, const std::string& group = "0") {
    record.seq = seq_;
    record.step = step_;
    record.group = string(group);
    RecordBatch event;
    event.collectives = {record};
    log_.push_back(std::move(event));
  }
  void collective_of_last_op(CollectiveRecord record, const std::string& group = "0") {
    --seq_;
    collective(record, group);
    ++seq_;
  }
  // Kernels of one name that a GPU ran, of the op that was added last or of `seq`.
  void kernels(const std::string& name, std::int64_t duration_ns, std::uint64_t count = 1, bool own = false) {
    kernels_of(seq_ - 1, name, duration_ns, count, count, own);
  }
  void kernels_of(std::uint64_t seq, const std::string& name, std::int64_t duration_ns, std::uint64_t count = 1,
                  std::uint64_t timed = 1, bool own = false) {
    const StringId id = string(name);
    RecordBatch event;
    event.kernels = {{seq, step_, id, own, count, timed, duration_ns}};
    log_.push_back(std::move(event));
  }
  void note(const std::string& text, std::uint64_t count) {
    RecordBatch event;
    event.notes = {{seq_, step_, string(text), count}};
    log_.push_back(std::move(event));
  }
  // A frame of the program above a call site; the innermost first.
  void frame(const std::string& site, std::uint32_t depth, const std::string& file, std::uint32_t line,
             const std::string& function, std::uint32_t first_line, const std::string& code) {
    RecordBatch event;
    event.frames = {
        {seq_, string(site), depth, string(file), line, string(function), first_line, string(code)}};
    log_.push_back(std::move(event));
  }
  void setup(SetupFact fact, const std::string& path, const std::string& site, DType dtype = DType::kF32,
             double number = 0, const std::string& text = "") {
    RecordBatch event;
    event.setup = {{seq_, step_, fact, string(path), string(site), dtype, number, string(text)}};
    log_.push_back(std::move(event));
  }
  void experiment(const ExperimentRecord& record) {
    RecordBatch event;
    event.experiments = {record};
    log_.push_back(std::move(event));
  }
  void drop(std::uint64_t ops) {
    RecordBatch event;
    event.drops = {{seq_, ops, 0, 0}};
    log_.push_back(std::move(event));
  }

  std::uint64_t next_seq() const { return seq_; }
  std::uint32_t now() const { return step_; }

  // The same records, cut after every `events` of them (0: one batch).
  std::vector<RecordBatch> batches(std::size_t events = 0) const {
    std::vector<RecordBatch> out(1);
    std::size_t held = 0;
    for (const RecordBatch& event : log_) {
      append(out.back(), event);
      if (events != 0 && ++held % events == 0) out.emplace_back();
    }
    return out;
  }

 private:
  StringId string(const std::string& text) {
    if (text.empty()) return 0;
    const auto [it, added] = strings_.try_emplace(text, static_cast<StringId>(strings_.size() + 1));
    if (added) {
      RecordBatch event;
      event.strings = {{it->second, text}};
      log_.push_back(std::move(event));
    }
    return it->second;
  }
  LayoutId layout(const Numbers& numbers) {
    const std::vector<std::int64_t> sizes = numbers.dims.empty() ? std::vector<std::int64_t>{numbers.n} : numbers.dims;
    const std::vector<std::int64_t> strides = numbers.steps.empty() ? row_major(sizes) : numbers.steps;
    const auto [it, added] =
        layouts_.try_emplace({numbers.format, sizes, strides}, static_cast<LayoutId>(layouts_.size() + 1));
    if (added) {
      RecordBatch event;
      event.layouts = {{it->second, numbers.format, sizes, strides}};
      log_.push_back(std::move(event));
    }
    return it->second;
  }
  static std::vector<std::int64_t> row_major(const std::vector<std::int64_t>& sizes) {
    std::vector<std::int64_t> strides(sizes.size(), 1);
    for (std::size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * sizes[i];
    return strides;
  }
  static TensorStats stats_of(const Numbers& numbers) {
    TensorStats s;
    s.numel = numbers.n;
    if (!numbers.counted) {
      s.level = StatsLevel::kFinite;
      s.any_nonfinite = numbers.nan_count + numbers.pos_inf_count + numbers.neg_inf_count > 0;
      return s;
    }
    s.level = StatsLevel::kSums;
    s.nan = numbers.nan_count;
    s.pos_inf = numbers.pos_inf_count;
    s.neg_inf = numbers.neg_inf_count;
    s.zero = numbers.zero_count;
    s.any_nonfinite = s.nonfinite() > 0;
    s.first_nonfinite = s.any_nonfinite ? std::max<std::int64_t>(0, numbers.first) : -1;
    s.min = numbers.low;
    s.max = numbers.high;
    s.amax = std::max(std::abs(numbers.low), std::abs(numbers.high));
    s.amin_nonzero = numbers.smallest;
    s.subnormal = numbers.subnormal_count;
    s.sum_sq = numbers.sum_of_squares;
    return s;
  }
  Handle add_value(Handle handle, const Numbers& numbers, std::uint64_t producer, ValueId base) {
    ValueRecord record;
    record.id = handle.id = next_value_++;
    record.storage = handle.storage;
    record.version = handle.version;
    record.offset = numbers.offset;
    record.layout = layout(numbers);
    record.producer = producer;
    record.base = base;
    record.has_stats = numbers.read;
    if (numbers.read) record.stats = stats_of(numbers);
    record.flushed = numbers.flushed_count;
    RecordBatch event;
    event.values = {record};
    log_.push_back(std::move(event));
    return handle;
  }
  void add_op(const std::string& name, const std::vector<In>& inputs, const std::vector<Handle>& outputs,
              const Scalars& scalars, const std::string& out_slot = "out") {
    RecordBatch event;
    OpRecord record;
    record.seq = seq_++;
    record.step = step_;
    record.phase = phase_;
    record.module = string(module_);
    record.op = string(name);
    record.call_site = string(site_);
    record.compute_dtype = compute_;
    for (const In& in_ : inputs) event.inputs.push_back({in_.value.id, string(in_.slot), in_.role});
    for (const Handle& out : outputs) event.outputs.push_back({out.id, string(out_slot), ArgRole::kRead});
    for (const auto& [scalar, number] : scalars) event.scalars.push_back({string(scalar), number});
    record.input_count = static_cast<std::uint32_t>(event.inputs.size());
    record.output_count = static_cast<std::uint32_t>(event.outputs.size());
    record.scalar_count = static_cast<std::uint32_t>(event.scalars.size());
    event.ops = {record};
    log_.push_back(std::move(event));
  }
  static void append(RecordBatch& to, const RecordBatch& event) {
    auto add = [](auto& table, const auto& rows) { table.insert(table.end(), rows.begin(), rows.end()); };
    for (OpRecord op : event.ops) {
      op.first_input = static_cast<std::uint32_t>(to.inputs.size());
      op.first_output = static_cast<std::uint32_t>(to.outputs.size());
      op.first_scalar = static_cast<std::uint32_t>(to.scalars.size());
      to.ops.push_back(op);
    }
    add(to.strings, event.strings);
    add(to.layouts, event.layouts);
    add(to.values, event.values);
    add(to.inputs, event.inputs);
    add(to.outputs, event.outputs);
    add(to.scalars, event.scalars);
    add(to.marks, event.marks);
    add(to.sample_ids, event.sample_ids);
    add(to.steps, event.steps);
    add(to.evidence, event.evidence);
    add(to.ends_of_life, event.ends_of_life);
    add(to.experiments, event.experiments);
    add(to.probes, event.probes);
    add(to.drops, event.drops);
    add(to.scaler, event.scaler);
    add(to.histograms, event.histograms);
    add(to.health, event.health);
    add(to.norms, event.norms);
    add(to.unheard, event.unheard);
    add(to.changed, event.changed);
    add(to.collectives, event.collectives);
    add(to.kernels, event.kernels);
    add(to.notes, event.notes);
    add(to.frames, event.frames);
    add(to.setup, event.setup);
  }

  std::vector<RecordBatch> log_;  // one event each, in order
  std::map<std::string, StringId> strings_;
  std::map<std::tuple<DType, std::vector<std::int64_t>, std::vector<std::int64_t>>, LayoutId> layouts_;
  std::string module_;
  std::string site_;
  Phase phase_ = Phase::kForward;
  DType compute_ = DType::kF32;
  std::uint32_t step_ = 0;
  double lr_ = 1e-3;
  std::uint64_t seq_ = 0, next_storage_ = 1;
  ValueId next_value_ = 1;
};

inline Analysis analysis_of(const TraceBuilder& trace, std::size_t events_per_batch = 0,
                            const AnalyzeOptions& options = {}, std::uint64_t chunks_lost = 0) {
  const auto analyzer = Analyzer::make(options);
  for (const RecordBatch& batch : trace.batches(events_per_batch)) analyzer->add(batch);
  TraceHealth health;
  health.clean_end = true;
  health.chunks_lost = chunks_lost;
  return analyzer->finish(RunInfo{}, health);
}

// One line a finding: class | op | module | phase | step | lifecycle | confidence. Warnings start with "warning".
inline std::string table(const Analysis& analysis) {
  std::string out;
  for (const Finding& f : analysis.findings) {
    if (f.severity != Severity::kFault) out += std::string(severity_name(f.severity)) + " ";
    out += std::string(finding_class_name(f.cls)) + " | " + f.place.op.value_or("-") + " | " +
           f.place.module.value_or("-") + " | " + std::string(phase_name(f.place.phase)) + " | step " +
           std::to_string(f.place.step) + " | " + std::string(lifecycle_name(f.lifecycle)) + " | " +
           std::string(confidence_name(f.confidence)) + "\n";
  }
  return out.empty() ? std::string(verdict_status_name(analysis.verdict.status)) + "\n" : out;
}

}  // namespace nanhunt::testing_support
