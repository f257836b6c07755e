// SPDX-License-Identifier: Apache-2.0
// What a machine offers to nanhunt: driver, toolkit, CUPTI, cuBLAS, devices, the CPU; what does not fit together, and
// what to do about it. Facts are gathered in one place and judged in another, so that the judging is tested without a
// GPU.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/cupti/kernel_watch.h"
#include "kernels/device_query.h"
#include "tools/nanhunt/environment/python_package.h"

namespace nanhunt::cli {

// A library that is opened at run time.
struct LibraryFact {
  std::string name;     // soname looked for
  std::string path;     // empty: not found
  std::string version;  // "13.1.0"; empty: it does not say
  std::string why_not;
};

// A device's code in this program: for one architecture, or PTX that the driver compiles for it and newer ones.
struct BuiltArchitecture {
  int major = 0, minor = 0;
  bool ptx = false;
  bool operator==(const BuiltArchitecture&) const = default;
};

struct EnvironmentFacts {
  std::string cpu_path;       // vector instructions in use, "avx2"
  std::string cpu_best;       // the best that CPU and build have
  std::string simd_override;  // NANHUNT_SIMD
  bool built_with_cuda = false;
  int runtime_version = 0;  // of the toolkit that this program was built with, as CUDA counts: 13000 is 13.0
  std::vector<BuiltArchitecture> built_for;
  std::string toolkit_path;  // installed here; empty: none was found
  int toolkit_version = 0;
  LibraryFact driver;
  int driver_version = 0;  // the newest CUDA it can run; 0: not known
  std::vector<kernels::DeviceInfo> devices;
  std::string why_no_device;
  hooks::CuptiFacts cupti;
  std::vector<LibraryFact> libraries;  // cuBLAS and cuBLASLt
  PythonFacts python;
};

EnvironmentFacts gather_environment();
// "75-virtual;80-real;90": CMake's list, also with commas. What makes no sense is left out.
std::vector<BuiltArchitecture> parse_architectures(std::string_view list);

enum class Readiness : std::uint8_t { kInfo, kWarning, kProblem };
struct EnvironmentFinding {
  Readiness level = Readiness::kInfo;
  std::string key;   // stable: "no_driver"
  std::string what;  // one sentence
  std::string todo;  // one sentence; empty: nothing to do
};
// What makes the tap available, as a sentence; "": the reason says it, or it is not known.
std::string tap_todo(const PythonFacts& python);
// Of PyTorch, and what its runs need.
void judge_python(const EnvironmentFacts& facts, std::vector<EnvironmentFinding>& out);
// In order of weight.
std::vector<EnvironmentFinding> judge_environment(const EnvironmentFacts& facts);

// How this program's code gets onto a device.
enum class CodePath : std::uint8_t { kBinary, kPtx, kNone, kUnknown };  // unknown: not known what it was built for
CodePath code_path(const std::vector<BuiltArchitecture>& built_for, int major, int minor);

// Formats that a device of this compute capability computes in, and that its tensor cores take.
std::vector<std::string_view> arithmetic_formats(int major, int minor);
std::vector<std::string_view> tensor_core_formats(int major, int minor);

std::string cuda_version_text(int version);  // "13.0"; "" for 0
// Which PyTorch, which tap, which CUDA, and what to do where one is missing.
std::string pytorch_line(const EnvironmentFacts& facts);
nlohmann::json environment_to_json(const EnvironmentFacts& facts);
std::string environment_to_text(const EnvironmentFacts& facts, bool colour, int width);

}  // namespace nanhunt::cli
