// SPDX-License-Identifier: Apache-2.0
// What runs on the device of device.cpp: its allocators and generator, the copies that are on their way to the host,
// and kernels, which show its tensors to the CPU's kernels.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <utility>

#include "tests/torch/device/memory.h"

namespace walled {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr auto kKey = c10::DispatchKey::PrivateUse1;
inline const c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);

enum Count { kWaits, kToHost, kKernels, kQueries, kCounts };
inline std::atomic<int64_t> counts[kCounts];
inline std::atomic<int64_t> lag{0};
inline std::recursive_mutex device_mutex;  // the device does one thing at a time

inline c10::Device the_device() { return c10::Device(kType, 0); }
inline bool is_ours(const at::Tensor& t) { return t.defined() && t.device().type() == kType; }

// Copies into pinned memory that were issued and have not arrived.
class Arrivals {
public:
  struct Copy {
    at::Tensor to, from;  // `from` is on the host: the contents when the copy was issued
  };

  void add(Copy copy) {
    const std::lock_guard lock(device_mutex);
    waiting_.push_back(std::move(copy));
    ++issued_;
  }

  int64_t issued() const { return issued_; }
  bool have(int64_t number) const { return issued_ - static_cast<int64_t>(waiting_.size()) >= number; }

  // Until the first `number` copies have arrived.
  void deliver(int64_t number) {
    const std::lock_guard lock(device_mutex);
    while (!have(number)) {
      const Copy copy = std::move(waiting_.front());
      waiting_.pop_front();
      std::memcpy(copy.to.mutable_data_ptr(), copy.from.const_data_ptr(), copy.from.nbytes());
    }
  }

private:
  std::deque<Copy> waiting_;
  int64_t issued_ = 0;
};

inline Arrivals& arrivals() {
  static auto* all = new Arrivals;
  return *all;
}

inline void wait() {
  ++counts[kWaits];
  arrivals().deliver(arrivals().issued());
}

// Memory.
struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* block = Memory::get().allocate(bytes);
    return {block, block, &release, the_device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    Memory::get().open(to);
    Memory::get().open(const_cast<void*>(from));
    std::memcpy(to, from, bytes);
    Memory::get().close(const_cast<void*>(from));
    Memory::get().close(to);
  }
  static void release(void* block) { Memory::get().release(block); }
};
inline DeviceAllocator device_allocator;

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto* block = static_cast<char*>(std::aligned_alloc(64, (bytes / 64 + 1) * 64));
    const std::lock_guard lock(mutex());
    ranges()[block] = bytes;
    return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  static void release(void* block) {
    const std::lock_guard lock(mutex());
    ranges().erase(static_cast<char*>(block));
    std::free(block);
  }
  static bool has(const void* address) {
    const std::lock_guard lock(mutex());
    const auto* at = static_cast<const char*>(address);
    auto after = ranges().upper_bound(const_cast<char*>(at));
    return after != ranges().begin() && at < (--after)->first + after->second;
  }
  static std::mutex& mutex() {
    static auto* m = new std::mutex;
    return *m;
  }
  static std::map<char*, size_t>& ranges() {
    static auto* all = new std::map<char*, size_t>;
    return *all;
  }
};
inline PinnedAllocator pinned_allocator;

// Random numbers: the CPU's, from a state of the device's own.
struct Generator final : c10::GeneratorImpl {
  explicit Generator(at::Generator inner)
      : GeneratorImpl(the_device(), c10::DispatchKeySet(kKey)), host(std::move(inner)) {}
  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { host.set_offset(offset); }
  uint64_t get_offset() const override { return host.get_offset(); }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_state(const c10::TensorImpl& state) override { host.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host.unsafeGetGeneratorImpl()->get_state(); }
  Generator* clone_impl() const override { return new Generator(host.clone()); }

  at::Generator host;
};

inline const at::Generator& default_generator() {
  static const auto* generator = new at::Generator(at::make_generator<Generator>(at::detail::createCPUGenerator()));
  return *generator;
}

// One kernel: shows tensors of the device as tensors of the CPU on the same memory, which is open meanwhile.
class Kernel {
public:
  Kernel() : lock_(device_mutex) { ++counts[kKernels]; }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  ~Kernel() {
    for (const auto& [own, host] : storages_) {
      Memory::get().close(host.block);
    }
  }

  at::Tensor shown(const at::Tensor& t) {
    if (!is_ours(t)) {
      return t;
    }
    auto view = c10::make_intrusive<c10::TensorImpl>(c10::Storage(show(t.storage())), kCpu, t.dtype());
    view->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) {
      view->set_wrapped_number(true);
    }
    at::Tensor host(std::move(view));
    tensors_.emplace_back(t, host);
    return host;
  }

  // What an op gave back, as a tensor of the device.
  at::Tensor taken(const at::Tensor& host) {
    if (!host.defined() || !host.device().is_cpu()) {
      return host;
    }
    for (const auto& [own, view] : tensors_) {
      if (view.is_same(host)) {
        return own;
      }
    }
    auto t = c10::make_intrusive<c10::TensorImpl>(c10::Storage(own_storage(host.storage())), c10::DispatchKeySet(kKey),
                                                  host.dtype());
    t->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    return at::Tensor(std::move(t));
  }

  // An op may have given its arguments another size, and with it other memory.
  void keep_sizes() {
    for (const auto& [own, view] : tensors_) {
      const c10::Storage& host = view.storage();
      Shown& known = storages_.at(own.storage().unsafeGetStorageImpl());
      if (host.data() != known.block) {
        Memory::get().close(known.block);
        own.storage().set_data_ptr_noswap(device_allocator.allocate(host.nbytes()));
        own.storage().set_nbytes(host.nbytes());
        known.block = own.storage().mutable_data();
        Memory::get().open(known.block);
        if (host.nbytes() != 0) {
          std::memcpy(known.block, host.data(), host.nbytes());
        }
      }
      if (own.sizes() != view.sizes() || own.strides() != view.strides()) {
        own.unsafeGetTensorImpl()->set_sizes_and_strides(view.sizes(), view.strides(), view.storage_offset());
      }
    }
  }

private:
  struct Shown {
    c10::Storage storage;
    void* block;
  };

  const c10::Storage& show(const c10::Storage& own) {
    const auto found = storages_.find(own.unsafeGetStorageImpl());
    if (found != storages_.end()) {
      return found->second.storage;
    }
    void* block = own.mutable_data();
    Memory::get().open(block);
    c10::Storage host(c10::Storage::use_byte_size_t(), own.nbytes(), c10::DataPtr(block, c10::Device(c10::kCPU)),
                      c10::GetCPUAllocator(), true);
    owners_.emplace(host.unsafeGetStorageImpl(), own);
    return storages_.emplace(own.unsafeGetStorageImpl(), Shown{std::move(host), block}).first->second.storage;
  }

  // Of memory that a kernel of the CPU has made: moved to the device.
  const c10::Storage& own_storage(const c10::Storage& host) {
    const auto found = owners_.find(host.unsafeGetStorageImpl());
    if (found != owners_.end()) {
      return found->second;
    }
    c10::Storage own(c10::Storage::use_byte_size_t(), host.nbytes(), device_allocator.allocate(host.nbytes()),
                     &device_allocator, true);
    if (host.nbytes() != 0) {
      Memory::get().open(own.mutable_data());
      std::memcpy(own.mutable_data(), host.data(), host.nbytes());
      Memory::get().close(own.mutable_data());
    }
    return owners_.emplace(host.unsafeGetStorageImpl(), std::move(own)).first->second;
  }

  std::lock_guard<std::recursive_mutex> lock_;
  std::unordered_map<c10::StorageImpl*, Shown> storages_;          // of the device -> as the CPU sees it
  std::unordered_map<c10::StorageImpl*, c10::Storage> owners_;     // as the CPU sees it -> of the device
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
};

}  // namespace walled
