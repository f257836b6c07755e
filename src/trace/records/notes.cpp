// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kNoteFields = fields(seq("seq", &NoteRecord::seq),
                                    delta("step", &NoteRecord::step),
                                    id("text", &NoteRecord::text),
                                    delta("count", &NoteRecord::count));

}  // namespace

constinit const RecordKind kNotes =
    field_kind<&RecordBatch::notes, kNoteFields>(
        {.type = 21, .name = "notes", .counted = "notes", .before = up_to_op<&RecordBatch::notes>});

}  // namespace nanhunt::trace
