// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

using Row = ProbeRecord;

constexpr auto kFields = fields(delta("seq", &Row::seq),
                               delta("step", &Row::step),
                               one_of("mode", &Row::mode, ProbeMode::kWider),
                               one_of("dtype", &Row::dtype, static_cast<DType>(kDTypeCount - 1)),
                               plain("ops", &Row::ops),
                               plain("ran", &Row::ran),
                               zigzag("nan", &Row::nan),
                               zigzag("pos_inf", &Row::pos_inf),
                               zigzag("neg_inf", &Row::neg_inf),
                               zigzag("flat_index", &Row::flat_index),
                               f64("number", &Row::number),
                               id("text", &Row::text));

}  // namespace

constinit const RecordKind kProbes =
    field_kind<&RecordBatch::probes, kFields>(
        {.type = 19, .name = "probes", .before = after_its_op<&RecordBatch::probes>});

}  // namespace nanhunt::trace
