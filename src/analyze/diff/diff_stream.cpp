// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/diff/diff_stream.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <new>
#include <unordered_map>

#include "src/analyze/findings/ops_in_trace.h"
#include "src/analyze/stream/names.h"
#include "src/core/waiting.h"
#include "src/trace/in_order.h"

namespace nanhunt::analyze {
namespace {

constexpr std::size_t kMaxReady = 2;                // steps read ahead
constexpr std::size_t kMaxValues = 1u << 18;        // remembered: the latest
constexpr std::size_t kMaxOutputs = 1u << 19;        // of one block of rows, give or take one op's
constexpr std::size_t kMaxStringBytes = 64u << 20;  // of names handed on; later ones are ""

}  // namespace

// Cuts the records of a trace into steps.
class DiffStream::Gather {
 public:
  explicit Gather(DiffStream& stream) : stream_(stream) {}

  void add(const RecordBatch& batch) {
    if (unwanted_) return;
    for (const StringRecord& record : batch.strings) {
      if (record.text == names_.text(record.id)) continue;
      names_.add(record);
      string_bytes_ += record.text.size();
      if (string_bytes_ <= kMaxStringBytes) now_.strings.push_back(record);
    }
    for (const LayoutRecord& record : batch.layouts) names_.add(record);
    for (const NoteRecord& note : batch.notes) {
      if (why_no_tap_.empty()) why_no_tap_ = analyze::why_no_tap(names_.text(note.text));
    }
    for (const ValueRecord& record : batch.values) remember(record);
    Visitor visitor{*this, batch};
    trace::for_each_in_order(batch, visitor);
  }
  void finish() { flush(); }
  std::string take_why_no_tap() { return std::move(why_no_tap_); }

 private:
  struct Visitor {
    Gather& to;
    const RecordBatch& batch;

    void on(const OpRecord& op) { to.add_op(batch, op); }
    void on(const MarkRecord& mark) { to.add_mark(mark); }
    void on(const HealthRecord& health) {
      to.go_to(health.step);
      to.now_.health = health;
    }
    void on(const StepRecord& step) {
      to.go_to(step.step);
      to.now_.end = step;
      to.flush();
    }
    template <typename Row>
    void on(const Row&) {}  // of no interest to a comparison
  };
  struct Known {
    DiffValue value;
    bool unseen = false;  // no watched op made it
  };

  void remember(const ValueRecord& record) {
    const auto [at, added] = values_.try_emplace(record.id);
    if (added) order_.push_back(record.id);
    DiffValue& value = at->second.value;
    at->second.unseen = record.producer == kNoSeq;
    value.known = record.has_stats;
    value.counted = record.has_stats && record.stats.level >= StatsLevel::kCounts;
    value.summed = record.has_stats && record.stats.level >= StatsLevel::kSums;
    value.any_nonfinite = record.has_stats && record.stats.any_nonfinite;
    value.numel = record.stats.numel;
    value.nan = record.stats.nan;
    value.pos_inf = record.stats.pos_inf;
    value.neg_inf = record.stats.neg_inf;
    value.zero = record.stats.zero;
    value.amax = record.stats.amax;
    value.sum_sq = record.stats.sum_sq;
    const LayoutRecord* layout = names_.layout(record.layout);
    if (layout != nullptr) value.dtype = layout->dtype;
    if (order_.size() > kMaxValues) {
      values_.erase(order_.front());
      order_.pop_front();
    }
  }
  const Known* known(ValueId id) const {
    const auto found = values_.find(id);
    return found == values_.end() ? nullptr : &found->second;
  }

  // What came from outside the watched ops: batches, labels, and parameters, state and buffers at first sight.
  void add_mark(const MarkRecord& mark) {
    const Known* value = known(mark.value);
    if (value == nullptr || !value->unseen || mark.kind == TensorRole::kLoss || mark.kind == TensorRole::kBoundaryGradient)
      return;
    const bool data = mark.kind == TensorRole::kBatch || mark.kind == TensorRole::kLabel;
    go_to(mark.step);
    DiffRow row;
    row.micro_batch = mark.micro_batch;
    row.phase = Phase::kData;
    row.module = mark.path;
    row.op = data ? kBatchOp : kStateOp;
    row.first_output = static_cast<std::uint32_t>(now_.outputs.size());
    row.output_count = 1;
    now_.outputs.push_back(value->value);
    add_row(row);
  }

  void add_op(const RecordBatch& batch, const OpRecord& op) {
    go_to(op.step);
    DiffRow row;
    row.seq = op.seq;
    row.micro_batch = op.micro_batch;
    row.phase = op.phase;
    row.module = op.module;
    row.op = op.op;
    row.compute_dtype = op.compute_dtype;
    row.first_output = static_cast<std::uint32_t>(now_.outputs.size());
    row.output_count = op.output_count;
    double numel = 1;
    for (std::uint32_t i = 0; i < op.output_count; ++i) {
      const Known* value = known(batch.outputs[op.first_output + i].value);
      now_.outputs.push_back(value == nullptr ? DiffValue{} : value->value);
      numel = std::max(numel, static_cast<double>(now_.outputs.back().numel));
    }
    double first = 0, second = 0;  // the two largest inputs, in elements
    for (std::uint32_t i = 0; i < op.input_count; ++i) {
      const Known* value = known(batch.inputs[op.first_input + i].value);
      if (value == nullptr) continue;
      row.fresh = row.fresh && !value->value.any_nonfinite;
      const auto size = static_cast<double>(value->value.numel);
      second = std::max(second, std::min(first, size));
      first = std::max(first, size);
    }
    // (M, K) and (K, N) give (M, N): K is sqrt(MK * KN / MN). A reduction sums up n / m numbers.
    row.terms = std::max({1.0, first / numel, std::sqrt(first * second / numel)});
    if (!names_.op(op.op).has(kAccumulates)) row.terms = 1;
    add_row(row);
  }
  void add_row(const DiffRow& row) {
    now_.rows.push_back(row);
    if (now_.rows.size() >= DiffStep::kMaxRows || now_.outputs.size() >= kMaxOutputs) flush();
  }

  void go_to(std::uint32_t step) {
    if (now_.step == step) return;
    flush();
    now_.step = step;
    now_.part = 0;
  }
  void flush() {
    if (now_.rows.empty() && !now_.end && !now_.health) return;
    const std::uint32_t step = now_.step, part = now_.part;
    unwanted_ = !stream_.push(std::move(now_));
    now_ = DiffStep{};
    now_.step = step;
    now_.part = part + 1;
  }

  DiffStream& stream_;
  Names names_;
  std::unordered_map<ValueId, Known> values_;
  std::deque<ValueId> order_;
  std::size_t string_bytes_ = 0;
  DiffStep now_;
  std::string why_no_tap_;
  bool unwanted_ = false;
};

DiffStream::DiffStream(AttemptTrace attempt) : attempt_(std::move(attempt)) {
  reader_ = std::thread([this] {
    Status status;
    TraceHealth health;
    std::string missing;
    try {
      Gather gather(*this);
      status = read_attempt(attempt_, [&](const RecordBatch& batch) { gather.add(batch); }, health);
      gather.finish();
      missing = gather.take_why_no_tap();
    } catch (const std::bad_alloc&) {
      status = Status(StatusCode::kUnreadable, attempt_.dir + ": out of memory while reading it.");
    } catch (const std::exception& e) {  // thrown further it would end the program
      status = Status(StatusCode::kUnreadable, attempt_.dir + ": cannot be read: " + e.what() + ".");
    }
    const std::scoped_lock lock(mutex_);
    status_ = std::move(status);
    health_ = std::move(health);
    why_no_tap_ = std::move(missing);
    ended_ = true;
    changed_.notify_all();
  });
}

DiffStream::~DiffStream() {
  {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  reader_.join();
}

bool DiffStream::push(DiffStep&& step) {
  std::unique_lock lock(mutex_);
  wait_until_true(changed_, lock, [&] { return stopped_ || ready_.size() < kMaxReady; });
  if (stopped_) return false;
  ready_.push_back(std::move(step));
  changed_.notify_all();
  return true;
}

std::optional<DiffStep> DiffStream::next() {
  std::unique_lock lock(mutex_);
  wait_until_true(changed_, lock, [&] { return ended_ || !ready_.empty(); });
  if (ready_.empty()) return std::nullopt;
  DiffStep step = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  return step;
}

}  // namespace nanhunt::analyze
