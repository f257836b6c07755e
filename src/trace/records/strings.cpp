// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kStringFields = fields(id("id", &StringRecord::id, Coding::kDelta),
                                      text("text", &StringRecord::text));

}  // namespace

constinit const RecordKind kStrings =
    field_kind<&RecordBatch::strings, kStringFields>(
        {.type = kStringsType, .name = "strings", .hidden = true});

}  // namespace nanhunt::trace
