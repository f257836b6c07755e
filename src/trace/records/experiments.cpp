// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kExperimentFields = fields(text("fix", &ExperimentRecord::fix),
                                          text("description", &ExperimentRecord::description),
                                          plain("step", &ExperimentRecord::step),
                                          flags("finite", &ExperimentRecord::finite, "verified",
                                                &ExperimentRecord::verified),
                                          plain("further_steps", &ExperimentRecord::further_steps),
                                          f64("loss_before", &ExperimentRecord::loss_before),
                                          f64("loss_after", &ExperimentRecord::loss_after),
                                          f64("update_factor", &ExperimentRecord::update_factor));

}  // namespace

constinit const RecordKind kExperiments =
    field_kind<&RecordBatch::experiments, kExperimentFields>(
        {.type = 10, .name = "experiments", .retires = Retires::kNever, .counted = "experiments",
         .first_cells = "step",
         .line_cells = "step fix verified finite further_steps loss_before loss_after update_factor "
          "description"});

}  // namespace nanhunt::trace
