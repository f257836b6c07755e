// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kChangedFields = fields(seq("seq", &ChangedRecord::seq),
                                       delta("step", &ChangedRecord::step),
                                       value("before", &ChangedRecord::before),
                                       value("after", &ChangedRecord::after),
                                       seq("since_seq", &ChangedRecord::since_seq),
                                       delta("since_step", &ChangedRecord::since_step),
                                       plain("opaque", &ChangedRecord::opaque));

}  // namespace

constinit const RecordKind kChanged =
    field_kind<&RecordBatch::changed, kChangedFields>(
        {.type = 18, .name = "changed", .retires = Retires::kWithStep, .counted = "changed_unseen",
         .before = up_to_op<&RecordBatch::changed>});

}  // namespace nanhunt::trace
