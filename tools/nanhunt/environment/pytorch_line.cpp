// SPDX-License-Identifier: Apache-2.0
// The line that doctor --env begins with: "2.11.0 (Python 3.12) · tap built in · CUDA 13.0, no GPU here". What is to
// be done is that of the findings.
#include <algorithm>
#include <cctype>

#include "reports/views/numbers.h"
#include "tools/nanhunt/environment/environment.h"

namespace nanhunt::cli {
namespace {

using reports::clip;
using reports::kNameLimit;
using reports::kSentenceLimit;

// ": install g++", of "Install g++."; "": there is nothing to do.
std::string do_this(std::string todo) {
  if (todo.empty()) return todo;
  if (todo.back() == '.') todo.pop_back();
  const bool is_word = todo.size() < 2 || std::isupper(static_cast<unsigned char>(todo[1])) == 0;
  if (is_word) todo[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(todo[0])));
  return ": " + clip(todo, kSentenceLimit);
}

std::string todo_of(const std::vector<EnvironmentFinding>& findings, std::string_view key) {
  const auto found = std::find_if(findings.begin(), findings.end(), [&](const auto& one) { return one.key == key; });
  return found == findings.end() ? "" : do_this(found->todo);
}

bool is_there(const std::vector<EnvironmentFinding>& findings, std::string_view key) {
  return std::any_of(findings.begin(), findings.end(), [&](const auto& one) { return one.key == key; });
}

// "3.12" of "3.12.3".
std::string minor_version(const std::string& version) {
  const std::size_t dot = version.find('.');
  return dot == std::string::npos ? version : version.substr(0, version.find('.', dot + 1));
}

std::string tap_words(const PythonFacts& p) {
  switch (p.tap) {
    case TapState::kPrebuilt:
      return "tap built in";
    case TapState::kCached:
      return "tap in the cache";
    case TapState::kToCompile:
      return "tap compiled at first use (about 20 s)";
    case TapState::kFailed:
    case TapState::kNotPossible:
      break;
  }
  return "no tap, because " + clip(p.why_no_tap, kSentenceLimit) + do_this(tap_todo(p));
}

std::string gpu_words(const EnvironmentFacts& f) {
  if (f.devices.size() == 1) return clip(f.devices[0].name, kNameLimit);
  if (!f.devices.empty()) return std::to_string(f.devices.size()) + " GPUs";
  if (f.driver.path.empty()) return "no GPU here";
  if (f.built_with_cuda) return "no GPU that can be used: " + clip(f.why_no_device, kSentenceLimit);
  return f.driver_version == 0 ? "a driver" : "a driver for CUDA up to " + cuda_version_text(f.driver_version);
}

std::string cuda_words(const EnvironmentFacts& f, const std::vector<EnvironmentFinding>& findings) {
  if (f.python.torch_cuda.empty()) {
    return f.devices.empty() ? "without CUDA"
                             : "without CUDA, though there is a GPU" + todo_of(findings, "torch_without_cuda");
  }
  const std::string cuda = "CUDA " + clip(f.python.torch_cuda, kNameLimit);
  if (is_there(findings, "torch_cuda_too_new"))
    return cuda + ", the driver runs " + cuda_version_text(f.driver_version) + todo_of(findings, "torch_cuda_too_new");
  return cuda + ", " + gpu_words(f) + todo_of(findings, "no_device");
}

}  // namespace

std::string pytorch_line(const EnvironmentFacts& f) {
  const PythonFacts& p = f.python;
  const std::vector<EnvironmentFinding> findings = judge_environment(f);
  if (p.package.empty())
    return "not watched, the Python package is not beside this program" + todo_of(findings, "no_package");
  if (p.python.empty())
    return "not known, because " + clip(p.why_no_python, kSentenceLimit) + todo_of(findings, "no_python");
  const std::string python = "Python " + clip(minor_version(p.python_version), kNameLimit);
  std::string line;
  if (p.torch.empty()) {
    line = is_there(findings, "no_torch")
               ? "none in " + clip(p.python, kSentenceLimit) + todo_of(findings, "no_torch")
               : "cannot be imported by " + clip(p.python, kSentenceLimit) + ", because " +
                     clip(p.why_no_torch, kSentenceLimit) + todo_of(findings, "broken_torch");
  } else {
    line = clip(p.torch.substr(0, p.torch.find('+')), kNameLimit) + " (" + python + ") · " + tap_words(p) + " · " +
           cuda_words(f, findings);
  }
  if (p.library.empty())
    line += " · no libnanhunt.so, because " + clip(p.why_no_library, kSentenceLimit) + todo_of(findings, "no_library");
  return line;
}

}  // namespace nanhunt::cli
