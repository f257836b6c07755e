// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kReplayFields = fields(seq("seq", &ReplayRecord::seq),
                                      delta("step", &ReplayRecord::step),
                                      one_of("trigger", &ReplayRecord::trigger, ReplayTrigger::kUser,
                                             replay_trigger_name),
                                      one_of("result", &ReplayRecord::result, ReplayResult::kRefused,
                                             replay_result_name),
                                      id("text", &ReplayRecord::text));

}  // namespace

constinit const RecordKind kReplays =
    field_kind<&RecordBatch::replays, kReplayFields>(
        {.type = 17, .name = "replays", .retires = Retires::kNever, .before = up_to_op<&RecordBatch::replays>});

}  // namespace nanhunt::trace
