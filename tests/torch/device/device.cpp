// SPDX-License-Identifier: Apache-2.0
// A device for tests: PyTorch's backend PrivateUse1, whose kernels are the CPU's on memory that nobody else can touch.
//
// What it has of a GPU
// - Memory (memory.h) that faults when host code reads or writes it. Kernels and copies open it while they run.
// - Autograd runs its backward in a thread of the device; random numbers come from a generator of the device; foreach
// and
//   fused optimizers are the default choice; autocast has the lists of CUDA.
// - Copies from pinned memory, and into it with non_blocking, return at once. What was copied into pinned memory is
// there
//   after an event, the stream or the device was waited for, or after an event has said so. An event says no `lag`
//   times before it says yes: set_lag.
// - Tensors of the CPU and of the device do not mix in one op, unless they are single numbers or indices.
// What it counts (count_of): every time the host waited for the device (kWaits), copies to the host (kToHost), kernels.
// What it has not: streams run one after the other in the order of calls; one device; strided tensors only.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <set>
#include <string_view>

#include "tests/torch/device/kernel.h"

namespace at::autocast {  // of <ATen/autocast_mode.h>, which takes as long to compile as all of this
TORCH_API ScalarType get_autocast_dtype(DeviceType device_type);
TORCH_API Tensor cached_cast(ScalarType to_type, const Tensor& arg, DeviceType device_type);
}  // namespace at::autocast

namespace walled {
namespace {

REGISTER_ALLOCATOR(kType, &device_allocator)

bool hand_out_the_default = false;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::Device getDeviceFromPtr(void*) const override { return the_device(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return std::exchange(hand_out_the_default, false) ? default_generator()
                                                      : at::make_generator<Generator>(at::detail::createCPUGenerator());
  }
  bool isPinnedPtr(const void* address) const override { return PinnedAllocator::has(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DataPtr fresh = device_allocator.allocate(bytes);
    if (const size_t kept = std::min(bytes, storage.nbytes())) {
      device_allocator.copy_data(fresh.get(), storage.data(), kept);
    }
    storage.set_data_ptr_noswap(std::move(fresh));
    storage.set_nbytes(bytes);
  }
};

// Streams and events. An event is the number of copies that were issued before it.
struct Event {
  int64_t copies;
  int64_t lag;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return the_device(); }
  c10::Device getDevice() const override { return the_device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const override { return stream(current()); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return getNewStream(the_device(), 0); }
  c10::Stream getNewStream(c10::Device, int) const override {
    static std::atomic<c10::StreamId> last{0};
    return stream(++last);
  }
  c10::Stream exchangeStream(c10::Stream to) const override { return stream(std::exchange(current(), to.id())); }
  bool queryStream(const c10::Stream&) const override { return arrivals().have(arrivals().issued()); }
  void synchronizeStream(const c10::Stream&) const override { wait(); }
  void synchronizeDevice(c10::DeviceIndex) const override { wait(); }
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    destroyEvent(*event, 0);
    *event = new Event{arrivals().issued(), lag};
  }
  void block(void*, const c10::Stream&) const override {}
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  bool queryEvent(void* event) const override {
    ++counts[kQueries];
    auto* asked = static_cast<Event*>(event);
    if (asked == nullptr || asked->lag-- <= 0) {
      arrivals().deliver(asked == nullptr ? 0 : asked->copies);
      return true;
    }
    return false;
  }
  void synchronizeEvent(void* event) const override {
    ++counts[kWaits];
    if (auto* asked = static_cast<Event*>(event)) {
      asked->lag = 0;
      arrivals().deliver(asked->copies);
    }
  }
  static c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, the_device(), id); }
  static c10::StreamId& current() {
    thread_local c10::StreamId id = 0;
    return id;
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// Every op that has no kernel of its own below runs as the CPU's.
bool waits_for_sizes(std::string_view name) {
  static const std::set<std::string_view> names{
      "aten::nonzero",    "aten::masked_select",      "aten::_unique2",
      "aten::unique_dim", "aten::unique_consecutive", "aten::repeat_interleave"};
  return names.count(name) != 0;
}

bool takes_generator(const c10::Argument& argument) {
  const auto optional = argument.real_type()->cast<c10::OptionalType>();
  return (optional ? optional->getElementType() : argument.real_type())->kind() == c10::TypeKind::GeneratorType;
}

void run_as_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const bool takes_indices = schema.name().find("index") != std::string::npos;
  const at::AutoDispatchBelowADInplaceOrView below;
  Kernel kernel;
  bool has_ours = false;
  const at::Tensor* stranger = nullptr;
  const auto show = [&](const at::Tensor& t) {
    if (is_ours(t)) {
      has_ours = true;
    } else if (t.defined() && t.dim() > 0) {
      stranger = &t;
    }
    return kernel.shown(t);
  };
  const size_t first = stack->size() - schema.arguments().size();
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    c10::IValue& value = (*stack)[first + i];
    if (value.isTensor()) {
      value = show(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list = value.toTensorVector();
      for (at::Tensor& t : list) {
        t = show(t);
      }
      value = c10::List<at::Tensor>(std::move(list));
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& t : value.toOptionalTensorList()) {
        list.push_back(t.has_value() ? std::optional(show(*t)) : t);
      }
      value = std::move(list);
    } else if (value.isDevice() && value.toDevice().type() == kType) {
      value = c10::Device(c10::kCPU);
      has_ours = true;
    } else if (takes_generator(schema.arguments()[i])) {
      const at::Generator& given = value.isNone() ? default_generator() : value.toGenerator();
      TORCH_CHECK(given.device().type() == kType, schema.name(), ": the generator is of ", given.device());
      value = static_cast<Generator*>(given.unsafeGetGeneratorImpl())->host;
    }
  }
  TORCH_CHECK(!has_ours || stranger == nullptr || takes_indices, schema.name(),
              ": Expected all tensors to be on the same device, but one is on ", the_device(), " and one on the CPU");
  if (waits_for_sizes(schema.name())) {
    wait();
  }
  op.redispatchBoxed(kCpu, stack);
  kernel.keep_sizes();
  const size_t results = stack->size() - schema.returns().size();
  for (size_t i = results; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (value.isTensor()) {
      value = kernel.taken(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list = value.toTensorVector();
      for (at::Tensor& t : list) {
        t = kernel.taken(t);
      }
      value = c10::List<at::Tensor>(std::move(list));
    } else {
      wait();  // a number
    }
  }
}

// Ops with kernels of their own.
at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::Tensor(at::detail::empty_generic(size, &device_allocator, c10::DispatchKeySet(kKey),
                                              c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::Tensor(at::detail::empty_strided_generic(size, stride, &device_allocator, c10::DispatchKeySet(kKey),
                                                      c10::dtype_or_default(dtype)));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto pinned = [](const at::Tensor& t) { return PinnedAllocator::has(t.const_data_ptr()); };
  Kernel kernel;
  if (is_ours(to)) {
    kernel.shown(to).copy_(kernel.shown(from));
    if (!is_ours(from) && !non_blocking) {
      wait();
    }
    return to;
  }
  ++counts[kToHost];
  if (non_blocking && to.is_contiguous() && pinned(to)) {
    at::Tensor contents(at::detail::empty_cpu(to.sizes(), to.scalar_type()));
    contents.copy_(kernel.shown(from));
    arrivals().add({to, std::move(contents)});
  } else {
    to.copy_(kernel.shown(from));
    wait();
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) {
    to.resize_(from.sizes());
  }
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& t) {
  const at::AutoDispatchBelowADInplaceOrView below;
  ++counts[kToHost];
  wait();
  Kernel kernel;
  return at::_local_scalar_dense(kernel.shown(t));
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  const at::AutoDispatchBelowADInplaceOrView below;
  Kernel kernel;
  const at::Tensor b = bias.has_value() ? kernel.shown(*bias) : at::Tensor();
  return kernel.taken(at::convolution(kernel.shown(input), kernel.shown(weight), b, stride, padding, dilation,
                                      transposed, output_padding, groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> wanted) {
  const at::AutoDispatchBelowADInplaceOrView below;
  Kernel kernel;
  const int64_t bias = transposed ? weight.size(1) * groups : weight.size(0);
  const auto [a, b, c] =
      at::convolution_backward(kernel.shown(gradient), kernel.shown(input), kernel.shown(weight), at::IntArrayRef(bias),
                               stride, padding, dilation, transposed, output_padding, groups, wanted);
  return {kernel.taken(a), kernel.taken(b), kernel.taken(c)};
}

void set_sizes(const at::Tensor& t, at::IntArrayRef size, at::IntArrayRef stride, int64_t offset) {
  const size_t bytes = at::detail::computeStorageNbytes(size, stride, t.itemsize(), static_cast<size_t>(offset));
  if (bytes > t.storage().nbytes()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(t.storage(), bytes);
  }
  t.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
}

const at::Tensor& resize(const at::Tensor& t, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  const at::Tensor like(at::detail::empty_meta(size, t.scalar_type(), format));
  set_sizes(t, size, like.strides(), t.storage_offset());
  return t;
}

at::Tensor& set_to_storage(at::Tensor& t, at::Storage storage, int64_t offset, at::IntArrayRef size,
                           at::IntArrayRef stride) {
  const at::Tensor like(at::detail::empty_meta(size, t.scalar_type()));
  t.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  set_sizes(t, size, stride.data() == nullptr || stride.size() != size.size() ? like.strides() : stride, offset);
  return t;
}

at::Tensor& set_to_whole_storage(at::Tensor& t, at::Storage storage) {
  const auto count = static_cast<int64_t>(storage.nbytes() / t.itemsize());
  return set_to_storage(t, std::move(storage), 0, {count}, {1});
}

at::Tensor& set_to_tensor(at::Tensor& t, const at::Tensor& source) {
  return set_to_storage(t, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_to_nothing(at::Tensor& t) {
  return set_to_storage(t, c10::Storage(c10::Storage::use_byte_size_t(), 0, device_allocator.allocate(0),
                                        &device_allocator, true), 0, {0}, {1});
}

// Autocast: what CUDA computes in 16 bits, what in fp32, and what in the widest of its inputs.
enum class Cast { kLower, kFloat, kWidest };

template <Cast kCast>
void autocast(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastPrivateUse1);
  const size_t first = stack->size() - op.schema().arguments().size();
  const at::ScalarType lower = at::autocast::get_autocast_dtype(kType);
  at::ScalarType to = kCast == Cast::kFloat ? at::kFloat : lower;
  const auto look = [&](const at::Tensor& t) {
    if (is_ours(t) && t.scalar_type() == at::kFloat) {
      to = at::kFloat;
    }
  };
  const auto cast = [&](const at::Tensor& t) {
    return t.defined() ? at::autocast::cached_cast(to, t, kType) : t;
  };
  if (kCast == Cast::kWidest) {
    for (size_t i = first; i < stack->size(); ++i) {
      if ((*stack)[i].isTensor()) {
        look((*stack)[i].toTensor());
      } else if ((*stack)[i].isTensorList()) {
        for (const at::Tensor& t : (*stack)[i].toTensorVector()) {
          look(t);
        }
      }
    }
  }
  for (size_t i = first; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (value.isTensor()) {
      value = cast(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list = value.toTensorVector();
      for (at::Tensor& t : list) {
        t = cast(t);
      }
      value = c10::List<at::Tensor>(std::move(list));
    }
  }
  op.callBoxed(stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_as_cpu>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("mse_loss", torch::CppFunction::makeFromBoxedFunction<&run_as_cpu>());  // with out= it warns
  m.impl("resize_", &resize);
  m.impl("set_", &set_to_nothing);
  m.impl("set_.source_Storage", &set_to_whole_storage);
  m.impl("set_.source_Storage_storage_offset", &set_to_storage);
  m.impl("set_.source_Tensor", &set_to_tensor);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  for (const char* name : {"_convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d.input",
                           "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul",
                           "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul",
                           "linalg_multi_dot", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
                           "_scaled_dot_product_flash_attention", "scaled_dot_product_attention"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&autocast<Cast::kLower>>());
  }
  for (const char* name :
       {"acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt",
        "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm",
        "native_layer_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm", "cosine_similarity",
        "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div",
        "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss",
        "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist",
        "pdist", "cdist", "renorm", "logsumexp", "prod", "softmax.int", "log_softmax.int", "cumprod", "cumsum",
        "linalg_vector_norm", "linalg_matrix_norm", "sum", "sum.dim_IntList", "norm.Scalar"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&autocast<Cast::kFloat>>());
  }
  for (const char* name : {"addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler",
                           "index_put", "tensordot", "scatter_add", "cat", "stack"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&autocast<Cast::kWidest>>());
  }
}

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace
}  // namespace walled

// For Python.
extern "C" {
__attribute__((visibility("default"))) int64_t walled_count_of(int which) { return walled::counts[which]; }
__attribute__((visibility("default"))) int64_t walled_in_use() { return walled::Memory::get().in_use(); }
__attribute__((visibility("default"))) void walled_set_lag(int64_t queries) { walled::lag = queries; }
// What a kernel that is not PyTorch's sees there: tests/support/emulated_streams.h.
__attribute__((visibility("default"))) void walled_show(void* to, const void* from, size_t bytes) {
  const std::lock_guard lock(walled::device_mutex);
  void* block = walled::Memory::get().block_of(from);
  walled::Memory::get().open(block);
  std::memcpy(to, from, bytes);
  walled::Memory::get().close(block);
}
// The next generator that is made is the one that ops draw from when they are given none.
__attribute__((visibility("default"))) void walled_hand_out_default() { walled::hand_out_the_default = true; }
}
