// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

using Row = StringRecord;

constexpr auto kFields = fields(id("id", &Row::id, Coding::kDelta),
                               text("text", &Row::text));

}  // namespace

constinit const RecordKind kStrings =
    field_kind<&RecordBatch::strings, kFields>({.type = kStringsType, .name = "strings"});

}  // namespace nanhunt::trace
