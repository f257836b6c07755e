// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kSampleIdsFields = fields(delta("step", &SampleIdsRecord::step),
                                         delta("micro_batch", &SampleIdsRecord::micro_batch),
                                         list("ids.id", &SampleIdsRecord::sample_ids, Coding::kDelta,
                                              "it has more than 524288 samples").as("sample_ids"));

bool samples_before(const RecordBatch& batch, std::size_t row, const OpRecord& op) {
  return batch.sample_ids[row].step <= op.step;
}

}  // namespace

constinit const RecordKind kSampleIds =
    field_kind<&RecordBatch::sample_ids, kSampleIdsFields>(
        {.type = 6, .name = "sample_ids", .retires = Retires::kWithStep, .shown = "samples",
         .counted = "sample_rows", .before = samples_before});

}  // namespace nanhunt::trace
