// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kHealthFields = fields(delta("seq", &HealthRecord::seq),
                                      delta("step", &HealthRecord::step),
                                      plain("bad", &HealthRecord::bad),
                                      plain("bad_tensors", &HealthRecord::bad_tensors),
                                      id("first_bad", &HealthRecord::first_bad),
                                      f64("gradient_norm", &HealthRecord::gradient_norm),
                                      f64("weight_norm", &HealthRecord::weight_norm));

}  // namespace

constinit const RecordKind kHealth =
    field_kind<&RecordBatch::health, kHealthFields>(
        {.type = 15, .name = "health", .before = up_to_op<&RecordBatch::health>});

}  // namespace nanhunt::trace
