// SPDX-License-Identifier: Apache-2.0
// A forked child that can change nothing of its parent's: what the two share is taken from it.
#pragma once

#include <sys/types.h>

namespace nanhunt::c_api {

// In the child, right after the fork:
// - it ends with the thread that forked it, and no signal reaches it but those of its own faults;
// - memory that it could write for other processes to see (MAP_SHARED) becomes its own copy, up to 1 GiB;
// - files are opened anew where they stood, so no position of the parent's moves: those that can be read and written are
//   copies, past 64 MiB they can be read. Those that can be written alone, pipes, sockets, terminals and standard streams
//   lead to /dev/null.
// `keep` stays as it is. False: something could not be taken from it, and it must not go on.
bool part_from_parent(pid_t parent, int keep) noexcept;

}  // namespace nanhunt::c_api
