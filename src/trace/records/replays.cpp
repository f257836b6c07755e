// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kReplayFields = fields(delta("seq", &ReplayRecord::seq),
                                      delta("step", &ReplayRecord::step),
                                      one_of("trigger", &ReplayRecord::trigger, ReplayTrigger::kUser),
                                      one_of("result", &ReplayRecord::result, ReplayResult::kRefused),
                                      id("text", &ReplayRecord::text));

}  // namespace

constinit const RecordKind kReplays =
    field_kind<&RecordBatch::replays, kReplayFields>(
        {.type = 17, .name = "replays", .before = up_to_op<&RecordBatch::replays>});

}  // namespace nanhunt::trace
