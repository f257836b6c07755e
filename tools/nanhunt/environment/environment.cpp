// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/environment/environment.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "reports/json/json_values.h"
#include "reports/views/numbers.h"
#include "reports/text/text_layout.h"
#include "src/core/text.h"

namespace nanhunt::cli {
namespace {

using namespace reports;
using nlohmann::json;

constexpr int kOldestMajor = 7, kOldestMinor = 5;  // what CUDA 13 still makes code for
constexpr std::size_t kLabelWidth = 11;

std::string capability(int major, int minor) { return std::to_string(major) + "." + std::to_string(minor); }

std::string built_text(const std::vector<BuiltArchitecture>& built_for) {
  std::string text;
  for (const BuiltArchitecture& one : built_for) {
    text += (text.empty() ? "" : ", ") + capability(one.major, one.minor) + (one.ptx ? " as PTX" : "");
  }
  return text;
}

std::string joined(const std::vector<std::string_view>& words) {
  std::string text;
  for (const std::string_view word : words) text.append(text.empty() ? "" : ", ").append(word);
  return text;
}

std::string_view readiness_name(Readiness level) {
  switch (level) {
    case Readiness::kInfo:
      return "info";
    case Readiness::kWarning:
      return "warning";
    case Readiness::kProblem:
      return "problem";
  }
  return "info";
}

std::string_view code_path_name(CodePath path) {
  switch (path) {
    case CodePath::kBinary:
      return "binary";
    case CodePath::kPtx:
      return "ptx";
    case CodePath::kNone:
      return "none";
    case CodePath::kUnknown:
      return "unknown";
  }
  return "unknown";
}

// A device that this program has code for, but perhaps not in a form that this driver can use.
void judge_device(const EnvironmentFacts& facts, const kernels::DeviceInfo& device,
                  std::vector<EnvironmentFinding>& out) {
  const std::string name = "GPU " + std::to_string(device.index) + " (" + device.name + ", compute capability " +
                           capability(device.compute_major, device.compute_minor) + ")";
  const bool too_old = device.compute_major < kOldestMajor ||
                       (device.compute_major == kOldestMajor && device.compute_minor < kOldestMinor);
  const CodePath path = code_path(facts.built_for, device.compute_major, device.compute_minor);
  if (too_old) {
    out.push_back({Readiness::kProblem, "unsupported_device",
                   name + " is older than 7.5, the oldest that CUDA 13 makes code for.",
                   "Use a GPU of the Turing generation or newer, or the CPU."});
  } else if (path == CodePath::kNone) {
    out.push_back({Readiness::kProblem, "no_code_for_device",
                   name + " cannot run this build, which has code for " + built_text(facts.built_for) + ".",
                   "Build again with -DCMAKE_CUDA_ARCHITECTURES=" +
                       std::to_string(10 * device.compute_major + device.compute_minor) + "."});
  } else if (path == CodePath::kPtx && facts.driver_version != 0 && facts.driver_version < facts.runtime_version) {
    out.push_back({Readiness::kProblem, "ptx_too_new",
                   name + " can run this build only through PTX of CUDA " + cuda_version_text(facts.runtime_version) +
                       ", which a driver for CUDA " + cuda_version_text(facts.driver_version) + " cannot compile.",
                   "Update the driver, or build again with -DCMAKE_CUDA_ARCHITECTURES=" +
                       std::to_string(10 * device.compute_major + device.compute_minor) + "."});
  } else if (path == CodePath::kPtx) {
    out.push_back(
        {Readiness::kWarning, "ptx_only",
         name + " has no code of its own in this build: the driver compiles PTX at the first use of each kernel, and "
                "keeps it in its cache.",
         "For a quick start build again with -DCMAKE_CUDA_ARCHITECTURES=" +
             std::to_string(10 * device.compute_major + device.compute_minor) + "."});
  }
}

}  // namespace

std::string cuda_version_text(int version) {
  return version <= 0 ? std::string() : std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::vector<BuiltArchitecture> parse_architectures(std::string_view list) {
  std::vector<BuiltArchitecture> out;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find_first_of(";,"), list.size());
    std::string_view word = list.substr(0, end);
    list.remove_prefix(std::min(end + 1, list.size()));
    int number = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc() || number < 10 || number > 999) continue;
    word.remove_prefix(static_cast<std::size_t>(rest - word.data()));
    if (!word.empty() && (word.front() == 'a' || word.front() == 'f')) word.remove_prefix(1);
    // Without a suffix CMake makes both.
    if (word != "-virtual") out.push_back({number / 10, number % 10, false});
    if (word != "-real") out.push_back({number / 10, number % 10, true});
  }
  return out;
}

CodePath code_path(const std::vector<BuiltArchitecture>& built_for, int major, int minor) {
  CodePath best = built_for.empty() ? CodePath::kUnknown : CodePath::kNone;
  for (const BuiltArchitecture& one : built_for) {
    // Binaries run on later minor versions of their own generation, PTX on everything later.
    if (!one.ptx && one.major == major && one.minor <= minor) return CodePath::kBinary;
    if (one.ptx && (one.major < major || (one.major == major && one.minor <= minor))) best = CodePath::kPtx;
  }
  return best;
}

std::vector<std::string_view> arithmetic_formats(int major, int minor) {
  const int at = 10 * major + minor;
  std::vector<std::string_view> formats = {"fp32", "fp64"};
  if (at >= 53) formats.emplace_back("fp16");
  if (at >= 80) formats.emplace_back("bf16");
  return formats;
}

std::vector<std::string_view> tensor_core_formats(int major, int minor) {
  const int at = 10 * major + minor;
  std::vector<std::string_view> formats;
  if (at >= 70) formats.emplace_back("fp16");
  if (at >= 72) formats.emplace_back("int8");
  if (at >= 80) formats.insert(formats.end(), {"bf16", "tf32", "fp64"});
  if (at >= 89) formats.insert(formats.end(), {"e4m3", "e5m2"});
  return formats;
}

std::vector<EnvironmentFinding> judge_environment(const EnvironmentFacts& f) {
  std::vector<EnvironmentFinding> out;
  if (!f.simd_override.empty() && f.simd_override != f.cpu_path) {
    out.push_back({Readiness::kWarning, "simd_override",
                   "NANHUNT_SIMD asks for " + f.simd_override + ", and " + f.cpu_path + " is used.",
                   "Name scalar, avx2 or avx512, and none that this CPU lacks."});
  } else if (!f.simd_override.empty() && f.cpu_path != f.cpu_best) {
    out.push_back({Readiness::kInfo, "simd_lowered",
                   "NANHUNT_SIMD lowers the vector instructions from " + f.cpu_best + " to " + f.cpu_path + ".", ""});
  }
  if (!f.built_with_cuda) {
    out.push_back({Readiness::kInfo, "built_without_cuda", "This build uses the CPU alone: it was made without CUDA.",
                   "To watch runs of the bundled engine on a GPU, build with -DNANHUNT_CUDA=ON where a CUDA toolkit of "
                   "version 13 "
                   "is installed."});
  } else if (f.driver.path.empty()) {
    out.push_back({Readiness::kInfo, "no_driver", "There is no NVIDIA driver here: " + f.driver.why_not + ".",
                   "On a machine with a GPU install the driver (for CUDA " + cuda_version_text(f.runtime_version) +
                       " or newer); in a container hand the GPU in, as with --gpus all."});
  } else {
    if (f.driver_version != 0 && f.driver_version / 1000 < f.runtime_version / 1000) {
      out.push_back(
          {Readiness::kProblem, "driver_too_old",
           "The driver runs CUDA up to " + cuda_version_text(f.driver_version) + ", and this build needs " +
               cuda_version_text(f.runtime_version / 1000 * 1000) + " or newer.",
           "Update the driver, or build with a toolkit of version " + std::to_string(f.driver_version / 1000) + "."});
    } else if (f.devices.empty()) {
      out.push_back(
          {Readiness::kProblem, "no_device", "The driver is there, but no GPU can be used: " + f.why_no_device + ".",
           "Look at nvidia-smi and CUDA_VISIBLE_DEVICES; in a container hand the GPU in, as with --gpus all."});
    }
    for (const kernels::DeviceInfo& device : f.devices) judge_device(f, device, out);
    for (const LibraryFact& library : f.libraries) {
      if (!library.path.empty()) continue;
      out.push_back({Readiness::kProblem, "no_cublas", library.name + " was not found: " + library.why_not + ".",
                     "Install cuBLAS of the CUDA toolkit, and put its folder into LD_LIBRARY_PATH."});
    }
    if (!f.devices.empty() && !f.cupti.usable) {
      out.push_back({Readiness::kWarning, "no_cupti", "Kernels cannot be tied to operations: " + f.cupti.why_not + ".",
                     f.cupti.path.empty()
                         ? "Install CUPTI of the CUDA toolkit, or set CUDA_HOME to where it is."
                         : "End what else uses CUPTI (a profiler, a debugger), or install the version named here."});
    }
  }
  judge_python(f, out);
  std::stable_sort(out.begin(), out.end(),
                   [](const EnvironmentFinding& a, const EnvironmentFinding& b) { return a.level > b.level; });
  return out;
}

namespace {

json library_to_json(const LibraryFact& library) {
  return {{"name", json_text(library.name)},
          {"found", !library.path.empty()},
          {"path", json_text_or_null(library.path)},
          {"version", json_text_or_null(library.version)},
          {"why_not", json_text_or_null(library.why_not)}};
}

std::string_view tap_name(TapState state) {
  switch (state) {
    case TapState::kNotPossible:
      return "not_possible";
    case TapState::kFailed:
      return "failed";
    case TapState::kToCompile:
      return "to_compile";
    case TapState::kCached:
      return "cached";
    case TapState::kPrebuilt:
      return "prebuilt";
  }
  return "not_possible";
}

json python_to_json(const PythonFacts& p) {
  json releases = json::array();
  for (const std::string& release : p.prebuilt_for) releases.push_back(json_text(release));
  return {{"package", json_text_or_null(p.package)},
          {"library",
           {{"path", json_text_or_null(p.library)},
            {"version", json_text_or_null(p.library_version)},
            {"why_not", json_text_or_null(p.why_no_library)}}},
          {"path", json_text_or_null(p.python)},
          {"version", json_text_or_null(p.python_version)},
          {"why_not", json_text_or_null(p.why_no_python)},
          {"torch",
           {{"version", json_text_or_null(p.torch)},
            {"cuda", json_text_or_null(p.torch_cuda)},
            {"why_not", json_text_or_null(p.why_no_torch)}}},
          {"tap",
           {{"state", tap_name(p.tap)},
            {"path", json_text_or_null(p.tap_path)},
            {"why_not", json_text_or_null(p.why_no_tap)},
            {"listens", json_text_or_null(p.listens)},
            {"compiler", json_text_or_null(p.compiler)},
            {"cache", json_text_or_null(p.cache)},
            {"prebuilt_for", std::move(releases)}}}};
}

std::string listens_text(const PythonFacts& p) {
  if (p.listens.empty()) return "";
  std::string place = clip(p.listens, kNameLimit);
  std::replace(place.begin(), place.end(), '_', ' ');
  return ", listens " + place;
}

std::string tap_text(const PythonFacts& p) {
  switch (p.tap) {
    case TapState::kPrebuilt:
      return "prebuilt, " + clip(p.tap_path, kSentenceLimit) + listens_text(p);
    case TapState::kCached:
      return "cached, " + clip(p.tap_path, kSentenceLimit) + listens_text(p);
    case TapState::kToCompile:
      return "compiled at first use, with " + clip(p.compiler, kSentenceLimit);
    case TapState::kFailed:
      return "failed to compile: " + clip(p.why_no_tap, kSentenceLimit);
    case TapState::kNotPossible:
      break;
  }
  return "not possible: " + clip(p.why_no_tap, kSentenceLimit);
}

json formats_to_json(const std::vector<std::string_view>& formats) {
  json out = json::array();
  for (const std::string_view format : formats) out.push_back(format);
  return out;
}

json version_to_json(int version) { return json_text_or_null(cuda_version_text(version)); }

std::string_view code_text(CodePath path) {
  switch (path) {
    case CodePath::kBinary:
      return "code in this build";
    case CodePath::kPtx:
      return "code through PTX";
    case CodePath::kNone:
      return "no code in this build";
    case CodePath::kUnknown:
      break;
  }
  return "not known whether this build has code for it";
}

std::string library_text(const LibraryFact& library) {
  if (library.path.empty()) return "not found: " + clip(library.why_not, kSentenceLimit);
  return (library.version.empty() ? "" : clip(library.version, kNameLimit) + ", ") + clip(library.path, kSentenceLimit);
}

}  // namespace

json environment_to_json(const EnvironmentFacts& f) {
  json devices = json::array(), findings = json::array(), libraries = json::array(), built = json::array();
  for (const kernels::DeviceInfo& d : f.devices) {
    devices.push_back({{"index", d.index},
                       {"name", json_text(d.name)},
                       {"compute_capability", capability(d.compute_major, d.compute_minor)},
                       {"memory_bytes", json_count(d.memory_bytes)},
                       {"multiprocessors", d.multiprocessors},
                       {"code", code_path_name(code_path(f.built_for, d.compute_major, d.compute_minor))},
                       {"arithmetic", formats_to_json(arithmetic_formats(d.compute_major, d.compute_minor))},
                       {"tensor_cores", formats_to_json(tensor_core_formats(d.compute_major, d.compute_minor))}});
  }
  for (const EnvironmentFinding& one : judge_environment(f)) {
    findings.push_back({{"level", readiness_name(one.level)},
                        {"key", one.key},
                        {"what", json_text(one.what)},
                        {"todo", json_text_or_null(one.todo)}});
  }
  for (const LibraryFact& library : f.libraries) libraries.push_back(library_to_json(library));
  for (const BuiltArchitecture& one : f.built_for) {
    built.push_back({{"compute_capability", capability(one.major, one.minor)}, {"ptx", one.ptx}});
  }
  json driver = library_to_json(f.driver);
  driver["cuda"] = version_to_json(f.driver_version);
  return {{"schema", "nanhunt.environment"},
          {"schema_version", 1},
          {"cpu",
           {{"simd", json_text(f.cpu_path)},
            {"simd_best", json_text(f.cpu_best)},
            {"NANHUNT_SIMD", json_text_or_null(f.simd_override)}}},
          {"build",
           {{"cuda", f.built_with_cuda},
            {"cuda_version", version_to_json(f.runtime_version)},
            {"architectures", std::move(built)}}},
          {"toolkit", {{"path", json_text_or_null(f.toolkit_path)}, {"version", version_to_json(f.toolkit_version)}}},
          {"driver", std::move(driver)},
          {"devices", std::move(devices)},
          {"why_no_device", json_text_or_null(f.why_no_device)},
          {"cupti",
           {{"built", f.cupti.built},
            {"path", json_text_or_null(f.cupti.path)},
            {"version", json_text_or_null(f.cupti.version_text)},
            {"usable", f.cupti.usable},
            {"why_not", json_text_or_null(f.cupti.why_not)}}},
          {"libraries", std::move(libraries)},
          {"python", python_to_json(f.python)},
          {"findings", std::move(findings)}};
}

std::string environment_to_text(const EnvironmentFacts& f, bool colour, int width) {
  TextLayout out(colour, width);
  const auto fact = [&](std::string_view label, const std::string& value) { out.fact(label, value, kLabelWidth); };
  constexpr std::string_view kFirst = "PyTorch";
  out.raw("  " + out.ink(kFirst, Ink::kDim) + std::string(kLabelWidth + 2 - kFirst.size(), ' ') + pytorch_line(f));
  out.blank();
  fact("CPU", clip(f.cpu_path, kNameLimit) + " (best: " + clip(f.cpu_best, kNameLimit) + ")");
  fact("Build", !f.built_with_cuda ? "without CUDA"
                                   : "CUDA " + cuda_version_text(f.runtime_version) +
                                         (f.built_for.empty() ? "" : ", code for " + built_text(f.built_for)));
  fact("Toolkit", f.toolkit_path.empty() ? "not found"
                                         : (f.toolkit_version == 0 ? "" : cuda_version_text(f.toolkit_version) + ", ") +
                                               clip(f.toolkit_path, kSentenceLimit));
  fact("Driver", library_text(f.driver) +
                     (f.driver_version == 0 ? "" : ", for CUDA up to " + cuda_version_text(f.driver_version)));
  const hooks::CuptiFacts& cupti = f.cupti;
  std::string cupti_text = cupti.path.empty() ? ""
                                              : (cupti.version_text.empty() ? "" : cupti.version_text + ", ") +
                                                    clip(cupti.path, kSentenceLimit);
  cupti_text += cupti_text.empty() ? "" : ": ";
  fact("CUPTI", cupti_text + (cupti.usable ? "usable" : "not usable, " + clip(cupti.why_not, kSentenceLimit)));
  for (const LibraryFact& library : f.libraries) fact(clip(library.name, kNameLimit), library_text(library));
  if (f.devices.empty()) fact("GPUs", "none: " + clip(f.why_no_device, kSentenceLimit));
  for (const kernels::DeviceInfo& d : f.devices) {
    const CodePath path = code_path(f.built_for, d.compute_major, d.compute_minor);
    fact("GPU " + std::to_string(d.index),
         clip(d.name, kNameLimit) + ", compute capability " + capability(d.compute_major, d.compute_minor) + ", " +
             format_bytes(d.memory_bytes) + ", " + std::to_string(d.multiprocessors) + " multiprocessors; " +
             std::string(code_text(path)));
    fact("", "computes in " + joined(arithmetic_formats(d.compute_major, d.compute_minor)));
    const auto cores = tensor_core_formats(d.compute_major, d.compute_minor);
    fact("", cores.empty() ? "no tensor cores" : "tensor cores take " + joined(cores));
  }
  const PythonFacts& p = f.python;
  fact("libnanhunt", p.library.empty() ? "not usable: " + clip(p.why_no_library, kSentenceLimit)
                                       : (p.library_version.empty() ? "" : clip(p.library_version, kNameLimit) + ", ") +
                                             clip(p.library, kSentenceLimit));
  fact("Python", p.python.empty() ? "not asked: " + clip(p.why_no_python, kSentenceLimit)
                                  : clip(p.python_version, kNameLimit) + ", " + clip(p.python, kSentenceLimit));
  fact("Tap", tap_text(p));
  const auto findings = judge_environment(f);
  if (!findings.empty()) out.heading("What to know");
  for (const EnvironmentFinding& one : findings) {
    const Ink ink = one.level == Readiness::kProblem   ? Ink::kRed
                    : one.level == Readiness::kWarning ? Ink::kYellow
                                                       : Ink::kDim;
    out.raw("  " + out.ink(std::string("[").append(readiness_name(one.level)).append("]"), ink));
    out.paragraph(printable(one.what), 4);
    if (!one.todo.empty()) out.paragraph(printable(one.todo), 4, "do: ");
  }
  return out.take();
}

}  // namespace nanhunt::cli
