// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

using Row = ScalerRecord;

constexpr auto kFields = fields(delta("seq", &Row::seq),
                               delta("step", &Row::step),
                               delta("micro_batch", &Row::micro_batch),
                               one_of("action", &Row::action, ScalerAction::kRefused),
                               plain("optimizer", &Row::optimizer),
                               flags("found_inf", &Row::found_inf, "dynamic", &Row::dynamic),
                               f64("scale", &Row::scale),
                               delta("growth_tracker", &Row::growth_tracker),
                               delta("growth_interval", &Row::growth_interval),
                               f64("total_norm", &Row::total_norm),
                               f64("max_norm", &Row::max_norm),
                               f64("growth_factor", &Row::growth_factor),
                               f64("backoff_factor", &Row::backoff_factor),
                               id("text", &Row::text));

}  // namespace

constinit const RecordKind kScaler =
    field_kind<&RecordBatch::scaler, kFields>({.type = 12, .name = "scaler", .before = up_to_op<&RecordBatch::scaler>});

}  // namespace nanhunt::trace
