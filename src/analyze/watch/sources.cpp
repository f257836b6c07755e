// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/watch/sources.h"

#include <algorithm>

namespace nanhunt::analyze {
namespace {

constexpr std::size_t kMaxLines = 11;  // of one frame, as FORMAT.md has it

std::vector<std::string> lines_of(const std::string& code) {
  std::vector<std::string> lines;
  std::size_t at = 0;
  while (at < code.size() && lines.size() < kMaxLines) {
    const std::size_t end = std::min(code.find('\n', at), code.size());
    lines.push_back(code.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

}  // namespace

void Sources::on_frame(const FrameRecord& record) {
  const std::string& site = names_.text(record.site);
  if (site.empty()) return;
  if (sites_.size() >= kMaxSites && !sites_.contains(site)) return;
  Site& known = sites_[site];
  // The first stack that is told of a site is the one that counts.
  known.complete = known.complete || (record.depth == 0 && !known.frames.empty());
  if (known.complete || record.depth != known.frames.size() || known.frames.size() >= kMaxFrames) return;
  known.frames.push_back(record);
}

void Sources::on_setup(const SetupRecord& record) {
  if (record.fact != SetupFact::kModule) return;
  const std::string& path = names_.text(record.path);
  if (classes_.size() < kMaxModules) classes_.try_emplace(path, record.text);
}

void Sources::fill(Finding& finding) const {
  if (finding.place.module) {
    const auto known = classes_.find(*finding.place.module);
    if (known != classes_.end()) finding.module_class = names_.text(known->second);
  }
  const auto site = sites_.find(finding.call_site);
  if (site == sites_.end() || finding.call_site.empty()) return;
  for (const FrameRecord& record : site->second.frames) {
    finding.frames.push_back({names_.text(record.file), record.line, names_.text(record.function), record.first_line,
                              lines_of(names_.text(record.code))});
  }
}

}  // namespace nanhunt::analyze
