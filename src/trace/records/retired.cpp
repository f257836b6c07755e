// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kRetiredFields = fields(seq("seq", &RetiredRecord::seq),
                                       plain("steps", &RetiredRecord::steps),
                                       plain("anomalies", &RetiredRecord::anomalies),
                                       plain("ops", &RetiredRecord::ops),
                                       plain("values", &RetiredRecord::values),
                                       plain("other", &RetiredRecord::other));

}  // namespace

constinit const RecordKind kRetired =
    field_kind<&RecordBatch::retired, kRetiredFields>(
        {.type = 14, .name = "retired", .before = up_to_op<&RecordBatch::retired>});

}  // namespace nanhunt::trace
