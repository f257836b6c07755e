// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kScalerFields = fields(seq("seq", &ScalerRecord::seq),
                                      delta("step", &ScalerRecord::step),
                                      delta("micro_batch", &ScalerRecord::micro_batch),
                                      one_of("action", &ScalerRecord::action, ScalerAction::kGaveUp,
                                             scaler_action_name),
                                      plain("optimizer", &ScalerRecord::optimizer),
                                      flags("found_inf", &ScalerRecord::found_inf, "dynamic", &ScalerRecord::dynamic),
                                      f64("scale", &ScalerRecord::scale),
                                      delta("growth_tracker", &ScalerRecord::growth_tracker),
                                      delta("growth_interval", &ScalerRecord::growth_interval),
                                      plain("hysteresis", &ScalerRecord::hysteresis),
                                      f64("total_norm", &ScalerRecord::total_norm),
                                      f64("max_norm", &ScalerRecord::max_norm),
                                      f64("growth_factor", &ScalerRecord::growth_factor),
                                      f64("backoff_factor", &ScalerRecord::backoff_factor),
                                      id("text", &ScalerRecord::text));

}  // namespace

constinit const RecordKind kScaler =
    field_kind<&RecordBatch::scaler, kScalerFields>(
        {.type = 12, .name = "scaler", .retires = Retires::kWithStep,
         .first_cells = "seq step micro_batch action optimizer found_inf scale growth_tracker total_norm "
          "max_norm dynamic growth_factor backoff_factor growth_interval hysteresis",
         .line_cells = "step seq action scale found_inf growth_tracker hysteresis total_norm max_norm text",
         .before = up_to_op<&RecordBatch::scaler>});

}  // namespace nanhunt::trace
