// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

using Row = CaptureRecord;

constexpr auto kFields = fields(delta("seq", &Row::seq),
                               delta("step", &Row::step),
                               id("file", &Row::file),
                               delta("bytes", &Row::bytes));

}  // namespace

constinit const RecordKind kCaptures =
    field_kind<&RecordBatch::captures, kFields>(
        {.type = 20, .name = "captures", .before = after_its_op<&RecordBatch::captures>});

}  // namespace nanhunt::trace
