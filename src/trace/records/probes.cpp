// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kProbeFields = fields(delta("seq", &ProbeRecord::seq),
                                     delta("step", &ProbeRecord::step),
                                     one_of("mode", &ProbeRecord::mode, ProbeMode::kWider),
                                     one_of("dtype", &ProbeRecord::dtype, static_cast<DType>(kDTypeCount - 1)),
                                     plain("ops", &ProbeRecord::ops),
                                     plain("ran", &ProbeRecord::ran),
                                     zigzag("nan", &ProbeRecord::nan),
                                     zigzag("pos_inf", &ProbeRecord::pos_inf),
                                     zigzag("neg_inf", &ProbeRecord::neg_inf),
                                     zigzag("flat_index", &ProbeRecord::flat_index),
                                     f64("number", &ProbeRecord::number),
                                     id("text", &ProbeRecord::text));

}  // namespace

constinit const RecordKind kProbes =
    field_kind<&RecordBatch::probes, kProbeFields>(
        {.type = 19, .name = "probes", .before = after_its_op<&RecordBatch::probes>});

}  // namespace nanhunt::trace
