// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/device/device_support.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/portable/formats.h"
#include "src/engine/backend.h"
#include "src/engine/ops/loops/blas.h"

namespace nanhunt::engine::testing {
namespace {

using kernels::cuda::load_element;
using kernels::cuda::store_element;

// As the engine multiplies on the CPU: widened whole, one BLAS call, rounded once.
template <typename T>
void multiply_by_blas(const kernels::ProductCall& call) {
  const auto widened = [&](const kernels::MatrixOperand& o, std::int64_t batch, std::int64_t rows,
                           std::int64_t columns) {
    std::vector<T> values(static_cast<std::size_t>(rows * columns));
    const std::int64_t stored_rows = o.transposed ? columns : rows, stored_columns = o.transposed ? rows : columns;
    for (std::int64_t r = 0; r < stored_rows; ++r) {
      for (std::int64_t c = 0; c < stored_columns; ++c) {
        values[static_cast<std::size_t>(r * stored_columns + c)] =
            load_element<T>(call.dtype, o.data, batch * o.step + r * o.lead + c);
      }
    }
    return values;
  };
  const std::int64_t size = call.m * call.n;
  for (std::int64_t i = 0; i < call.batch; ++i) {
    const std::vector<T> a = widened(call.a, i, call.m, call.k), b = widened(call.b, i, call.k, call.n);
    std::vector<T> c(static_cast<std::size_t>(size));
    for (std::int64_t j = 0; j < size && call.beta != 0; ++j) {
      c[static_cast<std::size_t>(j)] = load_element<T>(call.result(), call.c, i * size + j);
    }
    gemm("device", BlasOperand<T>{a.data(), call.a.transposed ? call.m : call.k, call.a.transposed},
         BlasOperand<T>{b.data(), call.b.transposed ? call.k : call.n, call.b.transposed}, static_cast<T>(call.beta),
         c.data(), call.m, call.n, call.k);
    for (std::int64_t j = 0; j < size; ++j)
      store_element(call.result(), call.c, i * size + j, c[static_cast<std::size_t>(j)]);
  }
}

}  // namespace

ScopedEmulatedDevice::ScopedEmulatedDevice() {
  device.multiply = [](const kernels::ProductCall& call) {
    call.dtype == DType::kF64 ? multiply_by_blas<double>(call) : multiply_by_blas<float>(call);
  };
  set_emulated_backend(&device);
}

ScopedEmulatedDevice::~ScopedEmulatedDevice() {
  EXPECT_EQ(device.live(), 0U) << "tensors that outlive their device";
  if (device.live() == 0) set_emulated_backend(nullptr);
}

Tensor same_on(const Tensor& tensor, const Device& device) {
  auto impl = std::make_shared<TensorImpl>();
  impl->storage = std::make_shared<Storage>(tensor.storage()->bytes(), Storage::Contents::kUndefined, device);
  impl->storage->write(tensor.storage()->data());
  impl->dtype = tensor.dtype();
  impl->sizes = tensor.sizes();
  impl->strides = tensor.strides();
  impl->offset = tensor.storage_offset();
  impl->requires_grad = tensor.requires_grad();
  return Tensor(std::move(impl));
}

Tensor same_as(const Tensor& tensor, DType dtype) {
  const NoGradGuard no_grad;
  auto impl = std::make_shared<TensorImpl>();
  const std::size_t elements = tensor.storage()->bytes() / dtype_size(tensor.dtype());
  impl->storage = std::make_shared<Storage>(elements * dtype_size(dtype));
  impl->dtype = dtype;
  impl->sizes = tensor.sizes();
  impl->strides = tensor.strides();
  impl->offset = tensor.storage_offset();
  Tensor out(std::move(impl));
  out.copy_from(tensor.detach());
  return out.set_requires_grad(tensor.requires_grad());
}

std::vector<double> values_of(const Tensor& tensor) { return tensor.to_vector(); }

::testing::AssertionResult same_values(const Tensor& expected, const Tensor& actual) {
  if (expected.defined() != actual.defined()) return ::testing::AssertionFailure() << "one of them is undefined";
  if (!expected.defined()) return ::testing::AssertionSuccess();
  if (expected.sizes() != actual.sizes() || expected.dtype() != actual.dtype()) {
    return ::testing::AssertionFailure() << "another shape or dtype";
  }
  const std::vector<double> a = values_of(expected), b = values_of(actual);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool same =
        std::isnan(a[i]) ? std::isnan(b[i]) : std::bit_cast<std::uint64_t>(a[i]) == std::bit_cast<std::uint64_t>(b[i]);
    if (!same) {
      return ::testing::AssertionFailure() << "element " << i << " of " << a.size() << " "
                                           << dtype_name(expected.dtype()) << ": expected " << a[i] << ", got " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace nanhunt::engine::testing
