// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

using Row = RetiredRecord;

constexpr auto kFields = fields(delta("seq", &Row::seq),
                               plain("steps", &Row::steps),
                               plain("anomalies", &Row::anomalies),
                               plain("ops", &Row::ops),
                               plain("values", &Row::values),
                               plain("other", &Row::other));

}  // namespace

constinit const RecordKind kRetired =
    field_kind<&RecordBatch::retired, kFields>(
        {.type = 14, .name = "retired", .before = up_to_op<&RecordBatch::retired>});

}  // namespace nanhunt::trace
