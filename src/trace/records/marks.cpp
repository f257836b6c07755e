// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kMarkFields = fields(delta("seq", &MarkRecord::seq),
                                    delta("step", &MarkRecord::step),
                                    delta("micro_batch", &MarkRecord::micro_batch),
                                    one_of("kind", &MarkRecord::kind, MarkKind::kLabel),
                                    id("path", &MarkRecord::path),
                                    delta("value", &MarkRecord::value));

}  // namespace

constinit const RecordKind kMarks =
    field_kind<&RecordBatch::marks, kMarkFields>(
        {.type = kMarksType, .name = "marks", .before = up_to_op<&RecordBatch::marks>});

}  // namespace nanhunt::trace
