// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/watch/sources.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/analyze/wording/text.h"

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

// "in <loss>" becomes "in scale", or "in Net" of a model that has no name.
void name_in(std::string& text, const std::string& module) {
  const std::string outside = "in " + std::string(kOutsideModules);
  for (std::size_t at = 0; (at = text.find(outside, at)) != std::string::npos; at += 3 + module.size())
    text.replace(at, outside.size(), "in " + module);
}

}  // namespace

void Sources::on_frame(const FrameRecord& record) {
  const std::string& site = names_.text(record.site);
  if (site.empty()) return;
  if (sites_.size() >= kMaxSites && !sites_.contains(site)) return;
  Site& known = sites_[site];
  if (record.depth == 0 && known.stacks.size() < kMaxStacks) {
    known.stacks.emplace_back();
    running_.emplace_back(&known, known.stacks.size() - 1);
  }
  if (known.stacks.empty()) return;
  std::vector<FrameRecord>& stack = known.stacks.back().frames;
  if (record.depth != stack.size() || stack.size() >= kMaxFrames) return;
  stack.push_back(record);
}

void Sources::on_step_end(const StepRecord& step) {
  std::erase_if(running_, [&](const auto& one) {
    Stack& stack = one.first->stacks[one.second];
    const bool ended = !stack.frames.empty() && stack.frames.front().seq <= step.end_seq;
    if (ended) stack.step = step.step;
    return ended;
  });
}

// The stack that was told right before the op or after it in its step, else what all of the site's have in common,
// innermost first.
std::vector<FrameRecord> Sources::stack_of(const Site& site, const OpPlace& at) {
  constexpr std::uint64_t kMostRows = 256;  // of one call
  const Stack* found = nullptr;
  for (std::size_t i = site.stacks.size(); i-- > 0;) {
    const Stack& stack = site.stacks[i];
    // An evaluation after a step belongs to it or to the next one.
    const std::uint32_t step = stack.step.value_or(at.step);
    if (stack.frames.empty() || step > at.step + 1 || at.step > step + 1) continue;
    const std::uint64_t told = stack.frames.front().seq;
    if (told >= at.seq && told - at.seq <= kMostRows) found = &site.stacks[i];
  }
  if (found != nullptr) return found->frames;
  std::vector<FrameRecord> shared = site.stacks.front().frames;
  const auto same = [](const FrameRecord& a, const FrameRecord& b) {
    return a.file == b.file && a.line == b.line && a.function == b.function;
  };
  for (const Stack& other : site.stacks) {
    const auto end = std::mismatch(shared.begin(), shared.end(), other.frames.begin(), other.frames.end(), same).first;
    shared.erase(std::max(end, std::min(shared.begin() + 1, shared.end())), shared.end());
  }
  return shared;
}

void Sources::on_setup(const SetupRecord& record) {
  if (record.fact != SetupFact::kModule) return;
  const std::string& path = names_.text(record.path);
  if (classes_.size() >= kMaxModules || !classes_.try_emplace(path, record.text).second) return;
  const auto [one, added] = modules_.try_emplace(names_.text(record.text), path);
  if (!added) one->second.clear();
}

// Nobody is told that a module runs whose class has a __call__ of its own. Its forward is among the frames, and where one
// module alone is of that class, it is that one.
void Sources::find_module(Finding& finding) const {
  constexpr std::string_view kForward = ".forward";
  if (finding.place.module != kOutsideModules) return;
  for (const SourceFrame& frame : finding.frames) {
    if (!frame.function.ends_with(kForward)) continue;
    const auto known = modules_.find(frame.function.substr(0, frame.function.size() - kForward.size()));
    if (known == modules_.end() || known->second.empty()) return;
    finding.place.module = known->second;
    for (std::string* text : {&finding.title, &finding.explanation}) name_in(*text, known->second);
    for (std::string& text : finding.evidence) name_in(text, known->second);
    return;
  }
}

// The callers of a line, where it is not known which of them led to the op.
std::string Sources::callers_of(const Site& site, std::size_t known) const {
  constexpr std::size_t kMost = 4;
  std::vector<std::string> callers;
  for (const Stack& stack : site.stacks) {
    if (stack.frames.size() <= known) continue;
    const FrameRecord& frame = stack.frames[known];
    const std::string& file = names_.text(frame.file);
    std::string line = fmt::format("{}:{}", file.substr(file.rfind('/') + 1), frame.line);
    if (std::find(callers.begin(), callers.end(), line) == callers.end()) callers.push_back(std::move(line));
  }
  return callers.size() < 2 ? "" : fmt::format("It is called from {}; which of them led to it here is not known.", join(callers, kMost, " and "));
}

void Sources::add_frames(Finding& finding) const {
  const auto site = sites_.find(finding.call_site);
  if (site == sites_.end() || finding.call_site.empty() || site->second.stacks.empty()) return;
  const std::vector<FrameRecord> stack = stack_of(site->second, finding.place);
  if (std::string callers = callers_of(site->second, stack.size()); !callers.empty()) finding.evidence.push_back(std::move(callers));
  for (const FrameRecord& record : stack) {
    finding.frames.push_back({names_.text(record.file), record.line, names_.text(record.function), record.first_line,
                              lines_of(names_.text(record.code))});
  }
}

void Sources::fill(Finding& finding) const {
  add_frames(finding);
  find_module(finding);
  if (!finding.place.module) return;
  const auto known = classes_.find(*finding.place.module);
  if (known != classes_.end()) finding.module_class = names_.text(known->second);
}

}  // namespace nanhunt::analyze
