// SPDX-License-Identifier: Apache-2.0
// A run whose contents come late, from a device that the tests play.
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cpu/checksum.h"
#include "nanhunt/recorder.h"
#include "src/record/recorder.h"
#include "tests/record/support.h"

namespace nanhunt::record {

using testing::ScriptedWriter;
using testing::TestTensor;
using testing::WriterScript;

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInf = std::numeric_limits<double>::infinity();

// Contents that the host cannot read, and what a device would say of them.
struct Late {
  const TestTensor& tensor;
  std::uint64_t number;
  ValueView value() const {
    ValueView view = tensor.value();
    view.tensor.data = nullptr;
    view.late = number;
    return view;
  }
  KnownContents contents() const {
    KnownContents known;
    known.stats = compute_stats(tensor.tensor(), StatsLevel::kSums);
    known.has_stats = true;
    known.checksum = kernels::checksum_elements(tensor.tensor());
    return known;
  }
};

struct DeferredRun {
  explicit DeferredRun(RecorderOptions options = {}) : script(std::make_shared<WriterScript>()) {
    options.flush_ms = 10'000;  // only what is asked for is handed over
    auto made = make_recorder(options, std::make_unique<ScriptedWriter>(script));
    recorder = std::move(*made);
  }
  void come(const Late& late) { recorder->on_deferred_contents(late.number, late.contents()); }
  void op(std::string_view name, std::vector<OpInput> inputs, std::vector<OpOutput> outputs,
          std::vector<OpScalar> scalars = {}, std::uint64_t late = 0, Phase phase = Phase::kForward) {
    OpEvent event;
    event.phase = phase;
    event.op = name;
    event.module = "fc1";
    event.inputs = inputs;
    event.outputs = outputs;
    event.scalars = scalars;
    event.late = late;
    recorder->on_op(event);
  }
  void end_step() { recorder->on_step_end({.step = step++}); }
  RecordBatch written() {
    EXPECT_TRUE(recorder->flush());
    return script->all();
  }
  RecordBatch closed() {
    EXPECT_TRUE(recorder->close());
    return script->all();
  }
  std::map<std::string, std::uint64_t> notes() {
    const RecordBatch rows = script->all();
    std::map<StringId, std::string> strings;
    for (const StringRecord& s : rows.strings) strings[s.id] = s.text;
    std::map<std::string, std::uint64_t> out;
    for (const NoteRecord& note : rows.notes) out[strings[note.text]] = note.count;
    return out;
  }
  std::shared_ptr<WriterScript> script;
  std::unique_ptr<Recorder> recorder;
  std::uint32_t step = 0;
};

// A trace in which every row names only values, strings and layouts that came before it, batch by batch.
inline void expect_order(const std::vector<RecordBatch>& batches) {
  std::set<ValueId> values;
  for (const RecordBatch& b : batches) {
    for (const ValueRecord& v : b.values) {
      EXPECT_TRUE(v.base == 0 || values.contains(v.base)) << v.id;
      values.insert(v.id);
    }
    for (const OpArg& arg : b.inputs) EXPECT_TRUE(values.contains(arg.value)) << arg.value;
    for (const OpArg& arg : b.outputs) EXPECT_TRUE(values.contains(arg.value)) << arg.value;
    for (const MarkRecord& mark : b.marks) EXPECT_TRUE(values.contains(mark.value)) << mark.value;
    for (const EvidenceRecord& e : b.evidence) EXPECT_TRUE(values.contains(e.value)) << e.value;
  }
}

}  // namespace nanhunt::record
