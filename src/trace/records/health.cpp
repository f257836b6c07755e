// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

using Row = HealthRecord;

constexpr auto kFields = fields(delta("seq", &Row::seq),
                               delta("step", &Row::step),
                               plain("bad", &Row::bad),
                               plain("bad_tensors", &Row::bad_tensors),
                               id("first_bad", &Row::first_bad),
                               f64("gradient_norm", &Row::gradient_norm),
                               f64("weight_norm", &Row::weight_norm));

}  // namespace

constinit const RecordKind kHealth =
    field_kind<&RecordBatch::health, kFields>({.type = 15, .name = "health", .before = up_to_op<&RecordBatch::health>});

}  // namespace nanhunt::trace
