// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

using Row = ChangedRecord;

constexpr auto kFields = fields(delta("seq", &Row::seq),
                               delta("step", &Row::step),
                               delta("before", &Row::before),
                               delta("after", &Row::after),
                               delta("since_seq", &Row::since_seq),
                               delta("since_step", &Row::since_step),
                               plain("opaque", &Row::opaque));

}  // namespace

constinit const RecordKind kChanged =
    field_kind<&RecordBatch::changed, kFields>(
        {.type = 18, .name = "changed", .before = up_to_op<&RecordBatch::changed>});

}  // namespace nanhunt::trace
