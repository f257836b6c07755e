// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kStepFields = fields(delta("step", &StepRecord::step),
                                    plain("skipped", &StepRecord::skipped),
                                    f64("loss", &StepRecord::loss),
                                    f64("lr", &StepRecord::lr).meaning(Means::kUnknownIfNan),
                                    f64("scale", &StepRecord::scale).meaning(Means::kUnknownIfNan),
                                    seq("end_seq", &StepRecord::end_seq),
                                    delta("wall_ns", &StepRecord::wall_ns, " (volatile)"),
                                    zigzag("watch_ns", &StepRecord::watch_ns, " (volatile)"),
                                    one_of("ending", &StepRecord::ending, StepEnding::kForward, step_ending_name),
                                    id("message", &StepRecord::message));

bool step_before(const RecordBatch& batch, std::size_t row, const OpRecord& op) {
  return batch.steps[row].end_seq <= op.seq;
}

}  // namespace

constinit const RecordKind kSteps =
    field_kind<&RecordBatch::steps, kStepFields>(
        {.type = 7, .name = "steps", .retires = Retires::kWithStep,
         .line_cells = "step skipped loss lr scale end_seq ending message", .before = step_before});

}  // namespace nanhunt::trace
