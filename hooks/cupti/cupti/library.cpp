// SPDX-License-Identifier: Apache-2.0
#include "hooks/cupti/cupti/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "hooks/cupti/kernel_watch.h"

namespace nanhunt::hooks {
namespace {

// A second copy in one process would not see what the first one is used for.
std::string loaded_copy() {
  std::string found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* to) {
        const char* path = info->dlpi_name;
        if (path == nullptr) return 0;
        const char* slash = std::strrchr(path, '/');
        const char* name = slash == nullptr ? path : slash + 1;
        if (std::strncmp(name, "libcupti.so", std::strlen("libcupti.so")) != 0) return 0;
        *static_cast<std::string*>(to) = path;
        return 1;
      },
      &found);
  return found;
}

std::vector<std::string> candidates() {
  std::vector<std::string> list = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
  std::vector<std::string> roots;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    const char* value = std::getenv(variable);
    if (value != nullptr && *value == '/') roots.emplace_back(value);
  }
  roots.emplace_back("/usr/local/cuda");
  for (const std::string& root : roots) {
    for (const char* folder : {"/extras/CUPTI/lib64", "/lib64", "/lib"}) {
      for (const char* name : {"/libcupti.so.13", "/libcupti.so.12"}) list.push_back(root + folder + name);
    }
  }
  return list;
}

std::string path_of(const void* address, const std::string& otherwise) {
  Dl_info info{};
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? std::string(info.dli_fname) : otherwise;
}

template <typename Function>
bool resolve(void* library, const char* name, Function& to) {
  to = reinterpret_cast<Function>(dlsym(library, name));
  return to != nullptr;
}

}  // namespace

Status CuptiLibrary::open(const std::string& wanted) {
  void* library = nullptr;
  std::string name = wanted;
  if (!wanted.empty()) {
    library = dlopen(wanted.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* why = dlerror();
      return Status(StatusCode::kNotFound,
                    fmt::format("'{}' could not be loaded: {}", wanted, why == nullptr ? "" : why));
    }
  } else if (name = loaded_copy(); !name.empty()) {
    library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    loaded_before = library != nullptr;
  }
  if (library == nullptr) {
    for (const std::string& candidate : candidates()) {
      library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
      name = candidate;
      if (library != nullptr) break;
    }
  }
  if (library == nullptr) {
    return Status(StatusCode::kNotFound,
                  "libcupti was not found: it comes with the CUDA toolkit; put its folder into LD_LIBRARY_PATH or set "
                  "CUDA_HOME");
  }

  std::string missing;
  const auto need = [&](const char* symbol, auto& to) {
    if (!resolve(library, symbol, to)) missing += (missing.empty() ? "" : ", ") + std::string(symbol);
  };
  need("cuptiGetVersion", calls.get_version);
  need("cuptiSubscribe", calls.subscribe);
  need("cuptiUnsubscribe", calls.unsubscribe);
  need("cuptiEnableCallback", calls.enable_callback);
  need("cuptiFinalize", calls.finalize);
  need("cuptiActivityRegisterCallbacks", calls.register_callbacks);
  need("cuptiActivitySetAttribute", calls.set_attribute);
  need("cuptiActivityEnable", calls.enable);
  need("cuptiActivityDisable", calls.disable);
  need("cuptiActivityFlushAll", calls.flush_all);
  need("cuptiActivityGetNextRecord", calls.get_next_record);
  need("cuptiActivityGetNumDroppedRecords", calls.get_dropped);
  need("cuptiActivityPushExternalCorrelationId", calls.push_id);
  need("cuptiActivityPopExternalCorrelationId", calls.pop_id);
  resolve(library, "cuptiSubscribe_v2", calls.subscribe_v2);
  resolve(library, "cuptiGetResultString", calls.get_result_string);
  if (calls.get_version != nullptr) {
    path = path_of(reinterpret_cast<const void*>(calls.get_version), name);
    if (calls.get_version(&version) != CUPTI_SUCCESS) version = 0;
  }
  if (!missing.empty()) {
    return Status(StatusCode::kUnsupported, fmt::format("{} lacks {}", path.empty() ? name : path, missing));
  }
  const std::string refusal = cupti_version_refusal(version);
  if (!refusal.empty()) return Status(StatusCode::kUnsupported, refusal + " (" + path + ")");
  return {};
}

std::string CuptiLibrary::describe(CUptiResult result) const {
  const char* text = nullptr;
  const auto words = calls.get_result_string;
  if (words == nullptr || words(result, &text) != CUPTI_SUCCESS || text == nullptr) {
    return fmt::format("error {}", static_cast<int>(result));
  }
  return fmt::format("{} ({})", text, static_cast<int>(result));
}

}  // namespace nanhunt::hooks
