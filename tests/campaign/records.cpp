// SPDX-License-Identifier: Apache-2.0
#include "tests/campaign/records.h"

#include <unordered_map>

namespace nanhunt::campaign {
namespace {

struct Badness {
  bool bad = false, nan = false;
};

class Reader {
 public:
  void add(const RecordBatch& batch) {
    for (const StringRecord& s : batch.strings) strings_[s.id] = s.text;
    for (const ValueRecord& v : batch.values) {
      if (!v.has_stats) continue;
      Badness& known = values_[v.id];
      known.bad = known.bad || v.stats.any_nonfinite || v.stats.nonfinite() > 0;
      known.nan = known.nan || v.stats.nan > 0;
    }
    for (const OpRecord& op : batch.ops) {
      SeenOp seen{op.step, op.phase, strings_[op.module], strings_[op.op], false, false, false};
      for (std::uint32_t i = 0; i < op.input_count; ++i) {
        const OpArg& arg = batch.inputs[op.first_input + i];
        seen.bad_in = seen.bad_in || (arg.role != ArgRole::kOverwritten && values_[arg.value].bad);
      }
      for (std::uint32_t i = 0; i < op.output_count; ++i) {
        const Badness& out = values_[batch.outputs[op.first_output + i].value];
        seen.bad_out = seen.bad_out || out.bad;
        seen.nan_out = seen.nan_out || out.nan;
      }
      ops.push_back(std::move(seen));
    }
  }
  std::vector<SeenOp> ops;

 private:
  std::unordered_map<StringId, std::string> strings_;
  std::unordered_map<ValueId, Badness> values_;
};

}  // namespace

Result<std::vector<SeenOp>> read_ops(const std::string& run_dir) {
  auto attempts = find_attempts(run_dir);
  if (!attempts) return attempts.status();
  Reader reader;
  TraceHealth health;
  const Status status =
      read_attempt(attempts->back(), [&](const RecordBatch& batch) { reader.add(batch); }, health);
  if (!status) return status;
  return std::move(reader.ops);
}

}  // namespace nanhunt::campaign
