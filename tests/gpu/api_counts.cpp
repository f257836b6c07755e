// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/api_counts.h"

#include <dlfcn.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <string_view>

#include "hooks/cupti/kernel_watch.h"

namespace nanhunt::gpu {
namespace {

// As cupti_callbacks.h has them.
constexpr int kDriverApi = 1, kRuntimeApi = 2;
struct CallData {
  int site;  // 0: the call begins
  const char* function;
};
using Callback = void (*)(void* user, int domain, std::uint32_t id, const void* data);
using Subscribe = int (*)(void** subscriber, Callback callback, void* user);
using Unsubscribe = int (*)(void* subscriber);
using EnableDomain = int (*)(std::uint32_t enable, void* subscriber, int domain);

// Beginnings of names; versions and per-thread forms end in _v2, _ptsz and the like. Copies from pageable memory to the
// host wait as well, and so do those without "Async".
bool waits(std::string_view name) {
  constexpr std::string_view kWaiting[] = {"cuStreamSynchronize",    "cuCtxSynchronize",      "cuEventSynchronize",
                                           "cudaStreamSynchronize",  "cudaDeviceSynchronize", "cudaEventSynchronize",
                                           "cuMemcpyDtoH",           "cuMemFree",             "cudaFree"};
  const bool copy = (name.starts_with("cuMemcpy") || name.starts_with("cudaMemcpy")) &&
                    name.find("Async") == std::string_view::npos && name.find("DtoD") == std::string_view::npos;
  if (name.find("Async") != std::string_view::npos) return false;
  return copy || std::any_of(std::begin(kWaiting), std::end(kWaiting),
                             [&](std::string_view waiting) { return name.starts_with(waiting); });
}

bool of_driver(std::string_view name) { return name.starts_with("cu") && !name.starts_with("cuda"); }

}  // namespace

struct ApiCounts::Impl {
  void* subscriber = nullptr;
  Unsubscribe unsubscribe = nullptr;
  mutable std::mutex mutex;
  std::map<std::string, std::uint64_t> calls;

  static void on_call(void* user, int domain, std::uint32_t, const void* data) {
    if (domain != kDriverApi && domain != kRuntimeApi) return;
    const auto& call = *static_cast<const CallData*>(data);
    if (call.site != 0 || call.function == nullptr) return;
    auto& self = *static_cast<Impl*>(user);
    const std::lock_guard lock(self.mutex);
    ++self.calls[call.function];
  }
};

Result<std::unique_ptr<ApiCounts>> ApiCounts::subscribe(const std::string& library) {
  const hooks::CuptiFacts facts = hooks::probe_cupti({.library = library});
  if (facts.path.empty()) return Status(StatusCode::kNotFound, "CUPTI: " + facts.why_not);
  void* opened = dlopen(facts.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) return Status(StatusCode::kNotFound, std::string("CUPTI: ") + dlerror());
  const auto subscribe = reinterpret_cast<Subscribe>(dlsym(opened, "cuptiSubscribe"));
  const auto enable = reinterpret_cast<EnableDomain>(dlsym(opened, "cuptiEnableDomain"));
  const auto unsubscribe = reinterpret_cast<Unsubscribe>(dlsym(opened, "cuptiUnsubscribe"));
  if (subscribe == nullptr || enable == nullptr || unsubscribe == nullptr) {
    return Status(StatusCode::kNotFound, "CUPTI: " + facts.path + " lacks callbacks");
  }
  std::unique_ptr<ApiCounts> counts(new ApiCounts);
  counts->impl_ = std::make_unique<Impl>();
  if (const int refused = subscribe(&counts->impl_->subscriber, &Impl::on_call, counts->impl_.get()); refused != 0) {
    counts->impl_->subscriber = nullptr;
    return Status(StatusCode::kNotFound, "CUPTI refused a subscriber: error " + std::to_string(refused));
  }
  counts->impl_->unsubscribe = unsubscribe;
  for (const int domain : {kDriverApi, kRuntimeApi}) {
    if (const int refused = enable(1, counts->impl_->subscriber, domain); refused != 0) {
      return Status(StatusCode::kNotFound, "CUPTI refused its callbacks: error " + std::to_string(refused));
    }
  }
  return counts;
}

ApiCounts::~ApiCounts() {
  if (impl_ && impl_->subscriber != nullptr && impl_->unsubscribe != nullptr) impl_->unsubscribe(impl_->subscriber);
}

void ApiCounts::clear() {
  const std::lock_guard lock(impl_->mutex);
  impl_->calls.clear();
}

std::map<std::string, std::uint64_t> ApiCounts::calls() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->calls;
}

std::uint64_t host_waits(const std::map<std::string, std::uint64_t>& calls) {
  const bool driver = std::any_of(calls.begin(), calls.end(), [](const auto& call) { return of_driver(call.first); });
  std::uint64_t count = 0;
  for (const auto& [name, times] : calls) count += of_driver(name) == driver && waits(name) ? times : 0;
  return count;
}

std::string described_waits(const std::map<std::string, std::uint64_t>& calls) {
  std::string text;
  for (const auto& [name, times] : calls) {
    if (waits(name)) text += (text.empty() ? "" : ", ") + name + " " + std::to_string(times);
  }
  return text.empty() ? "none" : text;
}

}  // namespace nanhunt::gpu
