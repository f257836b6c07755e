// SPDX-License-Identifier: Apache-2.0
// uninitialised: an op read memory that `empty` had given out and nothing had written.
#include <fmt/format.h>

#include "src/analyze/rules/registry.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

std::optional<Diagnosis> diagnose_uninitialised(const Case& c) {
  if (c.birth.kind != BirthKind::kGarbage) return std::nullopt;
  const ValueStats& s = c.birth.source.stats;
  const OpRef& reader = c.birth.change->reader;
  const std::string by = reader.op == 0 ? std::string() : fmt::format(" by {}", place_text(reader, c.names));
  Diagnosis d;
  d.title = fmt::format("Memory that {} gave out was read{} before any operation had written it",
                        place_text(c.birth.at, c.names), by);
  d.explanation = fmt::format(
      "{} allocates without writing: its numbers are whatever the memory held before, and differ from run to run.",
      c.op());
  if (s.numel > 0 && s.nan == s.numel) {
    d.explanation +=
        " With torch.use_deterministic_algorithms(True) PyTorch fills such memory with NaN, so that it shows: it is no "
        "number of the program's.";
  } else {
    d.explanation +=
        " Where a kernel wrote it that PyTorch does not know of (a C++ or CUDA extension, NumPy), they are that "
        "kernel's.";
  }
  if (s.nonfinite() > 0)
    d.evidence.push_back(fmt::format("It held {}.", bad_count_text(s.nan, s.pos_inf, s.neg_inf, s.numel)));
  if (reader.op != 0)
    d.evidence.push_back(fmt::format("Read in phase {} of step {}.", phase_name(reader.phase), reader.step));
  d.advice = {"write-before-read"};
  return d;
}

}  // namespace

extern const Rule kUninitialisedRule{FindingClass::kUninitialised, diagnose_uninitialised};

}  // namespace nanhunt::analyze
