// SPDX-License-Identifier: Apache-2.0
// The Python package beside this program, and what the Python that a run would use makes of it.
#pragma once

#include <string>
#include <vector>

namespace nanhunt::cli {

// Where the package's start-up file is, from where this program is: in a wheel, in a build tree, where
// `cmake --install` puts it, or where NANHUNT_BOOT_DIR says. Empty: nowhere.
std::string find_boot_dir();

// Where the tap, which hears the operations of PyTorch, comes from. Failed: a compile did, and is not tried again.
enum class TapState { kNotPossible, kFailed, kToCompile, kCached, kPrebuilt };

struct PythonFacts {
  std::string package;  // folder; empty: the package is not beside this program
  std::string library;  // libnanhunt.so; empty: see why_no_library
  std::string library_version, why_no_library;
  std::string python, python_version;  // empty: see why_no_python
  std::string why_no_python;
  std::string torch, why_no_torch;  // release
  std::string torch_cuda;           // "12.6"; empty: built without
  TapState tap = TapState::kNotPossible;
  std::string tap_path, why_no_tap;       // failed: the path is of what remembers that
  std::string listens;                    // at which place of PyTorch's dispatcher: "below_autograd"; empty: not known
  std::vector<std::string> prebuilt_for;  // releases that the package has a tap for
  std::string compiler, cache;
};

// Asks NANHUNT_PYTHON, else `python3`. It imports torch there, and makes nothing.
PythonFacts gather_python_facts();
// Of what tap_build.py printed. False: it is not that.
bool parse_python_facts(const std::string& text, PythonFacts& facts);

}  // namespace nanhunt::cli
