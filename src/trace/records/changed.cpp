// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kChangedFields = fields(delta("seq", &ChangedRecord::seq),
                                       delta("step", &ChangedRecord::step),
                                       delta("before", &ChangedRecord::before),
                                       delta("after", &ChangedRecord::after),
                                       delta("since_seq", &ChangedRecord::since_seq),
                                       delta("since_step", &ChangedRecord::since_step),
                                       plain("opaque", &ChangedRecord::opaque));

}  // namespace

constinit const RecordKind kChanged =
    field_kind<&RecordBatch::changed, kChangedFields>(
        {.type = 18, .name = "changed", .before = up_to_op<&RecordBatch::changed>});

}  // namespace nanhunt::trace
