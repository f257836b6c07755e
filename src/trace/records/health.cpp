// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"
#include "src/trace/health_norms.h"

namespace nanhunt::trace {
namespace {

constexpr auto kHealthFields = fields(seq("seq", &HealthRecord::seq),
                                      delta("step", &HealthRecord::step),
                                      plain("bad", &HealthRecord::bad).meaning(Means::kParts),
                                      plain("bad_tensors", &HealthRecord::bad_tensors),
                                      id("first_bad", &HealthRecord::first_bad),
                                      f64("gradient_norm", &HealthRecord::gradient_norm).where(measured_gradient_norm),
                                      f64("weight_norm", &HealthRecord::weight_norm).where(measured_weight_norm),
                                      plain("weight_checksum", &HealthRecord::weight_checksum).meaning(Means::kChecksum));

}  // namespace

constinit const RecordKind kHealth =
    field_kind<&RecordBatch::health, kHealthFields>(
        {.type = 15, .name = "health", .retires = Retires::kWithStep, .counted = "health_rows",
         .before = up_to_op<&RecordBatch::health>});

}  // namespace nanhunt::trace
