// SPDX-License-Identifier: Apache-2.0
#include "hooks/cupti/fake/fake_cupti.h"

#include <cuda.h>
#include <cupti.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <utility>

namespace {

using nanhunt::fake::FakeCupti;
using nanhunt::fake::FakeKernel;
using Bytes = std::vector<std::uint8_t>;

std::recursive_mutex mutex;
FakeCupti fake;
CUpti_CallbackFunc callback = nullptr;
void* callback_data = nullptr;
CUpti_BuffersCallbackRequestFunc on_request = nullptr;
CUpti_BuffersCallbackCompleteFunc on_complete = nullptr;
std::set<int> kinds;
std::set<CUpti_CallbackId> calls_told;
std::vector<Bytes> records, held;
std::deque<std::string> names;  // records point into it
struct Buffer {
  std::uint8_t* data;
  std::size_t size;
};
std::vector<Buffer> kept;
std::uint32_t next_correlation = 1;
thread_local std::map<int, std::vector<std::uint64_t>> stacks;

void log(const std::string& call) { fake.calls.push_back(call); }

template <typename Record>
Bytes bytes_of(const Record& record) {
  Bytes bytes(sizeof record);
  std::memcpy(bytes.data(), &record, sizeof record);
  return bytes;
}

std::size_t size_of(int kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return sizeof(CUpti_ActivityExternalCorrelation);
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(CUpti_ActivityKernel10);
    case CUPTI_ACTIVITY_KIND_DRIVER:
    case CUPTI_ACTIVITY_KIND_RUNTIME: return sizeof(CUpti_ActivityAPI);
    default: return 0;
  }
}

std::uint32_t record_call(CUpti_CallbackId call) {
  const std::uint32_t correlation = next_correlation++;
  // As CUPTI 13.0 does it: where launches of the runtime are not recorded, nothing is tied to them.
  if (!kinds.contains(CUPTI_ACTIVITY_KIND_DRIVER)) return correlation;
  if (kinds.contains(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION) && kinds.contains(CUPTI_ACTIVITY_KIND_RUNTIME)) {
    for (const auto& [kind, stack] : stacks) {  // one of each kind: what is on top
      if (stack.empty()) continue;
      CUpti_ActivityExternalCorrelation record{};
      record.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
      record.externalKind = static_cast<CUpti_ExternalCorrelationKind>(kind);
      record.externalId = stack.back();
      record.correlationId = correlation;
      records.push_back(bytes_of(record));
    }
  }
  CUpti_ActivityAPI record{};
  record.kind = CUPTI_ACTIVITY_KIND_DRIVER;
  record.cbid = call;
  record.correlationId = correlation;
  records.push_back(bytes_of(record));
  return correlation;
}

void launch(const std::vector<FakeKernel>& kernels, bool graph) {
  std::lock_guard lock(mutex);
  const std::uint32_t correlation =
      record_call(graph ? CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch : CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel);
  if (!kinds.contains(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)) return;
  std::uint64_t node = 1;
  for (const FakeKernel& kernel : kernels) {
    CUpti_ActivityKernel10 record{};
    record.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    record.correlationId = correlation;
    record.start = kernel.start;
    record.end = kernel.end;
    if (!kernel.name.empty()) record.name = names.emplace_back(kernel.name).c_str();
    if (graph) {
      record.graphId = 7;
      record.graphNodeId = node++;
    }
    (fake.hold_kernels ? held : records).push_back(bytes_of(record));
  }
}

void other_call() {
  std::lock_guard lock(mutex);
  record_call(CUPTI_DRIVER_TRACE_CBID_cuDriverGetVersion);
}

bool ask(Buffer& buffer) {
  std::size_t most = 0;
  buffer = {};
  on_request(&buffer.data, &buffer.size, &most);
  if (buffer.data == nullptr) return false;
  ++fake.buffers_out;
  for (std::size_t i = 0; i < buffer.size; ++i) {
    if (buffer.data[i] != 0) fake.dirty.push_back(i);
  }
  return true;
}

void hand_over(const Buffer& buffer, std::size_t valid) {
  --fake.buffers_out;
  on_complete(nullptr, 0, buffer.data, buffer.size, valid);
}

bool take_buffer() {
  std::lock_guard lock(mutex);
  Buffer buffer{};
  if (!ask(buffer)) return false;
  kept.push_back(buffer);
  return true;
}

void return_buffers(bool incomplete) {
  std::lock_guard lock(mutex);
  for (const Buffer& buffer : std::exchange(kept, {})) {
    CUpti_ActivityAPI record{};
    record.kind = CUPTI_ACTIVITY_KIND_DRIVER;
    record.correlationId = next_correlation++;
    std::memcpy(buffer.data, &record, sizeof record);
    buffer.data[buffer.size - 1] = 1;  // of a record that was begun
    hand_over(buffer, sizeof record + (incomplete ? 8 : 0));
  }
}

// Fills buffers with what there is, as a flush does.
void deliver(bool forced) {
  if (on_request == nullptr) return;
  if (!fake.hold_kernels || forced) records.insert(records.end(), held.begin(), held.end()), held.clear();
  if (fake.shuffle != 0) {
    std::mt19937 random(fake.shuffle);
    std::shuffle(records.begin(), records.end(), random);
  }
  std::size_t at = 0;
  while (at < records.size()) {
    Buffer buffer{};
    if (!ask(buffer)) break;
    std::size_t used = 0;
    while (at < records.size() && used + records[at].size() <= buffer.size) {
      std::memcpy(buffer.data + used, records[at].data(), records[at].size());
      used += records[at++].size();
    }
    hand_over(buffer, used);
  }
  fake.dropped += records.size() - at;
  records.clear();
}

CUptiResult subscribe(const char* name, CUpti_SubscriberHandle* handle, CUpti_CallbackFunc function, void* data) {
  log(std::string("subscribe ") + name);
  if (fake.subscribe_result != 0) return static_cast<CUptiResult>(fake.subscribe_result);
  callback = function;
  callback_data = data;
  *handle = reinterpret_cast<CUpti_SubscriberHandle>(&fake);
  return CUPTI_SUCCESS;
}

void reset() {
  callback = nullptr;
  kinds.clear();
  calls_told.clear();
  records.clear();
  held.clear();
  stacks.clear();  // of the thread that finalizes
}

void start_over() {
  std::lock_guard lock(mutex);
  reset();
  fake = {};
  callback_data = nullptr;
  on_request = nullptr;
  on_complete = nullptr;
  names.clear();
  kept.clear();
  next_correlation = 1;
  fake_cupti();
}

}  // namespace

extern "C" {

FakeCupti* fake_cupti() {
  fake.start_over = &start_over;
  fake.launch = &launch;
  fake.other_call = &other_call;
  fake.take_buffer = &take_buffer;
  fake.return_buffers = &return_buffers;
  return &fake;
}

void fake_cupti_start_over() { start_over(); }

void fake_cupti_refuse(int result, const char* incumbent) {
  std::lock_guard lock(mutex);
  fake.subscribe_result = result;
  fake.incumbent = incumbent;
}

void fake_cupti_launch(const char* name, std::uint64_t start, std::uint64_t end) {
  launch({{name, start, end}}, false);
}

const char* fake_cupti_calls() {
  static std::string text;
  std::lock_guard lock(mutex);
  text.clear();
  for (const std::string& call : fake.calls) text += call + "\n";
  return text.c_str();
}

CUptiResult CUPTIAPI cuptiGetVersion(uint32_t* version) {
  *version = fake.version;
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiSubscribe(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc function, void* data) {
  std::lock_guard lock(mutex);
  return subscribe("without a name", handle, function, data);
}

#ifndef NANHUNT_FAKE_OLD
CUptiResult CUPTIAPI cuptiSubscribe_v2(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc function, void* data,
                                       CUpti_SubscriberParams* params) {
  std::lock_guard lock(mutex);
  if (params->structSize != CUpti_SubscriberParams_STRUCT_SIZE) return CUPTI_ERROR_INVALID_PARAMETER;
  if (params->oldSubscriberName != nullptr && params->oldSubscriberSize >= CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN) {
    std::strncpy(params->oldSubscriberName, fake.incumbent.c_str(), params->oldSubscriberSize);
  }
  return subscribe(params->subscriberName, handle, function, data);
}
#endif

CUptiResult CUPTIAPI cuptiUnsubscribe(CUpti_SubscriberHandle) {
  std::lock_guard lock(mutex);
  log("unsubscribe");
  callback = nullptr;
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle, CUpti_CallbackDomain domain,
                                         CUpti_CallbackId call) {
  std::lock_guard lock(mutex);
  log((enable != 0 ? "tell of call " : "tell no more of call ") + std::to_string(call));
  if (domain != CUPTI_CB_DOMAIN_DRIVER_API) return CUPTI_ERROR_INVALID_PARAMETER;
  if (enable != 0) {
    calls_told.insert(call);
  } else {
    calls_told.erase(call);
  }
  return CUPTI_SUCCESS;
}

#ifndef NANHUNT_FAKE_BROKEN
CUptiResult CUPTIAPI cuptiFinalize() {
  std::lock_guard lock(mutex);
  log("finalize");
  reset();
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id) {
  if (fake.on_push) fake.on_push();
  if (fake.push_result != 0) return static_cast<CUptiResult>(fake.push_result);
  stacks[kind].push_back(id);
  return CUPTI_SUCCESS;
}
#endif

CUptiResult CUPTIAPI cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t* last) {
  auto& stack = stacks[kind];
  if (stack.empty()) return CUPTI_ERROR_QUEUE_EMPTY;
  *last = stack.back();
  stack.pop_back();
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                                    CUpti_BuffersCallbackCompleteFunc complete) {
  std::lock_guard lock(mutex);
  log("buffers");
  on_request = request;
  on_complete = complete;
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivitySetAttribute(CUpti_ActivityAttribute attribute, size_t*, void*) {
  std::lock_guard lock(mutex);
  log("set " + std::to_string(attribute));
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityEnable(CUpti_ActivityKind kind) {
  std::lock_guard lock(mutex);
  log("enable " + std::to_string(kind));
  if (kind == fake.refused_kind) return CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
  kinds.insert(kind);
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityDisable(CUpti_ActivityKind kind) {
  std::lock_guard lock(mutex);
  log("disable " + std::to_string(kind));
  kinds.erase(kind);
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityFlushAll(uint32_t flag) {
  if (fake.on_flush) fake.on_flush();
  std::lock_guard lock(mutex);
  deliver(flag != 0);
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, CUpti_Activity** record) {
  auto* const at = *record == nullptr ? buffer : reinterpret_cast<uint8_t*>(*record) + size_of((*record)->kind);
  if (at >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  auto* const next = reinterpret_cast<CUpti_Activity*>(at);
  if (size_of(next->kind) == 0) return CUPTI_ERROR_INVALID_KIND;
  *record = next;
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* dropped) {
  std::lock_guard lock(mutex);
  *dropped = std::exchange(fake.dropped, 0);
  return CUPTI_SUCCESS;
}

// The driver's part.
CUresult CUDAAPI cuDriverGetVersion(int* version) {
  *version = 13000;
  if (!fake.driver_calls_back) return CUDA_SUCCESS;
  for (const CUpti_ApiCallbackSite site : {CUPTI_API_ENTER, CUPTI_API_EXIT}) {
    if (callback == nullptr || !calls_told.contains(CUPTI_DRIVER_TRACE_CBID_cuDriverGetVersion)) break;
    CUpti_CallbackData data{};
    data.callbackSite = site;
    log(site == CUPTI_API_ENTER ? "driver call begins" : "driver call ends");
    callback(callback_data, CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuDriverGetVersion, &data);
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice, unsigned int* flags, int* active) {
  *flags = 0;
  *active = fake.context_active ? 1 : 0;
  return CUDA_SUCCESS;
}

}  // extern "C"
