// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

using Row = StepRecord;

constexpr auto kFields = fields(delta("step", &Row::step),
                               plain("skipped", &Row::skipped),
                               f64("loss", &Row::loss),
                               f64("lr", &Row::lr),
                               f64("scale", &Row::scale),
                               delta("end_seq", &Row::end_seq),
                               delta("wall_ns", &Row::wall_ns, " (volatile)"));

bool before(const RecordBatch& batch, std::size_t row, const OpRecord& op) {
  return batch.steps[row].end_seq <= op.seq;
}

}  // namespace

constinit const RecordKind kSteps =
    field_kind<&RecordBatch::steps, kFields>({.type = 7, .name = "steps", .before = before});

}  // namespace nanhunt::trace
