// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/findings/ignored.h"

#include <fmt/format.h>

#include <algorithm>

namespace nanhunt::analyze {
namespace {

// "encoder" holds "encoder.pad", not "encoder2".
bool holds(std::string_view path, std::string_view name) {
  return name == path || (name.starts_with(path) && name.size() > path.size() && name[path.size()] == '.');
}

bool rests_on(const Finding& f, std::string_view path) {
  return (f.place.module && holds(path, *f.place.module)) || (f.tensor && holds(path, f.tensor->name)) ||
         (!f.call_site.empty() && f.call_site == path);
}

}  // namespace

void tell_ignored(std::vector<Finding>& findings, const Coverage& coverage) {
  for (const auto& [note, count] : coverage.notes) {
    if (!note.starts_with(kIgnoredNote)) continue;
    const std::string_view named = std::string_view(note).substr(kIgnoredNote.size());
    const std::size_t end = named.find(": ");
    const std::string_view path = named.substr(0, end);
    if (path.empty() || end == std::string_view::npos) continue;
    const std::string reason(named.substr(end + 2));
    for (Finding& f : findings) {
      if (f.severity == Severity::kInfo || !f.ignored.empty() || !rests_on(f, path)) continue;
      f.severity = Severity::kInfo;
      f.ignored = reason.empty() ? "no reason given" : reason;
      f.title += fmt::format("; ignored by the user: {}", f.ignored);
      f.explanation = fmt::format("The user of the run names {} as harmless: {}. {}", path, f.ignored, f.explanation);
    }
  }
}

std::string ignored_harm(const std::vector<Finding>& findings) {
  std::string told;
  for (const Finding& f : findings) {
    const bool trained = std::any_of(f.sinks.begin(), f.sinks.end(), [](const std::string& sink) {
      return sink == "loss" || sink.starts_with("gradient") || sink.starts_with("parameter") || sink.starts_with("optimizer");
    });
    if (f.ignored.empty() || !trained || told.find(f.ignored) != std::string::npos) continue;
    told += (told.empty() ? "" : "; ") + f.ignored;
  }
  return told;
}

}  // namespace nanhunt::analyze
