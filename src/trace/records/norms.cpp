// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kNormFields = fields(seq("seq", &NormRecord::seq),
                                    delta("step", &NormRecord::step),
                                    one_of("kind", &NormRecord::kind, TensorRole::kLabel, tensor_role_name).as("mark"),
                                    id("path", &NormRecord::path),
                                    f64("norm", &NormRecord::norm),
                                    f64("amax", &NormRecord::amax));

}  // namespace

constinit const RecordKind kNorms =
    field_kind<&RecordBatch::norms, kNormFields>(
        {.type = 16, .name = "norms", .retires = Retires::kWithStep, .counted = "norm_rows",
         .before = up_to_op<&RecordBatch::norms>});

}  // namespace nanhunt::trace
