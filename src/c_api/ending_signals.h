// SPDX-License-Identifier: Apache-2.0
// SIGTERM and SIGHUP end a process that has no handler for them. Before they do, what is recorded reaches the file: also
// what is held because nobody knows yet whether it is wanted.
#pragma once

namespace nanhunt::record {
class NumberingRecorder;
}

namespace nanhunt::c_api {

// From here on, for one recorder of a process; the newest one counts. A handler that the program has set or sets later
// stays. The process ends by the same signal, within two seconds. False: there was no room for it.
bool flush_at_ending_signals(record::NumberingRecorder* recorder) noexcept;

// Before the recorder is closed. The signals do what they did before.
void forget_ending_signals(const record::NumberingRecorder* recorder) noexcept;

}  // namespace nanhunt::c_api
