// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kProbeFields = fields(seq("seq", &ProbeRecord::seq),
                                     delta("step", &ProbeRecord::step),
                                     of_op(&ProbeRecord::seq),
                                     one_of("mode", &ProbeRecord::mode, ProbeMode::kRemedy, probe_mode_name),
                                     one_of("dtype", &ProbeRecord::dtype, static_cast<DType>(kDTypeCount - 1),
                                            dtype_name),
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
        {.type = 19, .name = "probes", .retires = Retires::kNever, .counted = "probes",
         .line_cells = "step seq op module mode dtype ops ran nan pos_inf neg_inf number text",
         .before = after_its_op<&RecordBatch::probes>});

}  // namespace nanhunt::trace
