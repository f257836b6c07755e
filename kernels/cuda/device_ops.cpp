// SPDX-License-Identifier: Apache-2.0
// A GPU as the engine's device: one stream for all its work, a caching allocator, cuBLAS with its own workspace.
#include <cuda_runtime.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/cublas.h"
#include "kernels/cuda/device_guard.h"
#include "kernels/cuda/device_launches.h"
#include "kernels/cuda/device_readings.h"
#include "kernels/portable/map_kernels.h"
#include "kernels/device_allocator.h"
#include "kernels/device_ops.h"
#include "kernels/device_query.h"

namespace nanhunt::kernels {
namespace {

using cuda::check;

class CudaSource final : public DeviceAllocator::Source {
 public:
  explicit CudaSource(int device) : device_(device) {}
  void* allocate(std::size_t bytes) override {
    void* memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, bytes);
    if (status == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      return nullptr;
    }
    check(status, "allocating memory");
    return memory;
  }
  void free(void* memory) noexcept override {
    static_cast<void>(cudaFree(memory));
  }
  DeviceAllocator::Event record(DeviceAllocator::Stream stream) override {
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
    check(cudaEventRecord(event, reinterpret_cast<cudaStream_t>(stream)), "recording an event");
    return reinterpret_cast<DeviceAllocator::Event>(event);
  }
  bool done(DeviceAllocator::Event event) noexcept override {
    return cuda::state_of(reinterpret_cast<cudaEvent_t>(event)) == cudaSuccess;
  }
  void forget(DeviceAllocator::Event event) noexcept override {
    static_cast<void>(cudaEventDestroy(reinterpret_cast<cudaEvent_t>(event)));
  }

 private:
  int device_;
};

// A stream whose device is current for whoever takes it: a launch on a stream of another device is refused.
class OwnStream {
 public:
  void open(int device) {
    device_ = device;
    use();
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  }
  void use() const {
    int now = -1;
    if (cudaGetDevice(&now) != cudaSuccess || now != device_) check(cudaSetDevice(device_), "choosing the device");
  }
  operator cudaStream_t() const {
    use();
    return stream_;
  }
  cudaStream_t raw() const { return stream_; }

 private:
  int device_ = 0;
  cudaStream_t stream_ = nullptr;
};

// Never destroyed: tensors may outlive every other static object.
class CudaBackend final : public DeviceBackend {
 public:
  CudaBackend(const DeviceInfo& info, const CublasFunctions& cublas)
      : info_(info), cublas_(cublas), source_(info.index), allocator_(source_) {
    stream_.open(info_.index);
    int direct = 0;
    check(cudaDeviceGetAttribute(&direct, cudaDevAttrPageableMemoryAccessUsesHostPageTables, info_.index),
          "asking about pageable memory");
    shares_page_tables_ = direct != 0;
    expect(cublas_.create(&handle_), "making a handle");
    expect(cublas_.set_stream(handle_, stream_), "setting the stream");
    // Its own workspace: with one, equal calls give equal bits whatever else runs.
    workspace_ = allocator_.allocate(kWorkspace, name_of(stream_));
    expect(cublas_.set_workspace(handle_, workspace_, kWorkspace), "setting the workspace");
    set_product_math({});
    int version = 0;
    expect(cublas_.get_version(handle_, &version), "asking for the version");
    cublas_version_ = version;
  }

  std::string name() const override {
    const auto version = [](int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); };
    return "cuda:" + std::to_string(info_.index) + " (" + info_.name + ", driver for CUDA " +
           version(info_.driver_version) + ", cuBLAS " + std::to_string(cublas_version_) + ", " +
           describe_product_math(math_) + ")";
  }

  void* allocate(std::size_t bytes) override {
    use();
    return allocator_.allocate(bytes, name_of(stream_));
  }
  void release(void* memory, std::size_t /*bytes*/) noexcept override { allocator_.release(memory); }
  DeviceMemory memory() const override { return {allocator_.used(), allocator_.cached()}; }
  void set_zero(void* to, std::size_t bytes) override {
    check(cudaMemsetAsync(to, 0, bytes, stream_), "setting memory to zero");
  }
  void to_device(void* to, const void* from, std::size_t bytes) override {
    // Of pageable memory: returns once the contents are staged, so the caller may change them. Where the
    // device reads the host's pages itself (Grace) nothing need be staged.
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "copying to the device");
    if (shares_page_tables_) wait();
  }
  void to_host(void* to, const void* from, std::size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "copying to the host");
    wait();
  }
  void on_device(void* to, const void* from, std::size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copying on the device");
  }
  void wait() override {
    check(cudaStreamSynchronize(stream_), "waiting for the device");
  }
  void* stream() override { return static_cast<cudaStream_t>(stream_); }
  std::unique_ptr<ReadingsPort> open_readings(const ReadingsOptions& options, std::string& why) override {
    return cuda::open_readings_port(info_.index, stream_, options, why);
  }

  void run(const MapCall& call) override {
    if (!cuda::is_known(call.formula)) {
      throw std::logic_error("cuda: there is no formula " + std::to_string(call.formula.number));
    }
    go(call);
  }
  void run(const GradientSumCall& call) override {
    if (call.map.walk.count == 0 || cuda::sums_values_as_they_are(call)) {
      go(call);
      return;
    }
    const Room values(*this, static_cast<std::size_t>(call.map.walk.count) * (call.map.wide ? 8 : 4));
    const cuda::GradientSumSteps steps = cuda::steps_of(call, values.memory());
    go(steps.map);
    go(steps.sum);
  }
  void run(const ReduceCall& call) override {
    std::vector<std::unique_ptr<Room>> rooms;  // freed in stream order
    cuda::launch(call, stream_, [&](std::size_t bytes) {
      rooms.push_back(std::make_unique<Room>(*this, bytes));
      return rooms.back()->memory();
    });
  }
  void run(const CopyCall& call) override { go(call); }
  void run(const SoftmaxCall& call) override { go(call); }
  void run(const SoftmaxGradientCall& call) override { go(call); }
  void run(const LayerNormCall& call) override { go(call); }
  void run(const LayerNormGradientCall& call) override { go(call); }
  void run(const PickedLossCall& call) override { go(call); }
  void run(const PickedLossGradientCall& call) override { go(call); }
  void run(const GatherRowsCall& call) override { go(call); }
  void run(const ScatterRowsCall& call) override { go(call); }
  void run(const DropoutMaskCall& call) override { go(call); }
  void run(const UnscaleCall& call) override { go(call); }
  void run(const UnscaleManyCall& call) override { go(call); }
  void run(const FusedSgdCall& call) override { go(call); }
  void run(const FusedAdamCall& call) override { go(call); }
  void run(const ProductCall& call) override {
    use();
    cublas_multiply(cublas_, handle_, call);
  }
  void set_product_math(const ProductMath& math) override {
    expect(cublas_.set_math_mode(handle_, cublas_math_mode(math)), "setting the math mode");
    math_ = math;
  }
  void run(const UnfoldCall& call) override { go(call); }
  void run(const FoldCall& call) override { go(call); }
  void run(const ChannelBiasCall& call) override { go(call); }
  void run(const ChannelSumCall& call) override { go(call); }
  void run(const MaxPoolCall& call) override { go(call); }
  void run(const MaxPoolGradientCall& call) override { go(call); }
  void run(const AvgPoolCall& call) override { go(call); }
  void run(const AvgPoolGradientCall& call) override { go(call); }
  void run(const UpsampleGradientCall& call) override { go(call); }
  void run(const BatchNormCall& call) override { go(call); }
  void run(const BatchNormGradientCall& call) override { go(call); }
  std::int64_t column_bytes() const override { return std::int64_t{256} << 20; }

 private:
  static constexpr std::size_t kWorkspace = std::size_t{32} << 20;

  template <class Call>
  void go(const Call& call) {
    cuda::launch(call, stream_);
  }

  // Memory for the time of a call; work that was asked for before may still use it.
  class Room {
   public:
    Room(CudaBackend& backend, std::size_t bytes)
        : backend_(backend), memory_(backend.allocate(bytes)), bytes_(bytes) {}
    ~Room() { backend_.release(memory_, bytes_); }
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    void* memory() const { return memory_; }

   private:
    CudaBackend& backend_;
    void* memory_;
    std::size_t bytes_;
  };

  static DeviceAllocator::Stream name_of(cudaStream_t stream) {
    return reinterpret_cast<DeviceAllocator::Stream>(stream);
  }
  void use() const { stream_.use(); }
  static void expect(int status, const char* doing) {
    if (status == cublas::kSuccess) return;
    throw std::runtime_error(std::string("cublas: ") + doing + ": " + cublas_status_name(status));
  }

  DeviceInfo info_;
  const CublasFunctions& cublas_;
  CudaSource source_;
  DeviceAllocator allocator_;
  OwnStream stream_;
  bool shares_page_tables_ = false;  // with the host
  void* handle_ = nullptr;
  void* workspace_ = nullptr;
  ProductMath math_;
  int cublas_version_ = 0;
};

// A device of this index that this build has code for; else why not.
bool find_device(int index, DeviceInfo& found, std::string& why) {
  std::string none;
  const std::vector<DeviceInfo> devices = query_devices(none);
  if (devices.empty()) {
    why = none + ". A GPU of NVIDIA with its driver is needed: `nanhunt doctor --env` says what is missing";
    return false;
  }
  for (const DeviceInfo& device : devices) {
    if (device.index != index) continue;
    if (device.compute_major * 10 + device.compute_minor < 75) {
      why = device.name + " has compute capability " + std::to_string(device.compute_major) + "." +
            std::to_string(device.compute_minor) + ", and this build starts at 7.5";
      return false;
    }
    found = device;
    return true;
  }
  why = "there is no device " + std::to_string(index) + "; there are " + std::to_string(devices.size()) + ", from 0";
  return false;
}

}  // namespace

DeviceBackend* cuda_backend(int index, std::string& why) {
  static std::mutex mutex;
  static auto& backends = *new std::map<int, std::unique_ptr<CudaBackend>>;
  static auto& failures = *new std::map<int, std::string>;
  const std::lock_guard lock(mutex);
  if (const auto found = backends.find(index); found != backends.end()) return found->second.get();
  if (const auto failed = failures.find(index); failed != failures.end()) {
    why = failed->second;
    return nullptr;
  }
  try {
    DeviceInfo info;
    if (find_device(index, info, why)) {
      if (const CublasFunctions* cublas = load_cublas(why)) {
        return backends.emplace(index, std::make_unique<CudaBackend>(info, *cublas)).first->second.get();
      }
    }
  } catch (const std::exception& e) {
    why = e.what();
  }
  failures[index] = why;
  return nullptr;
}

}  // namespace nanhunt::kernels
