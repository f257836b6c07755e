// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kEndOfLifeFields = fields(delta("storage", &EndOfLifeRecord::storage),
                                         seq("seq", &EndOfLifeRecord::seq));

}  // namespace

constinit const RecordKind kEndsOfLife =
    field_kind<&RecordBatch::ends_of_life, kEndOfLifeFields>(
        {.type = 9, .name = "ends_of_life", .shown = "frees",
         .first_cells = "seq", .before = up_to_op<&RecordBatch::ends_of_life>});

}  // namespace nanhunt::trace
