// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

using Row = DropRecord;

constexpr auto kFields = fields(delta("seq", &Row::seq),
                               plain("ops", &Row::ops),
                               plain("values", &Row::values),
                               plain("other", &Row::other));

}  // namespace

constinit const RecordKind kDrops =
    field_kind<&RecordBatch::drops, kFields>({.type = 11, .name = "drops", .before = up_to_op<&RecordBatch::drops>});

}  // namespace nanhunt::trace
