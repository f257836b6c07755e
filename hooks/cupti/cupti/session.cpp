// SPDX-License-Identifier: Apache-2.0
#include "hooks/cupti/cupti/session.h"

#include <cuda.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "hooks/cupti/cupti/buffers.h"

namespace nanhunt::hooks {
namespace {

constexpr std::size_t kDeviceBuffers = 16;  // of about 3 MB of device memory; CUPTI's own limit is 250
constexpr std::size_t kNameBytes = 128;

}  // namespace

Status CuptiSession::subscribe() {
  const CuptiCalls& calls = library_.calls;
  std::array<char, kNameBytes> incumbent{};
  CUptiResult result = CUPTI_SUCCESS;
  if (calls.subscribe_v2 != nullptr) {
    CUpti_SubscriberParams params{};
    params.structSize = CUpti_SubscriberParams_STRUCT_SIZE;
    params.subscriberName = "nanhunt";
    params.oldSubscriberName = incumbent.data();
    params.oldSubscriberSize = incumbent.size() - 1;
    result = calls.subscribe_v2(&subscriber_, &on_call, this, &params);
  } else {
    result = calls.subscribe(&subscriber_, &on_call, this);
  }
  if (result == CUPTI_SUCCESS) return {};
  subscriber_ = nullptr;
  if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
    const std::string name =
        incumbent[0] == '\0' ? "a profiler or debugger that does not say its name" : incumbent.data();
    return {StatusCode::kUnsupported, fmt::format("CUPTI has room for one client and {} is there", name)};
  }
  const char* hint = result == CUPTI_ERROR_UNKNOWN || result == CUPTI_ERROR_NOT_INITIALIZED
                         ? "; without an NVIDIA driver that is to be expected"
                         : "";
  return {StatusCode::kUnsupported,
          fmt::format("CUPTI {} refused a subscription: {}{}", library_.path, library_.describe(result), hint)};
}

Status CuptiSession::enable(CUpti_ActivityKind kind) {
  const CUptiResult result = library_.calls.enable(kind);
  if (result == CUPTI_SUCCESS) return {};
  return {StatusCode::kUnsupported,
          fmt::format("CUPTI refused activity kind {}: {}", static_cast<int>(kind), library_.describe(result))};
}

Status CuptiSession::start() {
  const CuptiCalls& calls = library_.calls;
  const auto set = [&](CUpti_ActivityAttribute attribute, auto value) {
    std::size_t size = sizeof value;
    return calls.set_attribute(attribute, &size, &value);  // a limit it does not know is no reason to give up
  };
  set(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT, kDeviceBuffers);
  set(CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER, std::uint8_t{1});
  const CUptiResult registered = calls.register_callbacks(&ActivityBuffers::on_request, &ActivityBuffers::on_complete);
  if (registered != CUPTI_SUCCESS) {
    return {StatusCode::kUnsupported, "CUPTI refused buffers: " + library_.describe(registered)};
  }
  Status status = enable(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION);
  if (!status) return status;
  ids_ = true;
  status = enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  if (!status) return status;
  kernels_ = true;
  // Without API records no correlation record appears, and launches of the runtime have those of the runtime alone: seen
  // with CUPTI 13.0, where driver calls that are enabled one by one bring none.
  for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_ACTIVITY_KIND_RUNTIME}) {
    status = enable(kind);
    if (!status) return status;
    (kind == CUPTI_ACTIVITY_KIND_DRIVER ? driver_ : runtime_) = true;
  }
  return {};
}

bool CuptiSession::end(const std::string& driver) {
  if (subscriber_ == nullptr) return left_.load();
  const CuptiCalls& calls = library_.calls;
  const bool started = ids_;
  if (runtime_) calls.disable(CUPTI_ACTIVITY_KIND_RUNTIME);
  if (driver_) calls.disable(CUPTI_ACTIVITY_KIND_DRIVER);
  if (kernels_) calls.disable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  if (ids_) calls.disable(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION);
  runtime_ = driver_ = kernels_ = ids_ = false;
  if (started) calls.flush_all(0);
  if (!finalize_from(driver) && subscriber_ != nullptr) calls.unsubscribe(subscriber_);
  subscriber_ = nullptr;
  return left_.load();
}

// Anywhere else than at the exit of a driver call other threads could be inside of what goes away.
bool CuptiSession::finalize_from(const std::string& driver) {
  if (driver.empty()) return false;
  void* const library = dlopen(driver.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  const auto get_version = reinterpret_cast<decltype(&::cuDriverGetVersion)>(dlsym(library, "cuDriverGetVersion"));
  const CuptiCalls& calls = library_.calls;
  constexpr CUpti_CallbackId kCall = CUPTI_DRIVER_TRACE_CBID_cuDriverGetVersion;
  if (get_version == nullptr ||
      calls.enable_callback(1, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API, kCall) != CUPTI_SUCCESS) {
    dlclose(library);
    return false;
  }
  leaving_.store(true);
  int ignored = 0;
  static_cast<void>(get_version(&ignored));
  // Another thread that was in the same call may have got there first.
  for (int wait = 0; leaving_.load() == false && !left_.load() && wait < 1000; ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (leaving_.exchange(false)) calls.enable_callback(0, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API, kCall);
  dlclose(library);
  return left_.load();
}

void CUPTIAPI CuptiSession::on_call(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId, const void* data) {
  auto& session = *static_cast<CuptiSession*>(self);
  if (domain != CUPTI_CB_DOMAIN_DRIVER_API || data == nullptr) return;
  if (static_cast<const CUpti_CallbackData*>(data)->callbackSite != CUPTI_API_EXIT) return;
  if (!session.leaving_.exchange(false)) return;  // once
  const CuptiCalls& calls = session.library_.calls;
  calls.unsubscribe(std::exchange(session.subscriber_, nullptr));
  session.left_.store(calls.finalize() == CUPTI_SUCCESS);
}

bool has_context(const std::string& driver) {
  void* const library = dlopen(driver.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) return false;
  const auto state =
      reinterpret_cast<decltype(&::cuDevicePrimaryCtxGetState)>(dlsym(library, "cuDevicePrimaryCtxGetState"));
  const auto count = reinterpret_cast<decltype(&::cuDeviceGetCount)>(dlsym(library, "cuDeviceGetCount"));
  bool found = false;
  int devices = 0;
  // Both fail where CUDA was not initialised yet.
  if (state != nullptr && count != nullptr && count(&devices) == CUDA_SUCCESS) {
    for (int device = 0; device < devices && !found; ++device) {
      unsigned flags = 0;
      int active = 0;
      found = state(device, &flags, &active) == CUDA_SUCCESS && active != 0;
    }
  }
  dlclose(library);
  return found;
}

}  // namespace nanhunt::hooks
