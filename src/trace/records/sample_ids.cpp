// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

using Row = SampleIdsRecord;

constexpr auto kFields = fields(delta("step", &Row::step),
                               delta("micro_batch", &Row::micro_batch),
                               list("ids.id", &Row::sample_ids, Coding::kDelta, "it has more than 524288 samples"));

bool before(const RecordBatch& batch, std::size_t row, const OpRecord& op) {
  return batch.sample_ids[row].step <= op.step;
}

}  // namespace

constinit const RecordKind kSampleIds =
    field_kind<&RecordBatch::sample_ids, kFields>({.type = 6, .name = "sample_ids", .before = before});

}  // namespace nanhunt::trace
