// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

using Row = MarkRecord;

constexpr auto kFields = fields(delta("seq", &Row::seq),
                               delta("step", &Row::step),
                               delta("micro_batch", &Row::micro_batch),
                               one_of("kind", &Row::kind, MarkKind::kLabel),
                               id("path", &Row::path),
                               delta("value", &Row::value));

}  // namespace

constinit const RecordKind kMarks =
    field_kind<&RecordBatch::marks, kFields>(
        {.type = kMarksType, .name = "marks", .before = up_to_op<&RecordBatch::marks>});

}  // namespace nanhunt::trace
