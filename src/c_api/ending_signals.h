// SPDX-License-Identifier: Apache-2.0
// SIGTERM and SIGHUP end a process that has no handler for them. Before they do, what is recorded reaches the file: also
// what is held because nobody knows yet whether it is wanted.
#pragma once

namespace nanhunt::record {
class NumberingRecorder;
}
namespace nanhunt::hunt {
class StepJudge;
}

namespace nanhunt::c_api {

// From here on, for one recorder of a process; the newest one counts. A handler that the program has set or sets later
// stays. The process ends by the same signal, within two seconds. False: there was no room for it.
bool flush_at_ending_signals(record::NumberingRecorder* recorder) noexcept;

// The steps of that recorder. Where no step has begun when such a signal comes, nobody needs what is recorded: the
// attempt goes. `ends_between`: who made the process ends it by a signal once its work is done, as a pool does, so that
// between steps its trace ends as any other.
void judge_at_ending_signals(const record::NumberingRecorder* recorder, const hunt::StepJudge* judge,
                             bool ends_between) noexcept;

// Before the recorder is freed. The signals do what they did before.
void forget_ending_signals(const record::NumberingRecorder* recorder) noexcept;

}  // namespace nanhunt::c_api
