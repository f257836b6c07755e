// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kDropFields = fields(seq("seq", &DropRecord::seq),
                                    plain("ops", &DropRecord::ops),
                                    plain("values", &DropRecord::values),
                                    plain("other", &DropRecord::other));

}  // namespace

constinit const RecordKind kDrops =
    field_kind<&RecordBatch::drops, kDropFields>(
        {.type = 11, .name = "drops", .before = up_to_op<&RecordBatch::drops>});

}  // namespace nanhunt::trace
