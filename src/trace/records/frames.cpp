// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kFrameFields = fields(seq("seq", &FrameRecord::seq),
                                     id("site", &FrameRecord::site),
                                     plain("depth", &FrameRecord::depth),
                                     id("file", &FrameRecord::file),
                                     plain("line", &FrameRecord::line),
                                     id("function", &FrameRecord::function),
                                     plain("first_line", &FrameRecord::first_line),
                                     id("code", &FrameRecord::code));

}  // namespace

constinit const RecordKind kFrames =
    field_kind<&RecordBatch::frames, kFrameFields>(
        {.type = 24, .name = "frames", .retires = Retires::kNever, .counted = "frames",
         .before = up_to_op<&RecordBatch::frames>});

}  // namespace nanhunt::trace
