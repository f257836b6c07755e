// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kSetupFields = fields(seq("seq", &SetupRecord::seq),
                                     delta("step", &SetupRecord::step),
                                     one_of("fact", &SetupRecord::fact, SetupFact::kReplicas, setup_fact_name),
                                     id("path", &SetupRecord::path),
                                     id("site", &SetupRecord::site),
                                     one_of("dtype", &SetupRecord::dtype, DType::kBool, dtype_name),
                                     f64("number", &SetupRecord::number),
                                     id("text", &SetupRecord::text));

}  // namespace

constinit const RecordKind kSetup =
    field_kind<&RecordBatch::setup, kSetupFields>(
        {.type = 25, .name = "setup", .retires = Retires::kNever, .counted = "setup_rows",
         .before = up_to_op<&RecordBatch::setup>});

}  // namespace nanhunt::trace
