// SPDX-License-Identifier: Apache-2.0
// The memory that statistics kernels share, and their launches.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/cuda/device_guard.h"
#include "kernels/cuda/stats_launches.h"
#include "kernels/device_stats.h"

namespace nanhunt::kernels {
namespace cuda {
namespace {

template <class T>
Status allocate(T*& memory, std::size_t count) {
  void* got = nullptr;
  if (Status status = status_of(cudaMalloc(&got, count * sizeof(T)), "no memory for statistics on the device");
      !status) {
    return status;
  }
  memory = static_cast<T*>(got);
  return Status::ok();
}

Status usage(std::string message) { return {StatusCode::kUsage, "[device statistics] " + std::move(message)}; }

// Whether kernels of `device` may read there.
Status readable(std::uint64_t address, int device) {
  const auto refusal = [device](const std::string& what) {
    return usage("expected memory of device " + std::to_string(device) + ", got " + what);
  };
  cudaPointerAttributes memory{};
  const cudaError_t error = cudaPointerGetAttributes(&memory, reinterpret_cast<const void*>(address));
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return refusal(std::string("an address that cannot be asked about: ") + cudaGetErrorString(error));
  }
  if (memory.type == cudaMemoryTypeUnregistered) return refusal("memory of the host, or none");
  if (memory.type == cudaMemoryTypeDevice && memory.device != device) {
    return refusal("memory of device " + std::to_string(memory.device));
  }
  const bool elsewhere =
      memory.type == cudaMemoryTypeHost && reinterpret_cast<std::uint64_t>(memory.devicePointer) != address;
  return elsewhere ? refusal("memory of the host that is not mapped") : Status::ok();
}

// Items of each tensor before it; false when they are more than a launch may have.
class Counter {
 public:
  explicit Counter(std::uint64_t limit) : limit_(limit) {}
  bool add(std::uint64_t bytes, std::uint32_t& first) {
    first = static_cast<std::uint32_t>(items_);
    items_ += stats_items(bytes);
    return items_ <= limit_;
  }
  std::uint32_t items() const { return static_cast<std::uint32_t>(items_); }

 private:
  std::uint64_t limit_, items_ = 0;
};

class CudaStats final : public DeviceStats {
 public:
  explicit CudaStats(const DeviceStatsOptions& options) : options_(options) {}
  ~CudaStats() override {
    const DeviceGuard guard(options_.device);
    static_cast<void>(cudaFree(memory_.partials));
    static_cast<void>(cudaFree(memory_.tickets));
    static_cast<void>(cudaFree(memory_.accumulators));
    if (setup_ != nullptr) static_cast<void>(cudaStreamDestroy(setup_));
    static_cast<void>(cudaGetLastError());
  }

  Status allocate_all() {
    const DeviceGuard guard(options_.device);
    if (Status s = status_of(cudaSetDevice(options_.device), "the device cannot be used"); !s) return s;
    if (Status s = status_of(cudaStreamCreateWithFlags(&setup_, cudaStreamNonBlocking), "a stream"); !s) return s;
    if (Status s = load_kernels(); !s) return s;
    if (Status s = allocate(memory_.partials, options_.max_items); !s) return s;
    if (Status s = allocate(memory_.tickets, options_.max_tensors); !s) return s;
    if (Status s = clear(memory_.tickets, options_.max_tensors); !s) return s;
    if (!options_.histograms) return Status::ok();
    const std::size_t words = options_.max_tensors * kDetailWords;
    if (Status s = allocate(memory_.accumulators, words); !s) return s;
    return clear(memory_.accumulators, words);
  }

  Status enqueue(const DeviceStatsView& view, std::uint32_t tag, const DeviceStatsTarget& target,
                 DeviceStream stream) override {
    Counter counter(options_.max_items);
    std::uint32_t first = 0;
    if (!counter.add(view.count * element_bytes(view.dtype), first)) return too_many_items();
    const DeviceGuard guard(options_.device);
    if (options_.check_memory && view.count > 0) {
      if (Status s = readable(view.data, options_.device); !s) return s;
    }
    StatsTable table;
    table.view = view;
    table.tag = tag;
    return start(table, 1, counter.items(), target, stream);
  }

  Status enqueue(std::span<const DeviceTensor> tensors, const DeviceStatsTarget& target, DeviceStream stream) override {
    if (tensors.empty()) return Status::ok();
    if (tensors.size() == 1) return enqueue(view_of(tensors[0]), tensors[0].tag, target, stream);
    if (tensors.size() > kTensorsInParameters) {
      return usage("expected at most " + std::to_string(kTensorsInParameters) + " tensors, got " +
                   std::to_string(tensors.size()));
    }
    const DeviceGuard guard(options_.device);
    StatsTable table;
    std::uint32_t items = 0;
    if (Status s = fill(tensors, table.entries, items); !s) return s;
    table.tensors = static_cast<std::uint32_t>(tensors.size());
    return start(table, tensors.size(), items, target, stream);
  }

  Status enqueue_histograms(std::span<const DeviceStatsView> views, const std::uint32_t* gates, std::uint64_t* arena,
                            DeviceStream stream) override {
    if (memory_.accumulators == nullptr || views.size() > kMaxOriginTensors || views.size() > options_.max_tensors) {
      return usage("histograms of so many views were not asked for at creation");
    }
    Counter counter(options_.max_items);
    FewViews table;
    table.tensors = static_cast<std::uint32_t>(views.size());
    for (std::size_t i = 0; i < views.size(); ++i) {
      table.views[i] = views[i];
      if (!counter.add(views[i].count * element_bytes(views[i].dtype), table.first_item[i])) return too_many_items();
    }
    const DeviceGuard guard(options_.device);
    StatsMemory memory = memory_;
    memory.gates = gates;
    memory.arena = arena;
    return status_of(launch(HistogramKernel{memory, table}, counter.items(), static_cast<cudaStream_t>(stream)),
                     "histograms could not be launched");
  }

 private:
  template <class T>
  Status clear(T* memory, std::size_t count) const {
    return status_of(clear_now(memory, count * sizeof(T), setup_), "memory for statistics could not be cleared");
  }

  // Those that will be launched; also where it shows that this build has no code for the device.
  Status load_kernels() const {
    cudaError_t error = load_stats();
    if (error == cudaSuccess && options_.histograms) error = load_histograms();
    return status_of(error, "statistics cannot run on this device");
  }

  static DeviceStatsView view_of(const DeviceTensor& tensor) {
    DeviceStatsView view;
    view.data = reinterpret_cast<std::uint64_t>(tensor.data);
    view.count = static_cast<std::uint64_t>(tensor.count);
    view.dtype = tensor.dtype;
    return view;
  }

  Status too_many_items() const {
    return usage("the tensors have more than " + std::to_string(options_.max_items) +
                 " work items: raise max_items, or launch fewer at a time");
  }

  Status fill(std::span<const DeviceTensor> tensors, TensorEntry* entries, std::uint32_t& items) const {
    Counter counter(options_.max_items);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const DeviceTensor& tensor = tensors[i];
      if (tensor.count < 0 || (tensor.count > 0 && tensor.data == nullptr)) {
        return usage("tensor " + std::to_string(i) + " has no contents");
      }
      const auto address = reinterpret_cast<std::uint64_t>(tensor.data);
      if (options_.check_memory && tensor.count > 0) {
        if (Status s = readable(address, options_.device); !s) {
          return Status(s.code(), s.message() + " (tensor " + std::to_string(i) + ")");
        }
      }
      const auto count = static_cast<std::uint64_t>(tensor.count);
      std::uint32_t first = 0;
      if (!counter.add(count * element_bytes(tensor.dtype), first)) return too_many_items();
      entries[i] = make_entry(address, count, tensor.dtype, first, tensor.tag);
    }
    items = counter.items();
    return Status::ok();
  }

  // With the device current.
  Status start(const StatsTable& table, std::size_t tensors, std::uint32_t items, const DeviceStatsTarget& target,
               DeviceStream stream) {
    if (tensors > options_.max_tensors) {
      return usage("expected at most " + std::to_string(options_.max_tensors) + " tensors (max_tensors), got " +
                   std::to_string(tensors));
    }
    StatsMemory memory = memory_;
    memory.records = target.records;
    memory.gates = target.gates;
    memory.known = target.known;
    return status_of(launch(StatsKernel{memory, table}, items, static_cast<cudaStream_t>(stream)),
                     "statistics could not be launched");
  }

  DeviceStatsOptions options_;
  StatsMemory memory_;
  cudaStream_t setup_ = nullptr;
};

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<DeviceStats>> DeviceStats::create(const DeviceStatsOptions& options) {
  constexpr std::uint64_t kMostBlocks = 0x7fffffff;
  if (options.max_items == 0 || options.max_items > kMostBlocks || options.max_tensors == 0) {
    return cuda::usage("expected max_items from 1 to " + std::to_string(kMostBlocks) + " and max_tensors from 1");
  }
  auto stats = std::make_unique<cuda::CudaStats>(options);
  if (Status status = stats->allocate_all(); !status) return status;
  return std::unique_ptr<DeviceStats>(std::move(stats));
}

}  // namespace nanhunt::kernels
