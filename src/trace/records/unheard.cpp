// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kUnheardFields = fields(seq("seq", &UnheardRecord::seq), delta("step", &UnheardRecord::step),
                                       id("text", &UnheardRecord::text));

}  // namespace

constinit const RecordKind kUnheard =
    field_kind<&RecordBatch::unheard, kUnheardFields>(
        {.type = 17, .name = "unheard", .retires = Retires::kNever, .before = up_to_op<&RecordBatch::unheard>});

}  // namespace nanhunt::trace
