// SPDX-License-Identifier: Apache-2.0
// Readings on a stream: records in device memory, their copies in pinned memory, an event for each copy.
#include "kernels/cuda/device_readings.h"

#include <cuda_runtime.h>

#include <exception>
#include <utility>

#include "kernels/cuda/origin_histograms.h"
#include "kernels/cuda/element_evidence.h"
#include "kernels/cuda/device_guard.h"
#include "kernels/cuda/stats_launches.h"

namespace nanhunt::kernels::cuda {
namespace {

class CudaReadings final : public ReadingsPort {
 public:
  CudaReadings(int device, cudaStream_t stream) : device_(device), stream_(stream) {}
  ~CudaReadings() override {
    const DeviceGuard guard(device_);
    // Copies may be under way; where the device is lost this fails at once, and so does the rest.
    static_cast<void>(cudaStreamSynchronize(stream_));
    for (const cudaEvent_t event : events_) static_cast<void>(cudaEventDestroy(event));
    static_cast<void>(cudaFree(updates_));
    static_cast<void>(cudaFreeHost(host_));
    static_cast<void>(cudaFree(records_));
    static_cast<void>(cudaFree(checks_.references));
    static_cast<void>(cudaFree(gates_));
    static_cast<void>(cudaFree(partials_));
    static_cast<void>(cudaFree(so_far_));
    static_cast<void>(cudaFreeHost(arena_));
    static_cast<void>(cudaFree(origins_.used));
    static_cast<void>(cudaGetLastError());
  }

  Status open(const ReadingsOptions& options) {
    const DeviceGuard guard(device_);
    DeviceStatsOptions stats;
    stats.device = device_;
    stats.max_items = options.max_items;
    stats.check_memory = false;  // the engine's own
    auto made = DeviceStats::create(stats);
    if (!made) return made.status();
    stats_ = std::move(*made);
    if (Status s = status_of(open_evidence(so_far_, stream_), "elements cannot be looked at there"); !s) return s;
    if (Status s = status_of(open_updates(updates_, stream_), "updates cannot be looked at there"); !s) return s;
    const std::size_t bytes = options.tensors * sizeof(DeviceStatsRecord);
    void* got = nullptr;
    if (Status s = status_of(cudaMalloc(&got, bytes), "no memory for results on the device"); !s) return s;
    records_ = static_cast<DeviceStatsRecord*>(got);
    if (Status s = status_of(cudaHostAlloc(&got, bytes, cudaHostAllocDefault), "no pinned memory for results"); !s) {
      return s;
    }
    host_ = static_cast<DeviceStatsRecord*>(got);
    if (Status s = status_of(load_finite(), "numbers cannot be looked at there"); !s) return s;
    if (Status s = status_of(cudaMalloc(&got, kFiniteGates * sizeof(std::uint32_t)), "no memory on the device"); !s) return s;
    gates_ = static_cast<std::uint32_t*>(got);
    if (Status s = status_of(cudaMemsetAsync(got, 0, kFiniteGates * sizeof(std::uint32_t), stream_),
                             "memory could not be cleared");
        !s)
      return s;
    gated_.reserve(kTensorsInParameters);
    if (options.references > 0) {
      max_items_ = options.max_items;
      const std::size_t partials = max_items_ * sizeof(StatsPartial);
      if (Status s = status_of(cudaMalloc(&got, partials), "no memory for looks at contents on the device"); !s) {
        return s;
      }
      partials_ = static_cast<StatsPartial*>(got);
      if (Status s = open_checks(options.references + 1, got); !s) return s;
      if (options.arena_words > 0) {
        if (Status s = open_origins(options, got); !s) return s;
      }
    }
    for (int i = 0; i < options.copies; ++i) {
      cudaEvent_t event = nullptr;
      if (Status s = status_of(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event"); !s) return s;
      events_.push_back(event);
    }
    return Status::ok();
  }

  Status launch(std::span<const DeviceTensor> tensors, std::size_t first) override {
    return stats_->enqueue(tensors, {records_ + first, checks_.gates, known_}, stream_);
  }
  Status launch(const DeviceStatsView& view, std::uint32_t tag, std::size_t slot) override {
    return stats_->enqueue(view, tag, {records_ + slot, checks_.gates, known_}, stream_);
  }
  Status look(std::span<const DeviceTensor> tensors, std::size_t made, std::size_t first) override {
    const DeviceGuard guard(device_);
    FiniteKernel kernel{records_ + first, gates_, gate_, gate_after(gate_), static_cast<std::uint32_t>(tensors.size()), {}};
    std::uint32_t items = 0;
    for (std::size_t i = 0; i < made; ++i) {
      const DeviceTensor& one = tensors[i];
      const auto count = static_cast<std::uint64_t>(one.count);
      kernel.table.entries[i] = make_entry(reinterpret_cast<std::uint64_t>(one.data), count, one.dtype, items, 0);
      items += static_cast<std::uint32_t>(stats_items(count * element_bytes(one.dtype)));
    }
    kernel.table.tensors = static_cast<std::uint32_t>(made);
    if (Status s = status_of(cuda::launch(kernel, items, stream_), "numbers could not be looked at"); !s) return s;
    gated_.assign(tensors.begin(), tensors.end());
    for (DeviceTensor& one : gated_) one.tag = gate_;
    gate_ = gate_after(gate_);
    return stats_->enqueue(gated_, {records_ + first, gates_, nullptr}, stream_);
  }
  Status launch(std::span<const ChecksumStatsTensor> tensors, std::size_t first) override {
    const DeviceGuard guard(device_);
    ChecksumStatsCall call;
    call.memory = {checks_, partials_, records_, known_};
    call.memory.checks.checks = reinterpret_cast<DeviceChecks*>(records_ + first);
    const std::uint32_t items = fill_checksum_stats(tensors, call.table);
    if (items > max_items_) return {StatusCode::kUsage, "contents of more work items than a launch may have"};
    return status_of(cuda::launch(ChecksumStatsKernel{call}, items, stream_), "contents could not be looked at");
  }
  Status launch(const CheckedTensor& tensor, std::size_t slot) override {
    const DeviceGuard guard(device_);
    ChecksumMemory memory = checks_;
    memory.checks = reinterpret_cast<DeviceChecks*>(records_ + slot);
    return status_of(cuda::launch(ChecksumKernel{memory, {tensor.view, tensor.reference}}, stream_), "contents could not be checked");
  }
  Status launch(const EvidenceCall& call, std::size_t of, std::size_t slot, const OriginPlan* origins,
                std::size_t origins_slot) override {
    const DeviceGuard guard(device_);
    EvidenceKernel kernel{call, records_ + of, so_far_, reinterpret_cast<DeviceEvidence*>(records_ + slot)};
    if (origins != nullptr) kernel.origins = decision(*origins, origins_slot);
    return status_of(launch_evidence(kernel, stream_), "elements could not be looked at");
  }
  Status launch(const UpdatesCall& call, std::size_t slot) override {
    const DeviceGuard guard(device_);
    const LostUpdatesKernel kernel{call, updates_, reinterpret_cast<DeviceUpdates*>(records_ + slot)};
    return status_of(launch_updates(kernel, stream_), "updates could not be looked at");
  }
  Status launch(const OriginPlan& plan, std::size_t slot) override {
    const DeviceGuard guard(device_);
    return status_of(launch_origins(decision(plan, slot), stream_), "origins could not be looked for");
  }
  Status launch(std::span<const DeviceStatsView> views) override {
    return histograms_->enqueue_histograms(views, origins_.places, arena_on_device_, stream_);
  }
  const std::uint64_t* arena() const override { return arena_; }
  Status copy(std::size_t first, std::size_t count) override {
    const DeviceGuard guard(device_);
    return status_of(cudaMemcpyAsync(host_ + first, records_ + first, count * sizeof(DeviceStatsRecord),
                                     cudaMemcpyDeviceToHost, stream_),
                     "results could not be copied");
  }
  Status mark(std::size_t which) override {
    const DeviceGuard guard(device_);
    return status_of(cudaEventRecord(events_[which], stream_), "the end of a copy");
  }
  Mark look(std::size_t which) override {
    const DeviceGuard guard(device_);
    const cudaError_t state = state_of(events_[which]);
    if (state == cudaSuccess) return Mark::kReached;
    return state == cudaErrorNotReady ? Mark::kPending : Mark::kFailed;
  }
  Status wait(std::size_t which) override {
    const DeviceGuard guard(device_);
    return status_of(cudaEventSynchronize(events_[which]), "the device did not answer");
  }
  const DeviceStatsRecord* records() const override { return host_; }

 private:
  OriginKernel decision(const OriginPlan& plan, std::size_t slot) const {
    return {plan, origins_, reinterpret_cast<DeviceOrigins*>(records_ + slot)};
  }

  // The arena is mapped, for it is written once in a long while, and the host need not ask for what it does not know
  // of.
  Status open_origins(const ReadingsOptions& options, void*& got) {
    DeviceStatsOptions stats;
    stats.device = device_;
    stats.max_items = options.max_items;
    stats.max_tensors = kMaxOriginTensors;
    stats.histograms = true;
    stats.check_memory = false;
    auto made = DeviceStats::create(stats);
    if (!made) return made.status();
    histograms_ = std::move(*made);
    if (Status s = status_of(load_origins(), "origins cannot be looked for on this device"); !s) return s;
    const std::size_t bytes = options.arena_words * sizeof(std::uint64_t);
    if (Status s = status_of(cudaHostAlloc(&got, bytes, cudaHostAllocMapped), "no pinned memory for histograms"); !s)
      return s;
    arena_ = static_cast<std::uint64_t*>(got);
    if (Status s = status_of(cudaHostGetDevicePointer(&got, arena_, 0), "pinned memory is not mapped"); !s) return s;
    arena_on_device_ = static_cast<std::uint64_t*>(got);
    const std::size_t words = 1 + kMaxOriginTensors;
    const std::size_t small = words * sizeof(std::uint64_t);
    if (Status s = status_of(cudaMalloc(&got, small), "no memory for origins on the device"); !s) return s;
    origins_.used = static_cast<std::uint64_t*>(got);
    origins_.places = reinterpret_cast<std::uint32_t*>(origins_.used + 1);  // by tag, from 1
    origins_.records = records_;
    origins_.known = known_;
    origins_.words = options.arena_words;
    return status_of(cudaMemsetAsync(origins_.used, 0, small, stream_), "memory for origins could not be cleared");
  }

  // One piece of memory: references, sums of tensors, gates, tickets, what is known of contents; all 0.
  Status open_checks(std::size_t references, void*& got) {
    const std::size_t words = references + kChecksInParameters;
    const std::size_t bytes =
        words * (sizeof(std::uint64_t) + sizeof(std::uint32_t)) + references * sizeof(std::uint32_t);
    if (Status s = status_of(cudaMalloc(&got, bytes), "no memory for checksums on the device"); !s) return s;
    checks_.references = static_cast<std::uint64_t*>(got);
    checks_.sums = checks_.references + references;
    checks_.gates = reinterpret_cast<std::uint32_t*>(checks_.references + words);
    checks_.tickets = checks_.gates + references;
    known_ = checks_.tickets + kChecksInParameters;
    if (Status s = status_of(load_checks(), "checksums cannot run on this device"); !s) return s;
    // In the stream whose launches use it.
    return status_of(cudaMemsetAsync(got, 0, bytes, stream_), "memory for checksums could not be cleared");
  }

  int device_;
  cudaStream_t stream_;
  ChecksumMemory checks_;
  std::uint32_t* gates_ = nullptr;  // of looks
  std::uint32_t gate_ = 1;
  std::vector<DeviceTensor> gated_;  // of the look at hand
  StatsPartial* partials_ = nullptr;
  std::uint64_t max_items_ = 0;
  EvidenceSoFar* so_far_ = nullptr;
  std::uint32_t* known_ = nullptr;
  OriginMemory origins_;
  std::unique_ptr<DeviceStats> histograms_;
  std::uint64_t *arena_ = nullptr, *arena_on_device_ = nullptr;
  std::unique_ptr<DeviceStats> stats_;
  LostUpdatesKernel::Memory* updates_ = nullptr;
  DeviceStatsRecord* records_ = nullptr;
  DeviceStatsRecord* host_ = nullptr;
  std::vector<cudaEvent_t> events_;
};

}  // namespace

std::unique_ptr<ReadingsPort> open_readings_port(int device, DeviceStream stream, const ReadingsOptions& options,
                                                 std::string& why) {
  auto port = std::make_unique<CudaReadings>(device, static_cast<cudaStream_t>(stream));
  if (const Status status = port->open(options); !status) {
    why = status.message();
    return nullptr;
  }
  return port;
}

}  // namespace nanhunt::kernels::cuda
