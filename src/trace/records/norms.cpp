// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

using Row = NormRecord;

constexpr auto kFields = fields(delta("seq", &Row::seq),
                               delta("step", &Row::step),
                               one_of("kind", &Row::kind, MarkKind::kLabel),
                               id("path", &Row::path),
                               f64("norm", &Row::norm),
                               f64("amax", &Row::amax));

}  // namespace

constinit const RecordKind kNorms =
    field_kind<&RecordBatch::norms, kFields>({.type = 16, .name = "norms", .before = up_to_op<&RecordBatch::norms>});

}  // namespace nanhunt::trace
