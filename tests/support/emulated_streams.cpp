// SPDX-License-Identifier: Apache-2.0
// Takes the place of kernels/cuda/foreign_stream.cu or kernels/no_cuda/foreign_stream.cpp: the linker takes the first
// one.
#include "tests/support/emulated_streams.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/foreign_stream.h"
#include "tests/support/emulated_device.h"

namespace nanhunt::kernels {
namespace {

constexpr std::uintptr_t kWall = std::uintptr_t{1} << 62;  // no processor has such addresses

void show_walled(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(from) - kWall), bytes);
}

struct World {
  testing_support::EmulatedDevice device;
  std::int64_t devices = 1;
  bool capturing = false;
  nanhunt_emulated_show show = &show_walled;
};
World& world() {
  static auto* all = new World;  // outlives every recorder
  return *all;
}

// Shows the inner port, which knows the emulated device's memory alone, copies of what it is to read.
class ShownReadings : public ReadingsPort {
 public:
  explicit ShownReadings(std::unique_ptr<ReadingsPort> inner) : inner_(std::move(inner)) {}

  Status launch(std::span<const DeviceTensor> tensors, std::size_t first) override {
    const Copies copies;
    std::vector<DeviceTensor> here(tensors.begin(), tensors.end());
    for (DeviceTensor& tensor : here) {
      if (tensor.count > 0)
        tensor.data = copies.of(tensor.data, static_cast<std::size_t>(tensor.count) * dtype_size(tensor.dtype));
    }
    return inner_->launch(here, first);
  }
  Status look(std::span<const DeviceTensor> tensors, std::size_t made, std::size_t first) override {
    const Copies copies;
    std::vector<DeviceTensor> here(tensors.begin(), tensors.end());
    for (DeviceTensor& tensor : here) {
      if (tensor.count > 0)
        tensor.data = copies.of(tensor.data, static_cast<std::size_t>(tensor.count) * dtype_size(tensor.dtype));
    }
    return inner_->look(here, made, first);
  }
  Status launch(const DeviceStatsView& view, std::uint32_t tag, std::size_t slot) override {
    const Copies copies;
    return inner_->launch(shown(copies, view), tag, slot);
  }
  Status launch(std::span<const ChecksumStatsTensor> tensors, std::size_t first) override {
    const Copies copies;
    std::vector<ChecksumStatsTensor> here(tensors.begin(), tensors.end());
    for (ChecksumStatsTensor& entry : here) {
      DeviceTensor& tensor = entry.tensor;
      if (tensor.count > 0)
        tensor.data = copies.of(tensor.data, static_cast<std::size_t>(tensor.count) * dtype_size(tensor.dtype));
    }
    return inner_->launch(here, first);
  }
  Status launch(const CheckedTensor& tensor, std::size_t slot) override {
    const Copies copies;
    CheckedTensor here = tensor;
    show(copies, here.view);
    return inner_->launch(here, slot);
  }
  Status launch(const OriginPlan& plan, std::size_t slot) override { return inner_->launch(plan, slot); }
  Status launch(std::span<const DeviceStatsView> views) override {
    const Copies copies;
    std::vector<DeviceStatsView> here;
    for (const DeviceStatsView& view : views) here.push_back(shown(copies, view));
    return inner_->launch(here);
  }
  const std::uint64_t* arena() const override { return inner_->arena(); }
  Status launch(const EvidenceCall& /*call*/, std::size_t /*of*/, std::size_t /*slot*/, const OriginPlan* /*origins*/,
                std::size_t /*origins_slot*/) override {
    return not_asked();
  }
  Status launch(const UpdatesCall& /*call*/, std::size_t /*slot*/) override { return not_asked(); }
  Status copy(std::size_t first, std::size_t count) override { return inner_->copy(first, count); }
  Status mark(std::size_t which) override { return inner_->mark(which); }
  Mark look(std::size_t which) override { return inner_->look(which); }
  Status wait(std::size_t which) override { return inner_->wait(which); }
  const DeviceStatsRecord* records() const override { return inner_->records(); }

 protected:
  class Copies {
   public:
    ~Copies() {
      for (const auto& [memory, bytes] : all_) world().device.release(memory, bytes);
    }
    const void* of(const void* from, std::size_t bytes) const {
      std::vector<char> contents(bytes);
      world().show(contents.data(), from, bytes);
      void* memory = world().device.allocate(bytes);
      all_.emplace_back(memory, bytes);
      world().device.to_device(memory, contents.data(), bytes);
      return memory;
    }

   private:
    mutable std::vector<std::pair<void*, std::size_t>> all_;
  };
  static DeviceStatsView shown(const Copies& copies, const DeviceStatsView& view) {
    DeviceStatsView here = view;
    if (view.count == 0) return here;
    std::int64_t low = 0, high = 0;  // bytes from the first element walked
    for (int d = 0; d < view.dims; ++d) {
      const std::int64_t last = static_cast<std::int64_t>(view.dim[d].size - 1) * view.dim[d].stride_bytes;
      (last < 0 ? low : high) += last;
    }
    const auto size = static_cast<std::int64_t>(dtype_size(view.dtype));
    if (view.gapless) high = static_cast<std::int64_t>(view.count - 1) * size;
    here.data = copied(copies, view.data, low, high + size);
    return here;
  }
  static void show(const Copies& copies, CheckedView& view) {
    if (view.count == 0) return;
    std::int64_t low = 0, high = 0;
    for (std::uint32_t d = 0; d < view.dims; ++d) {
      const std::int64_t last = static_cast<std::int64_t>(view.sizes[d] - 1) * view.stride_bytes[d];
      (last < 0 ? low : high) += last;
    }
    if (view.dims == 0) high = static_cast<std::int64_t>(view.count - 1) * view.size;
    view.data = copied(copies, view.data, low, high + view.size);
  }
  // Of what lies from `low` to `high` bytes after `data`, which is given anew.
  static std::uint64_t copied(const Copies& copies, std::uint64_t data, std::int64_t low, std::int64_t high) {
    const auto begin = static_cast<std::uint64_t>(static_cast<std::int64_t>(data) + low);
    const void* copy = copies.of(reinterpret_cast<const void*>(begin), static_cast<std::size_t>(high - low));
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(reinterpret_cast<std::uint64_t>(copy)) - low);
  }
  static Status not_asked() { return {StatusCode::kUnsupported, "the emulated streams give statistics alone"}; }

  std::unique_ptr<ReadingsPort> inner_;
};

// What is asked of elements, too.
class ShownElements final : public ShownReadings {
 public:
  using ShownReadings::launch;
  using ShownReadings::ShownReadings;

  Status launch(const EvidenceCall& call, std::size_t of, std::size_t slot, const OriginPlan* origins,
                std::size_t origins_slot) override {
    const Copies copies;
    EvidenceCall here = call;
    show(copies, call.walk, here.out);
    for (int k = 0; k < call.inputs; ++k) show(copies, call.walk, here.in[k]);
    return inner_->launch(here, of, slot, origins, origins_slot);
  }
  Status launch(const UpdatesCall& call, std::size_t slot) override {
    const Copies copies;
    UpdatesCall here = call;
    for (DeviceArray* array : {&here.self, &here.a, &here.b}) {
      if (array->data == nullptr) continue;
      const std::size_t bytes = static_cast<std::size_t>(call.count) * dtype_size(array->dtype);
      array->data = const_cast<void*>(copies.of(array->data, bytes));
    }
    return inner_->launch(here, slot);
  }

 private:
  static void show(const Copies& copies, const Walk& walk, DeviceArray& array) {
    if (array.data == nullptr || walk.count == 0) return;
    std::int64_t low = 0, high = 0;  // elements from the first one walked
    for (int d = 0; d < walk.dims; ++d) {
      const std::int64_t last = (walk.sizes[d] - 1) * array.strides[d];
      (last < 0 ? low : high) += last;
    }
    const auto size = static_cast<std::int64_t>(dtype_size(array.dtype));
    const char* begin = static_cast<const char*>(array.data) + low * size;
    const void* copy = copies.of(begin, static_cast<std::size_t>((high - low + 1) * size));
    array.data = const_cast<char*>(static_cast<const char*>(copy) - low * size);
  }
};

class EmulatedStream final : public ForeignStream {
 public:
  bool is_capturing() override { return world().capturing; }
  std::unique_ptr<ReadingsPort> open_readings(const ReadingsOptions& options, std::string& why) override {
    std::unique_ptr<ReadingsPort> inner = world().device.open_readings(options, why);
    return inner == nullptr ? nullptr : std::make_unique<ShownElements>(std::move(inner));
  }
};

}  // namespace

std::unique_ptr<ForeignStream> ForeignStream::open(int device, DeviceStream /*stream*/, std::string& why) noexcept {
  if (device < world().devices) return std::make_unique<EmulatedStream>();
  why = "there is no emulated device " + std::to_string(device);
  return nullptr;
}

}  // namespace nanhunt::kernels

using nanhunt::kernels::world;

extern "C" {

void nanhunt_emulated_reset(void) {
  world().device.delivery = {};
  world().device.waits = world().device.launches = 0;
  world().devices = 1;
  world().capturing = false;
  world().show = &nanhunt::kernels::show_walled;
}

bool nanhunt_emulated_set(const char* what, std::int64_t value) {
  nanhunt::testing_support::ReadingsDelivery& delivery = world().device.delivery;
  const std::string_view name = what;
  if (name == "devices") world().devices = value;
  else if (name == "capturing") world().capturing = value != 0;
  else if (name == "after_waits") delivery.after_waits = value != 0;
  else if (name == "copies_later") delivery.copies_later = static_cast<int>(value);
  else if (name == "never") delivery.never = value != 0;
  else if (name == "fails") delivery.fails = value != 0;
  else return false;
  return true;
}

std::int64_t nanhunt_emulated_count(const char* what) {
  const std::string_view name = what;
  if (name == "waits") return static_cast<std::int64_t>(world().device.waits);
  if (name == "launches") return static_cast<std::int64_t>(world().device.launches);
  return -1;
}

void nanhunt_emulated_memory(nanhunt_emulated_show show) {
  world().show = show == nullptr ? &nanhunt::kernels::show_walled : show;
}

const void* nanhunt_emulated_address(const void* memory) {
  return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(memory) + nanhunt::kernels::kWall);
}

}  // extern "C"
