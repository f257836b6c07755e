// SPDX-License-Identifier: Apache-2.0
// The digest of one rank: what the others of its run need to know of it. FORMAT.md has each field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanhunt/analyzer.h"
#include "nanhunt/status.h"
#include "src/analyze/ranks/replicas.h"

namespace nanhunt::fleet {

inline constexpr std::size_t kMaxDigestBytes = 8192, kMaxReadBytes = 65536;
using analyze::kMaxChecksums;
inline constexpr std::size_t kMaxOrigins = 4, kMaxSinks = 4, kMaxCoordinates = 16;

struct DigestOrigin {
  OpPlace place;
  FindingClass cls = FindingClass::kUnexplained;
  Severity severity = Severity::kFault;
  Confidence confidence = Confidence::kObserved;
  std::string call_site, cause, title;
  std::uint64_t count = 1;
  std::uint32_t first_step = 0, last_step = 0;
  std::vector<std::string> sinks;
};

// Bad numbers that came from other ranks, the first time.
struct DigestArrival {
  std::uint32_t step = 0, micro_batch = 0;
  Severity severity = Severity::kFault;
  std::string through, group;
  std::uint64_t call = 0, members = 0;
  std::uint32_t lowest = 0;
};

struct DigestCall {
  std::uint32_t step = 0;
  std::string group;
  std::uint64_t call = 0;
};

struct DigestScaler {
  double scale = 1;
  std::uint64_t steps = 0, skipped = 0;
};

using analyze::Replicas;

struct Digest {
  std::uint32_t rank = 0, world_size = 1, attempt = 0;
  std::string run, job, host, accelerator_name, accelerator_id, nanhunt, framework, level;
  std::map<std::string, std::int64_t> coordinates;
  std::optional<Replicas> replicas;
  bool ended = false;
  std::uint64_t trace_bytes = 0;
  VerdictStatus status = VerdictStatus::kInconclusive;
  std::uint64_t steps = 0;
  std::optional<std::uint32_t> last_step, clean_through;
  std::vector<DigestOrigin> origins;
  std::optional<DigestArrival> arrival;
  std::optional<DigestCall> last_call;
  std::optional<DigestScaler> scaler;
  analyze::Checksums checksums;
  std::uint64_t ops = 0, records_dropped = 0, chunks_lost = 0, unwatched = 0;
};

std::string render_digest(Digest digest);  // at most kMaxDigestBytes
Result<Digest> parse_digest(std::string_view text);

}  // namespace nanhunt::fleet
