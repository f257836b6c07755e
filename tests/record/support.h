// SPDX-License-Identifier: Apache-2.0
// Tensors, events and writers for tests of the recorder.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "nanhunt/event.h"
#include "nanhunt/trace.h"
#include "src/record/rows/row_builder.h"

namespace nanhunt::record::testing {

// A tensor with its own memory and a made-up identity.
class TestTensor {
 public:
  TestTensor(DType dtype, std::vector<std::int64_t> sizes, std::vector<double> values, std::uint64_t storage,
             std::uint32_t version = 0)
      : dtype_(dtype), sizes_(std::move(sizes)), strides_(sizes_.size()), storage_(storage), version_(version) {
    std::int64_t stride = 1;
    for (std::size_t d = sizes_.size(); d-- > 0;) {
      strides_[d] = stride;
      stride *= sizes_[d];
    }
    data_ = std::make_shared<std::vector<std::byte>>(values.size() * dtype_size(dtype));
    for (std::size_t i = 0; i < values.size(); ++i) {
      store_from_f64(dtype, data_->data() + i * dtype_size(dtype), values[i]);
    }
  }

  // The same memory and contents seen another way.
  TestTensor view(std::vector<std::int64_t> sizes, std::vector<std::int64_t> strides, std::int64_t offset = 0) const {
    TestTensor other = *this;
    other.sizes_ = std::move(sizes);
    other.strides_ = std::move(strides);
    other.offset_ = offset;
    return other;
  }
  TestTensor t() const { return view({sizes_[1], sizes_[0]}, {strides_[1], strides_[0]}, offset_); }
  // Writes in place: a new version.
  TestTensor& write(std::vector<double> values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      store_from_f64(dtype_, data_->data() + i * dtype_size(dtype_), values[i]);
    }
    ++version_;
    return *this;
  }
  // Writes behind everybody's back: the same version.
  void corrupt(std::size_t index, double value) {
    store_from_f64(dtype_, data_->data() + index * dtype_size(dtype_), value);
  }
  TestTensor old_version() const {
    TestTensor other = *this;
    --other.version_;
    other.has_data_ = false;
    return other;
  }
  TestTensor without_data() const {
    TestTensor other = *this;
    other.has_data_ = false;
    return other;
  }

  TensorView tensor() const {
    const std::byte* first = data_->data() + static_cast<std::size_t>(offset_) * dtype_size(dtype_);
    return {has_data_ ? first : nullptr, dtype_, sizes_, strides_};
  }
  ValueView value() const { return {tensor(), storage_, version_, offset_}; }
  std::uint64_t storage() const { return storage_; }

 private:
  std::shared_ptr<std::vector<std::byte>> data_;
  DType dtype_;
  std::vector<std::int64_t> sizes_, strides_;
  std::uint64_t storage_;
  std::uint32_t version_;
  std::int64_t offset_ = 0;
  bool has_data_ = true;
};

struct In {
  std::string_view slot;
  const TestTensor& tensor;
  ArgRole role = ArgRole::kRead;
};
struct Out {
  std::string_view slot;
  const TestTensor& tensor;
};

// Builds an OpEvent and hands it to `sink`, which borrows it.
template <typename Sink>
auto op(Sink&& sink, std::string_view name, std::initializer_list<In> inputs, std::initializer_list<Out> outputs,
        std::vector<OpScalar> scalars = {}, std::string_view module = "fc1") {
  std::vector<OpInput> ins;
  std::vector<OpOutput> outs;
  for (const In& in : inputs) ins.push_back({in.slot, in.tensor.value(), in.role});
  for (const Out& out : outputs) outs.push_back({out.slot, out.tensor.value()});
  OpEvent event;
  event.step = 3;
  event.phase = Phase::kForward;
  event.module = module;
  event.op = name;
  event.inputs = ins;
  event.outputs = outs;
  event.scalars = scalars;
  return sink(event);
}
inline bool add_op(RowBuilder& builder, std::string_view name, std::initializer_list<In> inputs,
                   std::initializer_list<Out> outputs, std::vector<OpScalar> scalars = {}) {
  return op([&](const OpEvent& e) { return builder.add_op(e); }, name, inputs, outputs, std::move(scalars));
}

inline void append(RecordBatch& to, const RecordBatch& from) {
  const auto copy = [](auto& a, const auto& b) { a.insert(a.end(), b.begin(), b.end()); };
  for (OpRecord row : from.ops) {
    row.first_input += static_cast<std::uint32_t>(to.inputs.size());
    row.first_output += static_cast<std::uint32_t>(to.outputs.size());
    row.first_scalar += static_cast<std::uint32_t>(to.scalars.size());
    to.ops.push_back(row);
  }
  copy(to.strings, from.strings);
  copy(to.layouts, from.layouts);
  copy(to.values, from.values);
  copy(to.inputs, from.inputs);
  copy(to.outputs, from.outputs);
  copy(to.scalars, from.scalars);
  copy(to.marks, from.marks);
  copy(to.sample_ids, from.sample_ids);
  copy(to.steps, from.steps);
  copy(to.evidence, from.evidence);
  copy(to.ends_of_life, from.ends_of_life);
  copy(to.experiments, from.experiments);
  copy(to.drops, from.drops);
  copy(to.scaler, from.scaler);
  copy(to.histograms, from.histograms);
  copy(to.retired, from.retired);
  copy(to.health, from.health);
  copy(to.norms, from.norms);
  copy(to.unheard, from.unheard);
  copy(to.changed, from.changed);
  copy(to.probes, from.probes);
  copy(to.captures, from.captures);
  copy(to.notes, from.notes);
  copy(to.collectives, from.collectives);
  copy(to.kernels, from.kernels);
}

// What a fake writer does, shared with the test after the recorder took the writer.
struct WriterScript {
  std::mutex mutex;
  std::condition_variable changed;
  bool blocked = false;   // write() waits until it is not
  bool failing = false;   // write() fails
  bool throwing = false;  // write() throws
  int failures_left = 0;  // so many more writes fail
  int waiting = 0;        // writes that wait now
  int writes = 0, closes = 0;
  std::vector<RecordBatch> batches;

  void set_blocked(bool value) {
    std::lock_guard lock(mutex);
    blocked = value;
    changed.notify_all();
  }
  void set_failing(bool value) {
    std::lock_guard lock(mutex);
    failing = value;
  }
  // Waits until the predicate holds, checked whenever a write starts or ends; false after minutes.
  template <typename Predicate>
  bool wait(Predicate&& predicate) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::minutes(5), predicate);
  }
  RecordBatch all() {
    std::lock_guard lock(mutex);
    RecordBatch joined;
    for (const RecordBatch& batch : batches) append(joined, batch);
    return joined;
  }
};

class ScriptedWriter final : public TraceWriter {
 public:
  explicit ScriptedWriter(std::shared_ptr<WriterScript> script) : script_(std::move(script)) {}
  Status write(const RecordBatch& batch, RecordBatch* unwritten) override {
    std::unique_lock lock(script_->mutex);
    ++script_->waiting;
    script_->changed.notify_all();
    script_->changed.wait(lock, [&] { return !script_->blocked; });
    --script_->waiting;
    ++script_->writes;
    script_->changed.notify_all();
    if (script_->throwing) throw std::bad_alloc();
    if (script_->failing || (script_->failures_left > 0 && script_->failures_left-- > 0)) {
      if (unwritten != nullptr) *unwritten = batch;
      return {StatusCode::kWriteFailed, "no space left on device"};
    }
    script_->batches.push_back(batch);
    return {};
  }
  Status close() override {
    std::lock_guard lock(script_->mutex);
    ++script_->closes;
    return {};
  }
  const std::string& attempt_dir() const override { return dir_; }
  std::uint64_t bytes_written() const override { return 0; }

 private:
  std::shared_ptr<WriterScript> script_;
  std::string dir_ = "run/rank-00000/attempt-0";
};

}  // namespace nanhunt::record::testing
