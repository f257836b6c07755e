// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

using Row = EndOfLifeRecord;

constexpr auto kFields = fields(delta("storage", &Row::storage),
                               delta("seq", &Row::seq));

}  // namespace

constinit const RecordKind kEndsOfLife =
    field_kind<&RecordBatch::ends_of_life, kFields>(
        {.type = 9, .name = "ends_of_life", .before = up_to_op<&RecordBatch::ends_of_life>});

}  // namespace nanhunt::trace
