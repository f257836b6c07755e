// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

using Row = ExperimentRecord;

constexpr auto kFields = fields(text("fix", &Row::fix),
                               text("description", &Row::description),
                               plain("step", &Row::step),
                               flags("finite", &Row::finite, "verified", &Row::verified),
                               plain("further_steps", &Row::further_steps),
                               f64("loss_before", &Row::loss_before),
                               f64("loss_after", &Row::loss_after),
                               f64("update_factor", &Row::update_factor));

}  // namespace

constinit const RecordKind kExperiments =
    field_kind<&RecordBatch::experiments, kFields>({.type = 10, .name = "experiments"});

}  // namespace nanhunt::trace
