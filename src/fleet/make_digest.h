// SPDX-License-Identifier: Apache-2.0
// From the trace of one rank to its digest.
#pragma once

#include <cstdint>
#include <string>

#include "nanhunt/trace.h"
#include "src/fleet/digest.h"

namespace nanhunt::fleet {

// Reads the trace of one attempt. A damaged one gives what is left of it.
Result<Digest> make_digest(const AttemptTrace& attempt);

Result<Digest> make_digest(const std::string& attempt_dir);

// Writes it beside the trace.
Status write_digest(const std::string& attempt_dir, const Digest& digest);

// Bytes of the segments in the folder of an attempt.
std::uint64_t segment_bytes(const std::string& attempt_dir);

inline constexpr const char* kDigestName = "digest.json";

}  // namespace nanhunt::fleet
