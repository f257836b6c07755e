// SPDX-License-Identifier: Apache-2.0
// Looks at this machine. Libraries are opened, asked for their version and closed again; no CUDA context is made.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "kernels/cpu/simd.h"
#include "tools/nanhunt/environment/environment.h"

namespace nanhunt::cli {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

// The first of these that loads, and where it lies.
class OpenLibrary {
 public:
  OpenLibrary(LibraryFact& fact, const std::vector<std::string>& names, const char* symbol) {
    std::string first_error;
    for (const std::string& name : names) {
      handle_ = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
      if (handle_ != nullptr) {
        fact.name = name.substr(name.rfind('/') + 1);
        break;
      }
      const char* error = dlerror();
      if (first_error.empty() && error != nullptr) first_error = error;
    }
    if (handle_ == nullptr) {
      fact.why_not = first_error.empty() ? "it could not be loaded" : first_error;
      return;
    }
    symbol_ = dlsym(handle_, symbol);
    Dl_info info{};
    fact.path =
        symbol_ != nullptr && dladdr(symbol_, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : fact.name;
  }
  ~OpenLibrary() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  OpenLibrary(const OpenLibrary&) = delete;
  OpenLibrary& operator=(const OpenLibrary&) = delete;
  template <typename Function>
  Function function() const {
    return reinterpret_cast<Function>(symbol_);
  }

 private:
  void* handle_ = nullptr;
  void* symbol_ = nullptr;
};

std::vector<std::string> toolkit_roots() {
  std::vector<std::string> roots;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const std::string value = variable(name); !value.empty() && value.front() == '/') roots.push_back(value);
  }
  std::string path = variable("PATH");
  for (std::size_t at = 0; at < path.size();) {
    const std::size_t end = std::min(path.find(':', at), path.size());
    const fs::path nvcc = fs::path(path.substr(at, end - at)) / "nvcc";
    std::error_code error;
    if (fs::exists(nvcc, error)) {
      const fs::path real = fs::canonical(nvcc, error);
      if (!error) roots.push_back(real.parent_path().parent_path().string());
    }
    at = end + 1;
  }
  roots.emplace_back("/usr/local/cuda");
  return roots;
}

// As the runtime's header says; 0: there is none.
int version_of_toolkit(const std::string& root) {
  std::ifstream header(root + "/include/cuda_runtime_api.h");
  std::string line;
  constexpr std::string_view kWord = "#define CUDART_VERSION";
  for (int lines = 0; lines < 20000 && std::getline(header, line); ++lines) {
    if (line.starts_with(kWord)) return std::atoi(line.c_str() + kWord.size());
  }
  return 0;
}

void find_toolkit(EnvironmentFacts& facts) {
  for (const std::string& root : toolkit_roots()) {
    facts.toolkit_version = version_of_toolkit(root);
    if (facts.toolkit_version == 0) continue;
    facts.toolkit_path = root;
    return;
  }
}

LibraryFact find_cublas(const std::string& stem, const char* symbol) {
  std::vector<std::string> names = {stem + ".so.13", stem + ".so.12", stem + ".so"};
  for (const std::string& root : toolkit_roots()) {
    names.push_back(root + "/lib64/" + stem + ".so.13");
    names.push_back(root + "/lib64/" + stem + ".so.12");
  }
  LibraryFact fact;
  fact.name = stem + ".so";
  const OpenLibrary library(fact, names, symbol);
  // Asked without a handle, which would make a context: 0 major, 1 minor, 2 patch.
  if (const auto property = library.function<int (*)(int, int*)>()) {
    std::array<int, 3> parts{};
    bool told = true;
    for (int part = 0; part < 3; ++part) told = told && property(part, &parts[static_cast<std::size_t>(part)]) == 0;
    if (told) fact.version = std::to_string(parts[0]) + "." + std::to_string(parts[1]) + "." + std::to_string(parts[2]);
  }
  return fact;
}

}  // namespace

EnvironmentFacts gather_environment() {
  EnvironmentFacts facts;
  facts.cpu_path = kernels::simd_name(kernels::active_simd());
  facts.cpu_best = "scalar";
  for (const kernels::Simd path : kernels::kAllSimd) {
    if (kernels::simd_supported(path)) facts.cpu_best = kernels::simd_name(path);
  }
  facts.simd_override = variable("NANHUNT_SIMD");
  facts.built_for = parse_architectures(NANHUNT_BUILT_ARCHITECTURES);
  facts.built_with_cuda = NANHUNT_BUILT_CUDA_MAJOR != 0;
  facts.runtime_version = NANHUNT_BUILT_CUDA_MAJOR * 1000 + NANHUNT_BUILT_CUDA_MINOR * 10;
  find_toolkit(facts);
  {
    facts.driver.name = "libcuda.so.1";
    const OpenLibrary driver(facts.driver, {"libcuda.so.1"}, "cuDriverGetVersion");
    const auto version = driver.function<int (*)(int*)>();
    if (version != nullptr && version(&facts.driver_version) != 0) facts.driver_version = 0;
  }
  facts.devices = kernels::query_devices(facts.why_no_device);
  facts.cupti = hooks::probe_cupti();
  facts.libraries = {find_cublas("libcublas", "cublasGetProperty"), find_cublas("libcublasLt", "cublasLtGetProperty")};
  facts.python = gather_python_facts();
  return facts;
}

}  // namespace nanhunt::cli
