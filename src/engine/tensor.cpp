// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/tensor.h"

#include <fmt/format.h>

#include "nanhunt/engine/autograd.h"
#include "src/engine/backend.h"
#include "src/engine/ops/device/device_calls.h"
#include "src/engine/ops/op.h"
#include "src/engine/ops/loops/strided.h"

namespace nanhunt::engine {
namespace {

Tensor allocate(Shape sizes, DType dtype, const Device& device = {},
                Storage::Contents contents = Storage::Contents::kUndefined) {
  const auto n = static_cast<std::size_t>(numel_of(sizes));
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(n, dtype_size(dtype), &bytes)) fail("tensor", "at most 2^40 bytes", describe(sizes));
  auto impl = std::make_shared<TensorImpl>();
  impl->storage = std::make_shared<Storage>(bytes, contents, device);
  impl->dtype = dtype;
  impl->strides = contiguous_strides(sizes);
  impl->sizes = std::move(sizes);
  return Tensor(std::move(impl));
}

const TensorImpl& get(const Tensor& tensor) {
  if (!tensor.defined()) fail("tensor", "a tensor", "an undefined tensor");
  return *tensor.impl();
}

}  // namespace

Tensor Tensor::zeros(Shape sizes, DType dtype, const Device& device) {
  return allocate(std::move(sizes), dtype, device, Storage::Contents::kZero);
}

Tensor Tensor::empty(Shape sizes, DType dtype, const Device& device) {
  return allocate(std::move(sizes), dtype, device);
}

Tensor Tensor::full(Shape sizes, double value, DType dtype, const Device& device) {
  Tensor out = allocate(std::move(sizes), dtype, device);
  if (!device.is_cpu()) {
    device_copy(out, full({}, value, dtype));
    return out;
  }
  const std::size_t size = dtype_size(dtype);
  auto* at = static_cast<std::byte*>(out.raw());
  for (std::int64_t i = 0, n = out.numel(); i < n; ++i, at += size) store_from_f64(dtype, at, value);
  return out;
}

Tensor Tensor::from_values(std::span<const double> values, Shape sizes, DType dtype) {
  if (static_cast<std::size_t>(numel_of(sizes)) != values.size()) {
    fail("from_values", fmt::format("{} values for {}", numel_of(sizes), describe(sizes)),
         fmt::format("{}", values.size()));
  }
  Tensor out = allocate(std::move(sizes), dtype);
  const std::size_t size = dtype_size(dtype);
  auto* at = static_cast<std::byte*>(out.raw());
  for (double value : values) {
    store_from_f64(dtype, at, value);
    at += size;
  }
  return out;
}

Tensor Tensor::from_indices(std::span<const std::int64_t> values, Shape sizes) {
  if (static_cast<std::size_t>(numel_of(sizes)) != values.size()) {
    fail("from_indices", fmt::format("{} values for {}", numel_of(sizes), describe(sizes)),
         fmt::format("{}", values.size()));
  }
  Tensor out = allocate(std::move(sizes), DType::kI64);
  std::copy(values.begin(), values.end(), out.data<std::int64_t>());
  return out;
}

DType Tensor::dtype() const { return get(*this).dtype; }
const Device& Tensor::device() const { return get(*this).storage->device(); }
const Shape& Tensor::sizes() const { return get(*this).sizes; }
const Shape& Tensor::strides() const { return get(*this).strides; }
std::int64_t Tensor::size(int dim) const {
  return get(*this).sizes[static_cast<std::size_t>(wrap_dim("size", *this, dim))];
}
int Tensor::dim() const { return static_cast<int>(get(*this).sizes.size()); }
std::int64_t Tensor::numel() const { return view().numel(); }
std::int64_t Tensor::storage_offset() const { return get(*this).offset; }
bool Tensor::is_contiguous() const { return view().is_contiguous(); }
const std::shared_ptr<Storage>& Tensor::storage() const { return get(*this).storage; }
std::uint32_t Tensor::version() const { return get(*this).storage->version(); }

TensorView Tensor::view() const {
  const TensorImpl& impl = get(*this);
  const void* data = device().is_cpu() ? raw() : nullptr;
  return {.data = data, .dtype = impl.dtype, .sizes = impl.sizes, .strides = impl.strides};
}

void* Tensor::raw() { return const_cast<void*>(std::as_const(*this).raw()); }
const void* Tensor::raw() const {
  const TensorImpl& impl = get(*this);
  if (!impl.storage->device().is_cpu()) {
    fail("tensor", "contents on the CPU (move it with on(), or use an op that this device has)",
         describe(*this) + " on " + describe(impl.storage->device()));
  }
  return impl.storage->data() + static_cast<std::size_t>(impl.offset) * dtype_size(impl.dtype);
}

double Tensor::item() const {
  if (numel() != 1) fail("item", "a tensor of one element", describe(*this));
  if (!device().is_cpu()) return at(0);
  return load_as_f64(dtype(), raw());
}

double Tensor::at(std::int64_t flat_index) const {
  if (flat_index < 0 || flat_index >= numel()) {
    fail("at", fmt::format("an index below {}", numel()), fmt::format("{}", flat_index));
  }
  std::int64_t offset = 0;
  for (std::size_t d = sizes().size(); d-- > 0;) {
    offset += flat_index % sizes()[d] * strides()[d];
    flat_index /= sizes()[d];
  }
  const auto size = static_cast<std::int64_t>(dtype_size(dtype()));
  if (!device().is_cpu()) {
    std::byte element[sizeof(double)];
    backend_of(device()).to_host(element, storage()->data() + (storage_offset() + offset) * size, dtype_size(dtype()));
    return load_as_f64(dtype(), element);
  }
  return load_as_f64(dtype(), static_cast<const std::byte*>(raw()) + offset * size);
}

std::vector<double> Tensor::to_vector() const {
  if (!device().is_cpu()) return on(Device{}).to_vector();
  std::vector<double> values(static_cast<std::size_t>(numel()));
  const Reader<double> reader(*this, sizes(), dtype());
  double buffer[kChunk];
  for (std::int64_t start = 0, n = numel(); start < n; start += kChunk) {
    const std::int64_t count = std::min(kChunk, n - start);
    std::copy_n(reader.read(start, count, buffer), count, values.begin() + start);
  }
  return values;
}

Tensor Tensor::clone() const {
  Tensor out = allocate(sizes(), dtype(), device());
  copy_elements(out, *this);
  return out;
}

Tensor Tensor::on(const Device& device) const {
  if (this->device() == device) return *this;
  const Tensor dense = is_contiguous() ? *this : clone();
  Tensor out = allocate(sizes(), dtype(), device);
  const std::size_t size = dtype_size(dtype()), bytes = static_cast<std::size_t>(numel()) * size;
  if (bytes == 0) return out;
  const std::byte* from = dense.storage()->data() + static_cast<std::size_t>(dense.storage_offset()) * size;
  if (device.is_cpu()) {
    backend_of(this->device()).to_host(out.storage()->data(), from, bytes);
  } else if (this->device().is_cpu()) {
    backend_of(device).to_device(out.storage()->data(), from, bytes);
    if (dtype() == DType::kI64) {
      std::shared_ptr<std::int64_t[]> copy(new std::int64_t[static_cast<std::size_t>(numel())]);
      std::copy_n(dense.data<std::int64_t>(), numel(), copy.get());
      out.storage()->remembered_ = std::move(copy);
    }
  } else {
    const Tensor here = on(Device{});
    backend_of(device).to_device(out.storage()->data(), here.raw(), bytes);
  }
  return out;
}

std::vector<std::int64_t> Tensor::to_indices() const {
  if (dtype() != DType::kI64) fail("to_indices", "an int64 tensor", describe(*this));
  if (!device().is_cpu() && is_contiguous()) {
    if (const std::int64_t* known = storage()->remembered(); known != nullptr) {
      return {known + storage_offset(), known + storage_offset() + numel()};
    }
  }
  const Tensor here = on(Device{});
  const Tensor dense = here.is_contiguous() ? here : here.clone();
  const auto* values = dense.data<std::int64_t>();
  return {values, values + dense.numel()};
}

// What is known of indices goes with a copy of them that fills its storage.
void Tensor::remember_as(const Tensor& source) {
  if (dtype() != DType::kI64 || source.dtype() != DType::kI64) return;
  if (device().is_cpu() || source.device() != device()) return;
  const auto filled = static_cast<std::size_t>(numel()) * dtype_size(DType::kI64) == storage()->bytes();
  if (!filled || !is_contiguous() || !source.is_contiguous() || source.storage()->remembered() == nullptr) return;
  storage()->remembered_ = {source.storage()->remembered_, source.storage()->remembered() + source.storage_offset()};
  storage()->remembered_version_ = storage()->version();
}

Tensor Tensor::detach() const { return make_view(*this, sizes(), strides(), storage_offset()); }

void Tensor::copy_from(const Tensor& source) {
  if (source.sizes() != sizes()) fail("copy_from", describe(sizes()), describe(source));
  copy_elements(*this, source);
  storage()->bump_version();
  remember_as(source);
}

bool Tensor::requires_grad() const { return get(*this).requires_grad; }

Tensor& Tensor::set_requires_grad(bool value) {
  if (!is_leaf()) fail("set_requires_grad", "a leaf", "the result of an op; use detach()");
  if (value) expect_floating("set_requires_grad", *this, "self");
  impl_->requires_grad = value;
  return *this;
}

bool Tensor::is_leaf() const { return get(*this).grad_fn == nullptr; }
const Tensor& Tensor::grad() const { return get(*this).grad; }

void Tensor::set_grad(Tensor grad) {
  get(*this);
  if (!grad.defined()) {
    impl_->grad = {};
    return;
  }
  if (grad.sizes() != sizes() || grad.dtype() != dtype()) fail("set_grad", describe(*this), describe(grad));
  if (grad.requires_grad()) grad = grad.detach();
  impl_->grad = std::move(grad);
}

void Tensor::backward() const { engine::backward(*this); }

}  // namespace nanhunt::engine
