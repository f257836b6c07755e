// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

using Row = NoteRecord;

constexpr auto kFields = fields(delta("seq", &Row::seq),
                               delta("step", &Row::step),
                               id("text", &Row::text),
                               delta("count", &Row::count));

}  // namespace

constinit const RecordKind kNotes =
    field_kind<&RecordBatch::notes, kFields>({.type = 21, .name = "notes", .before = up_to_op<&RecordBatch::notes>});

}  // namespace nanhunt::trace
