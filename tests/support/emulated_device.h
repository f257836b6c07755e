// SPDX-License-Identifier: Apache-2.0
// A device whose kernels are the code of kernels/cuda run by the CPU (kernels/portable/lanes.h), so that the engine's
// device path is tested where there is no GPU. Its memory has addresses that no processor can read: host code that
// touches it by mistake stops with a signal, and kernels alone translate them. Elements and rows are run forwards,
// backwards or shuffled.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/device_ops.h"
#include "kernels/device_readings.h"

namespace nanhunt::testing_support {

enum class Order : std::uint8_t { kForwards, kBackwards, kShuffled };

// When results of kernels/device_readings.h are there. As on a GPU at its laziest, only the host's waiting tells that
// the device has got somewhere, unless it is said otherwise.
struct ReadingsDelivery {
  bool after_waits = true;  // by any wait of the host that comes after the copy; else by one for them alone
  int copies_later = -1;    // by themselves, once so many more copies were asked for; -1: never
  bool never = false;       // not even by a wait for them
  bool fails = false;       // the device answers no more
  int no_memory = 0;        // so many more results are not fetched for want of memory
};

class EmulatedDevice final : public kernels::DeviceBackend {
 public:
  // c = a @ b + beta * c with these addresses of the host; what a GPU leaves to cuBLAS.
  using Multiply = std::function<void(const kernels::ProductCall& call)>;
  EmulatedDevice();
  ~EmulatedDevice() override;

  Order order = Order::kForwards;
  Multiply multiply;           // default: plain loops that add up in order
  std::int64_t columns = 512 << 10;  // column_bytes(): the CPU engine's, so that its products have the same sizes
  std::uint64_t waits = 0;     // to_host and wait: where the host waited for the device
  std::uint64_t launches = 0;
  std::uint64_t checks = 0;    // launches that compare contents, of those
  ReadingsDelivery delivery;
  std::uint64_t limit = 0;     // bytes that there are; 0: as many as are asked for
  std::uint64_t live() const { return live_.size(); }

  kernels::ProductMath math;   // only noted

  std::string name() const override;
  void* allocate(std::size_t bytes) override;
  void release(void* memory, std::size_t bytes) noexcept override;
  kernels::DeviceMemory memory() const override;
  void set_zero(void* to, std::size_t bytes) override;
  void to_device(void* to, const void* from, std::size_t bytes) override;
  void to_host(void* to, const void* from, std::size_t bytes) override;
  void on_device(void* to, const void* from, std::size_t bytes) override;
  void wait() override {
    ++waits;
  }
  void* stream() override { return this; }
  std::unique_ptr<kernels::ReadingsPort> open_readings(const kernels::ReadingsOptions& options,
                                                       std::string& why) override;
  void expect_parameters(std::size_t bytes) const;  // throws where its driver would refuse to launch
  static const void* on_host(const void* address);  // of the device; throws std::logic_error for one of the host

  void run(const kernels::MapCall& call) override;
  void run(const kernels::CopyCall& call) override;
  void run(const kernels::GradientSumCall& call) override;
  void run(const kernels::ReduceCall& call) override;
  void run(const kernels::SoftmaxCall& call) override;
  void run(const kernels::SoftmaxGradientCall& call) override;
  void run(const kernels::LayerNormCall& call) override;
  void run(const kernels::LayerNormGradientCall& call) override;
  void run(const kernels::PickedLossCall& call) override;
  void run(const kernels::PickedLossGradientCall& call) override;
  void run(const kernels::GatherRowsCall& call) override;
  void run(const kernels::ScatterRowsCall& call) override;
  void run(const kernels::DropoutMaskCall& call) override;
  void run(const kernels::UnscaleCall& call) override;
  void run(const kernels::UnscaleManyCall& call) override;
  void run(const kernels::FusedSgdCall& call) override;
  void run(const kernels::FusedAdamCall& call) override;
  void run(const kernels::ProductCall& call) override;
  void set_product_math(const kernels::ProductMath& wanted) override { math = wanted; }
  void run(const kernels::UnfoldCall& call) override;
  void run(const kernels::FoldCall& call) override;
  void run(const kernels::ChannelBiasCall& call) override;
  void run(const kernels::ChannelSumCall& call) override;
  void run(const kernels::MaxPoolCall& call) override;
  void run(const kernels::MaxPoolGradientCall& call) override;
  void run(const kernels::AvgPoolCall& call) override;
  void run(const kernels::AvgPoolGradientCall& call) override;
  void run(const kernels::UpsampleGradientCall& call) override;
  void run(const kernels::BatchNormCall& call) override;
  void run(const kernels::BatchNormGradientCall& call) override;
  std::int64_t column_bytes() const override { return columns; }

 private:
  template <class Kernel>
  void each(const Kernel& kernel);
  template <class Kernel>
  void rows(const Kernel& kernel);
  void sum(const kernels::GradientSumCall& here);
  template <class Visit>
  void visit(std::int64_t count, Visit visit_one);

  std::unordered_map<const void*, std::size_t> live_;
  friend class EmulatedReadings;
  std::uint64_t used_ = 0;
};

}  // namespace nanhunt::testing_support
