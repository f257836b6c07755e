// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kCaptureFields = fields(delta("seq", &CaptureRecord::seq),
                                       delta("step", &CaptureRecord::step),
                                       id("file", &CaptureRecord::file),
                                       delta("bytes", &CaptureRecord::bytes));

}  // namespace

constinit const RecordKind kCaptures =
    field_kind<&RecordBatch::captures, kCaptureFields>(
        {.type = 20, .name = "captures", .before = after_its_op<&RecordBatch::captures>});

}  // namespace nanhunt::trace
