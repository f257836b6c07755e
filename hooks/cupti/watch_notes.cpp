// SPDX-License-Identifier: Apache-2.0
// What this hook says in words; no CUDA in it.
#include <fmt/format.h>

#include <array>
#include <utility>

#include "hooks/cupti/kernel_watch.h"

namespace nanhunt::hooks {
namespace {

// Until 12.9 the number counted releases. From 13.0 on it is MMmmpp: 130001 is 13.0, update 1.
constexpr std::uint32_t kFirstNewNumber = 100000;
constexpr std::array<std::pair<std::uint32_t, const char*>, 10> kOldNumbers = {{{18, "11.8"},
                                                                               {19, "12.0"},
                                                                               {20, "12.2"},
                                                                               {21, "12.3"},
                                                                               {22, "12.4"},
                                                                               {23, "12.5"},
                                                                               {24, "12.6"},
                                                                               {26, "12.8"},
                                                                               {27, "12.9"},
                                                                               {28, "12.9 update 1"}}};
constexpr std::uint32_t kOldest = 19;            // records have had their layout since
constexpr std::uint32_t kNewestMajor = 13;       // another major may lay them out anew
constexpr std::uint32_t kDeadlocks = 130000;     // when kernels are turned off; mended in update 1
constexpr std::uint32_t kGraphIdsRight = 130101; // before, a second session gets wrong correlation ids from graphs

}  // namespace

std::string cupti_version_text(std::uint32_t version) {
  if (version >= kFirstNewNumber) return fmt::format("{}.{} ({})", version / 10000, version / 100 % 100, version);
  for (const auto& [number, release] : kOldNumbers) {
    if (number == version) return fmt::format("{} ({})", release, version);
  }
  return fmt::format("unknown ({})", version);
}

std::string cupti_version_refusal(std::uint32_t version) {
  const std::string text = cupti_version_text(version);
  if (version < kOldest) return "CUPTI " + text + " is too old: 12.0 or newer is needed";
  if (version == kDeadlocks) return "CUPTI " + text + " can hang when it is turned off: install 13.0 update 1 or newer";
  if (version >= kFirstNewNumber && version / 10000 > kNewestMajor) {
    return "CUPTI " + text + " is newer than this build knows, which is 13";
  }
  return {};
}

std::vector<KernelNote> kernel_notes(const KernelStats& stats) {
  std::vector<KernelNote> notes;
  const auto note = [&](const char* text, std::uint64_t count) {
    if (count != 0) notes.push_back({text, count});
  };
  note("activity records of kernels that CUPTI dropped for want of buffers", stats.dropped);
  note("buffers of activity records that CUPTI was refused", stats.buffers_refused);
  note("buffers of activity records that were given up unread", stats.buffers_given_up);
  note("buffers of activity records that ended in an incomplete one", stats.incomplete);
  note("activity records that were given up to bound memory", stats.join.given_up);
  note("kernel launches whose times never came", stats.join.launches_without_kernel);
  note("kernels without times", stats.join.untimed);
  note("kernels without a name", stats.join.unnamed);
  note("kernels that no watched op launched", stats.join.without_op);
  note("launches that could not be tied to an op", stats.tags_failed);
  if (stats.late) note("kernels of CUDA graphs that were made before kernels were watched, if there are any", 1);
  if (stats.second_session && stats.version < kGraphIdsRight && stats.version >= kFirstNewNumber) {
    note("CUDA graphs: CUPTI before 13.1 update 1 may tie their kernels to other ops in a second session", 1);
  }
  return notes;
}

std::string not_watched_note(const std::string& why) { return "kernels: not watched, because " + why; }

}  // namespace nanhunt::hooks
