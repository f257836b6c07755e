// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

using Row = ReplayRecord;

constexpr auto kFields = fields(delta("seq", &Row::seq),
                               delta("step", &Row::step),
                               one_of("trigger", &Row::trigger, ReplayTrigger::kUser),
                               one_of("result", &Row::result, ReplayResult::kRefused),
                               id("text", &Row::text));

}  // namespace

constinit const RecordKind kReplays =
    field_kind<&RecordBatch::replays, kFields>(
        {.type = 17, .name = "replays", .before = up_to_op<&RecordBatch::replays>});

}  // namespace nanhunt::trace
