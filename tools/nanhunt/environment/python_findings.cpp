// SPDX-License-Identifier: Apache-2.0
// What is made of the Python that a run would use: PyTorch, the tap, CUDA builds that do not fit together.
#include <cstdlib>

#include "src/analyze/findings/ops_in_trace.h"
#include "tools/nanhunt/environment/environment.h"

namespace nanhunt::cli {
namespace {

constexpr const char* kStillWorks =
    "Losses, gradients and the loss scaler are watched all the same; so is the bundled engine (`nanhunt train`).";

// "12.6" -> 12060; 0: not that.
int cuda_number(const std::string& text) {
  char* end = nullptr;
  const long major = std::strtol(text.c_str(), &end, 10);
  const long minor = *end == '.' ? std::strtol(end + 1, nullptr, 10) : 0;
  return major > 0 && major < 1000 && minor >= 0 && minor < 100 ? static_cast<int>(1000 * major + 10 * minor) : 0;
}

void judge_torch_cuda(const EnvironmentFacts& f, std::vector<EnvironmentFinding>& out) {
  const int built = cuda_number(f.python.torch_cuda);
  const std::string torch = "PyTorch " + f.python.torch;
  if (built == 0) {
    if (!f.devices.empty()) {
      out.push_back({Readiness::kWarning, "torch_without_cuda",
                     torch + " uses the CPU alone, though there is a GPU: it was built without CUDA.",
                     "Install a build of PyTorch for CUDA " + cuda_version_text(f.driver_version) + " or older."});
    }
    return;
  }
  if (f.driver_version != 0 && f.driver_version / 1000 < built / 1000) {
    out.push_back({Readiness::kProblem, "torch_cuda_too_new",
                   torch + " is built for CUDA " + f.python.torch_cuda + ", and the driver runs CUDA up to " +
                       cuda_version_text(f.driver_version) + ": it will not find the GPU.",
                   "Update the driver, or install a build of PyTorch for CUDA " +
                       std::to_string(f.driver_version / 1000) + "."});
  } else if (f.driver_version == 0 && f.driver.path.empty()) {
    out.push_back({Readiness::kInfo, "torch_cuda_unused",
                   torch + " is built for CUDA " + f.python.torch_cuda + ", and there is no driver: it uses the CPU.", ""});
  }
  if (f.toolkit_version != 0 && f.toolkit_version / 1000 != built / 1000) {
    out.push_back({Readiness::kInfo, "torch_other_toolkit",
                   torch + " is built for CUDA " + f.python.torch_cuda + ", and the toolkit here is " +
                       cuda_version_text(f.toolkit_version) + ": it runs with its own libraries.",
                   "What is compiled against PyTorch's CUDA (extensions) needs a toolkit of version " +
                       std::to_string(built / 1000) + "."});
  }
}

void judge_tap(const PythonFacts& p, std::vector<EnvironmentFinding>& out) {
  if (p.tap == TapState::kNotPossible || p.tap == TapState::kFailed) {
    const std::string todo = tap_todo(p);
    out.push_back({Readiness::kWarning, "no_tap",
                   "Operations of PyTorch " + p.torch + " cannot be watched: " + p.why_no_tap + ".",
                   todo + (todo.empty() ? "" : " ") + kStillWorks});
  } else if (p.tap == TapState::kToCompile) {
    out.push_back({Readiness::kInfo, "tap_to_compile",
                   "The tap for PyTorch " + p.torch + " is compiled at first use (about 20 s) with " + p.compiler +
                       " and kept in " + p.cache + ".",
                   ""});
  }
}

}  // namespace

std::string tap_todo(const PythonFacts& p) {
  if (p.tap == TapState::kFailed && !p.tap_path.empty())
    return "Remove " + p.tap_path + " to have it compiled again, or name another C++ compiler in CXX.";
  return analyze::tap_todo(p.why_no_tap);
}

void judge_python(const EnvironmentFacts& f, std::vector<EnvironmentFinding>& out) {
  const PythonFacts& p = f.python;
  if (p.package.empty()) {
    out.push_back({Readiness::kWarning, "no_package",
                   "The Python package is not beside this program, so `nanhunt run` watches nothing.",
                   "Install both with `pip install .`, or name the package's folder 'boot' in NANHUNT_BOOT_DIR."});
    return;
  }
  if (p.library.empty()) {
    out.push_back({Readiness::kProblem, "no_library",
                   "libnanhunt.so cannot be used, so nothing of PyTorch is recorded: " + p.why_no_library + ".",
                   "Install the package again, or set NANHUNT_LIBRARY to the file."});
  }
  if (p.python.empty()) {
    out.push_back({Readiness::kInfo, "no_python", "No Python could be asked for its PyTorch: " + p.why_no_python + ".",
                   "Name the one that trains in NANHUNT_PYTHON."});
  } else if (p.torch.empty()) {
    const bool missing = p.why_no_torch == "it is not installed";
    out.push_back({missing ? Readiness::kInfo : Readiness::kProblem, missing ? "no_torch" : "broken_torch",
                   (missing ? "There is no PyTorch in " + p.python : p.python + " cannot import torch: " + p.why_no_torch) +
                       ".",
                   missing ? "Name the Python that trains in NANHUNT_PYTHON." : "Install PyTorch again in this Python."});
  } else {
    judge_tap(p, out);
    judge_torch_cuda(f, out);
  }
}

}  // namespace nanhunt::cli
