// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kMarkFields = fields(seq("seq", &MarkRecord::seq),
                                    delta("step", &MarkRecord::step),
                                    delta("micro_batch", &MarkRecord::micro_batch),
                                    one_of("kind", &MarkRecord::kind, TensorRole::kOutput, tensor_role_name).as("mark"),
                                    id("path", &MarkRecord::path),
                                    value("value", &MarkRecord::value));

}  // namespace

constinit const RecordKind kMarks =
    field_kind<&RecordBatch::marks, kMarkFields>(
        {.type = kMarksType, .name = "marks", .retires = Retires::kWithStep, .counted = "marks",
         .line_cells = "step seq mark path value", .before = up_to_op<&RecordBatch::marks>});

}  // namespace nanhunt::trace
