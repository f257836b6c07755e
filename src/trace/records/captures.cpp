// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kCaptureFields = fields(seq("seq", &CaptureRecord::seq),
                                       delta("step", &CaptureRecord::step),
                                       of_op(&CaptureRecord::seq),
                                       id("file", &CaptureRecord::file),
                                       delta("bytes", &CaptureRecord::bytes));

}  // namespace

constinit const RecordKind kCaptures =
    field_kind<&RecordBatch::captures, kCaptureFields>(
        {.type = 20, .name = "captures", .retires = Retires::kNever, .counted = "captures",
         .before = after_its_op<&RecordBatch::captures>});

}  // namespace nanhunt::trace
