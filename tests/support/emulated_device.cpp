// SPDX-License-Identifier: Apache-2.0
#include "tests/support/emulated_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>

#include "kernels/cublas.h"
#include "kernels/portable/batch_norm_kernels.h"
#include "kernels/portable/image_kernels.h"
#include "kernels/portable/index_kernels.h"
#include "kernels/portable/map_kernels.h"
#include "kernels/portable/row_kernels.h"
#include "kernels/portable/unscale_kernels.h"
#include "tests/support/serial_ops.h"

namespace nanhunt::testing_support {
namespace {

using namespace kernels;
using namespace kernels::cuda;

// An address of the device is the host's with a bit that no processor takes as part of one.
constexpr std::uintptr_t kDevice = std::uintptr_t{1} << 62;

template <class T>
T* host(T* device) {
  const auto address = reinterpret_cast<std::uintptr_t>(device);
  if (address == 0) return nullptr;
  if ((address & kDevice) == 0) throw std::logic_error("a kernel was handed an address of the host");
  return reinterpret_cast<T*>(address & ~kDevice);
}

DeviceArray host(DeviceArray array) {
  array.data = host(array.data);
  return array;
}

}  // namespace

EmulatedDevice::EmulatedDevice()
    : multiply([](const ProductCall& call) {
        call.dtype == DType::kF64 ? plain_multiply<double>(call) : plain_multiply<float>(call);
      }) {}

EmulatedDevice::~EmulatedDevice() {
  for (const auto& [memory, bytes] : live_) std::free(const_cast<void*>(memory));
}

std::string EmulatedDevice::name() const {
  return math == kernels::ProductMath{} ? "emulated" : "emulated (" + kernels::describe_product_math(math) + ")";
}

void* EmulatedDevice::allocate(std::size_t bytes) {
  const auto of_device = [](void* memory) {
    return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(memory) | kDevice);
  };
  if (limit != 0 && used_ + bytes > limit) throw std::runtime_error("emulated: there is no more memory");
  void* memory = std::malloc(std::max<std::size_t>(bytes, 1));
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0xa5, bytes);  // whoever reads before anybody wrote shall notice
  live_.emplace(memory, bytes);
  used_ += bytes;
  return of_device(memory);
}

void EmulatedDevice::release(void* memory, std::size_t bytes) noexcept {
  void* const here = host(memory);
  const auto found = live_.find(here);
  if (found == live_.end() || found->second != bytes) std::abort();  // never handed out, or with another size
  std::free(here);
  live_.erase(found);
  used_ -= bytes;
}

const void* EmulatedDevice::on_host(const void* address) { return host(address); }

DeviceMemory EmulatedDevice::memory() const { return {used_, 0}; }

// Of nothing there may be no address either, which memcpy forbids and CUDA does not.
void EmulatedDevice::set_zero(void* to, std::size_t bytes) {
  if (bytes == 0) return;
  std::memset(host(to), 0, bytes);
}
void EmulatedDevice::to_device(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0) std::memcpy(host(to), from, bytes);
}
void EmulatedDevice::to_host(void* to, const void* from, std::size_t bytes) {
  ++waits;
  if (bytes != 0) std::memcpy(to, host(from), bytes);
}
void EmulatedDevice::on_device(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  std::memmove(host(to), host(from), bytes);
}

template <class Visit>
void EmulatedDevice::visit(std::int64_t count, Visit visit_one) {
  ++launches;
  switch (order) {
    case Order::kForwards:
      for (std::int64_t i = 0; i < count; ++i) visit_one(i);
      return;
    case Order::kBackwards:
      for (std::int64_t i = count; i-- > 0;) visit_one(i);
      return;
    case Order::kShuffled:
      break;
  }
  std::vector<std::int64_t> items(static_cast<std::size_t>(count));
  std::iota(items.begin(), items.end(), std::int64_t{0});
  std::shuffle(items.begin(), items.end(), std::mt19937_64(static_cast<std::uint64_t>(count)));
  for (const std::int64_t i : items) visit_one(i);
}

void EmulatedDevice::expect_parameters(std::size_t bytes) const {
  if (bytes > kParameterBytes) throw std::logic_error("more parameters than every driver takes");
}

template <class Kernel>
void EmulatedDevice::each(const Kernel& kernel) {
  static_assert(std::is_trivially_copyable_v<Kernel>);
  expect_parameters(sizeof(Kernel));
  visit(kernel.count(), kernel);
}

template <class Kernel>
void EmulatedDevice::rows(const Kernel& kernel) {
  static_assert(std::is_trivially_copyable_v<Kernel>);
  expect_parameters(sizeof(Kernel));
  const SerialRowThreads lanes;
  visit(kernel.count(), [&](std::int64_t row) { kernel(lanes, row); });
}

void EmulatedDevice::run(const MapCall& call) {
  MapCall here = call;
  here.out = host(call.out);
  for (int k = 0; k < call.inputs; ++k) here.in[k] = host(call.in[k]);
  if (!is_known(call.formula)) throw std::logic_error("no such formula");
  here.wide ? each(MapKernel<double>{here}) : each(MapKernel<float>{here});
}

void EmulatedDevice::run(const GradientSumCall& call) {
  GradientSumCall here = call;
  here.out = host(call.out);
  for (int k = 0; k < call.map.inputs; ++k) here.map.in[k] = host(call.map.in[k]);
  if (here.map.walk.count == 0 || sums_values_as_they_are(here)) return sum(here);
  void* values = allocate(static_cast<std::size_t>(here.map.walk.count) * sizeof(double));
  const GradientSumSteps steps = steps_of(call, values);
  run(steps.map);
  here = steps.sum;
  here.out = host(call.out);
  here.map.in[0] = host(here.map.in[0]);
  sum(here);
  release(values, static_cast<std::size_t>(here.map.walk.count) * sizeof(double));
}

void EmulatedDevice::sum(const GradientSumCall& here) {
  here.map.wide ? each(GradientSumKernel<double>{here}) : each(GradientSumKernel<float>{here});
}

void EmulatedDevice::run(const CopyCall& call) {
  CopyCall here = call;
  here.to = host(call.to);
  here.from = host(call.from);
  switch (here.bytes) {
    case 1:
      return each(CopyKernel<std::uint8_t>{here});
    case 2:
      return each(CopyKernel<std::uint16_t>{here});
    case 4:
      return each(CopyKernel<std::uint32_t>{here});
    default:
      return each(CopyKernel<std::uint64_t>{here});
  }
}

void EmulatedDevice::run(const ReduceCall& call) {
  ReduceCall here = call;
  here.in = host(call.in);
  here.out = host(call.out);
  const auto reduce = [&]<class T>(T) {
    if (here.kind == Reduction::kAmax || here.rows.length <= kLongRow) return rows(ReduceKernel<T>{here});
    std::vector<std::unique_ptr<T[]>> rooms;
    const auto room = [&](std::int64_t count) {
      rooms.push_back(std::make_unique<T[]>(static_cast<std::size_t>(count)));
      return rooms.back().get();
    };
    const auto launch = [&](const auto& kernel) {
      if constexpr (requires { kernel(SerialRowThreads{}, std::int64_t{0}); }) {
        rows(kernel);
      } else {
        each(kernel);
      }
    };
    reduce_long_rows<T>(here, launch, room);
  };
  here.wide ? reduce(double{}) : reduce(float{});
}

void EmulatedDevice::run(const SoftmaxCall& call) {
  SoftmaxCall here = call;
  here.in = host(call.in);
  here.out = host(call.out);
  here.wide ? rows(SoftmaxKernel<double>{here}) : rows(SoftmaxKernel<float>{here});
}

void EmulatedDevice::run(const SoftmaxGradientCall& call) {
  SoftmaxGradientCall here = call;
  here.grad = host(call.grad);
  here.result = host(call.result);
  here.out = host(call.out);
  here.wide ? rows(SoftmaxGradientKernel<double>{here}) : rows(SoftmaxGradientKernel<float>{here});
}

void EmulatedDevice::run(const LayerNormCall& call) {
  LayerNormCall here = call;
  for (auto [to, from] : {std::pair{&here.in, &call.in}, {&here.weight, &call.weight}, {&here.bias, &call.bias},
                          {&here.out, &call.out}, {&here.mean, &call.mean}, {&here.rstd, &call.rstd}}) {
    *to = host(*from);
  }
  in_arithmetic_of(here.arithmetic, [&]<class T>(T) { rows(LayerNormKernel<T>{here}); });
}

void EmulatedDevice::run(const LayerNormGradientCall& call) {
  LayerNormGradientCall here = call;
  for (auto [to, from] :
       {std::pair{&here.grad, &call.grad}, {&here.in, &call.in}, {&here.weight, &call.weight}, {&here.mean, &call.mean},
        {&here.rstd, &call.rstd}, {&here.grad_in, &call.grad_in}, {&here.grad_weight, &call.grad_weight},
        {&here.grad_bias, &call.grad_bias}}) {
    *to = host(*from);
  }
  in_arithmetic_of(here.arithmetic, [&]<class T>(T) {
    if (here.grad_in.data != nullptr) rows(LayerNormGradientKernel<T>{here});
    if (here.grad_weight.data != nullptr || here.grad_bias.data != nullptr)
      each(LayerNormAffineGradientKernel<T>{here});
  });
}

void EmulatedDevice::run(const PickedLossCall& call) {
  PickedLossCall here = call;
  here.at = host(call.at);
  here.in = host(call.in);
  here.out = host(call.out);
  here.wide ? rows(PickedLossKernel<double>{here}) : rows(PickedLossKernel<float>{here});
}

void EmulatedDevice::run(const PickedLossGradientCall& call) {
  PickedLossGradientCall here = call;
  here.at = host(call.at);
  here.grad = host(call.grad);
  here.out = host(call.out);
  here.wide ? each(PickedLossGradientKernel<double>{here}) : each(PickedLossGradientKernel<float>{here});
}

void EmulatedDevice::run(const GatherRowsCall& call) {
  GatherRowsCall here = call;
  here.rows = host(call.rows);
  here.table = host(call.table);
  here.out = host(call.out);
  switch (here.bytes) {
    case 2:
      return each(GatherRowsKernel<std::uint16_t>{here});
    case 4:
      return each(GatherRowsKernel<std::uint32_t>{here});
    default:
      return each(GatherRowsKernel<std::uint64_t>{here});
  }
}

void EmulatedDevice::run(const ScatterRowsCall& call) {
  ScatterRowsCall here = call;
  here.used = host(call.used);
  here.first = host(call.first);
  here.order = host(call.order);
  here.grad = host(call.grad);
  here.out = host(call.out);
  here.wide ? each(ScatterRowsKernel<double>{here}) : each(ScatterRowsKernel<float>{here});
}

void EmulatedDevice::run(const DropoutMaskCall& call) {
  DropoutMaskCall here = call;
  here.out = host(call.out);
  each(DropoutMaskKernel{here});
}

void EmulatedDevice::run(const UnscaleCall& call) {
  UnscaleCall here = call;
  here.grad = host(call.grad);
  here.found = host(call.found);
  here.wide ? each(UnscaleKernel<double>{here}) : each(UnscaleKernel<float>{here});
}

void EmulatedDevice::run(const UnscaleManyCall& call) {
  UnscaleManyCall here = call;
  std::vector<UnscaledTensor> tensors(call.tensors, call.tensors + call.count);
  for (UnscaledTensor& tensor : tensors) tensor.data = host(tensor.data);
  here.tensors = tensors.data();
  here.found = host(call.found);
  launch_unscale(here, [this](const auto& kernel) { rows(kernel); });
}

void EmulatedDevice::run(const FusedSgdCall& call) {
  FusedSgdCall here = call;
  here.param = host(call.param);
  here.grad = host(call.grad);
  here.buffer = host(call.buffer);
  here.wide ? each(FusedSgdKernel<double>{here}) : each(FusedSgdKernel<float>{here});
}

void EmulatedDevice::run(const FusedAdamCall& call) {
  FusedAdamCall here = call;
  here.param = host(call.param);
  here.grad = host(call.grad);
  here.exp_avg = host(call.exp_avg);
  here.exp_avg_sq = host(call.exp_avg_sq);
  here.wide ? each(FusedAdamKernel<double>{here}) : each(FusedAdamKernel<float>{here});
}

void EmulatedDevice::run(const ProductCall& call) {
  ++launches;
  ProductCall here = call;
  here.a.data = host(call.a.data);
  here.b.data = host(call.b.data);
  here.c = host(call.c);
  multiply(here);
}

void EmulatedDevice::run(const UnfoldCall& call) {
  UnfoldCall here = call;
  here.images = host(call.images);
  here.columns = host(call.columns);
  switch (here.bytes) {
    case 2:
      return each(UnfoldKernel<std::uint16_t>{here});
    case 4:
      return each(UnfoldKernel<std::uint32_t>{here});
    default:
      return each(UnfoldKernel<std::uint64_t>{here});
  }
}

void EmulatedDevice::run(const FoldCall& call) {
  FoldCall here = call;
  here.columns = host(call.columns);
  here.images = host(call.images);
  here.wide ? each(FoldKernel<double>{here}) : each(FoldKernel<float>{here});
}

void EmulatedDevice::run(const ChannelBiasCall& call) {
  ChannelBiasCall here = call;
  here.products = host(call.products);
  here.bias = host(call.bias);
  here.out = host(call.out);
  here.wide ? each(ChannelBiasKernel<double>{here}) : each(ChannelBiasKernel<float>{here});
}

void EmulatedDevice::run(const ChannelSumCall& call) {
  ChannelSumCall here = call;
  here.grad = host(call.grad);
  here.out = host(call.out);
  here.wide ? rows(ChannelSumKernel<double>{here}) : rows(ChannelSumKernel<float>{here});
}

void EmulatedDevice::run(const MaxPoolCall& call) {
  MaxPoolCall here = call;
  here.in = host(call.in);
  here.out = host(call.out);
  here.indices = host(call.indices);
  here.wide ? each(MaxPoolKernel<double>{here}) : each(MaxPoolKernel<float>{here});
}

void EmulatedDevice::run(const MaxPoolGradientCall& call) {
  MaxPoolGradientCall here = call;
  here.grad = host(call.grad);
  here.out = host(call.out);
  here.indices = host(call.indices);
  here.wide ? each(MaxPoolGradientKernel<double>{here}) : each(MaxPoolGradientKernel<float>{here});
}

void EmulatedDevice::run(const AvgPoolCall& call) {
  AvgPoolCall here = call;
  here.in = host(call.in);
  here.out = host(call.out);
  here.wide ? each(AvgPoolKernel<double>{here}) : each(AvgPoolKernel<float>{here});
}

void EmulatedDevice::run(const AvgPoolGradientCall& call) {
  AvgPoolGradientCall here = call;
  here.grad = host(call.grad);
  here.out = host(call.out);
  here.wide ? each(AvgPoolGradientKernel<double>{here}) : each(AvgPoolGradientKernel<float>{here});
}

void EmulatedDevice::run(const UpsampleGradientCall& call) {
  UpsampleGradientCall here = call;
  here.grad = host(call.grad);
  here.out = host(call.out);
  here.wide ? each(UpsampleGradientKernel<double>{here}) : each(UpsampleGradientKernel<float>{here});
}

void EmulatedDevice::run(const BatchNormCall& call) {
  BatchNormCall here = call;
  for (DeviceArray* array : {&here.in, &here.out, &here.weight, &here.bias, &here.running_mean, &here.running_var,
                             &here.mean, &here.invstd, &here.new_mean, &here.new_var}) {
    *array = host(*array);
  }
  in_arithmetic_of(here.arithmetic, [&]<class T>(T) { rows(BatchNormKernel<T>{here}); });
}

void EmulatedDevice::run(const BatchNormGradientCall& call) {
  BatchNormGradientCall here = call;
  for (DeviceArray* array : {&here.grad, &here.in, &here.grad_in, &here.weight, &here.mean, &here.spread,
                             &here.grad_weight, &here.grad_bias}) {
    *array = host(*array);
  }
  in_arithmetic_of(here.arithmetic, [&]<class T>(T) { rows(BatchNormGradientKernel<T>{here}); });
}

}  // namespace nanhunt::testing_support
