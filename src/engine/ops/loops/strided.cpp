// SPDX-License-Identifier: Apache-2.0
#include "src/engine/ops/loops/strided.h"

#include <cmath>
#include <cstring>

#include "kernels/cpu/convert.h"
#include "nanhunt/dtype.h"
#include "src/engine/ops/device/device_calls.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

template <typename T, typename Source, typename Load>
void load_run(const std::byte* data, std::int64_t stride, std::int64_t count, T* out, Load load) {
  const auto* from = reinterpret_cast<const Source*>(data);
  for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(load(from[i * stride]));
}

template <typename T, typename Target, typename Round>
void store_run(std::byte* data, std::int64_t stride, std::int64_t count, const T* values, Round round) {
  auto* to = reinterpret_cast<Target*>(data);
  for (std::int64_t i = 0; i < count; ++i) to[i * stride] = static_cast<Target>(round(values[i]));
}

std::uint16_t to_f16(float x) { return f32_to_f16(x); }
std::uint16_t to_f16(double x) { return f64_to_f16(x); }
std::uint16_t to_bf16(float x) { return f32_to_bf16(x); }
std::uint16_t to_bf16(double x) { return f64_to_bf16(x); }
template <DType kFormat>
std::uint16_t to_f16(Narrow<kFormat> x) {
  return to_half(x);
}
template <DType kFormat>
std::uint16_t to_bf16(Narrow<kFormat> x) {
  return to_bfloat(x);
}

constexpr auto kSame = [](auto x) { return x; };

template <typename T>
void load(DType dtype, const std::byte* data, std::int64_t stride, std::int64_t count, T* out) {
  const bool bulk = std::is_same_v<T, float> && stride == 1 && count >= 16;
  if constexpr (std::is_same_v<T, float>) {
    const auto* codes = reinterpret_cast<const std::uint16_t*>(data);
    const auto n = static_cast<std::size_t>(count);
    if (bulk && dtype == DType::kF16) return kernels::convert_f16_to_f32(codes, out, n);
    if (bulk && dtype == DType::kBF16) return kernels::convert_bf16_to_f32(codes, out, n);
  }
  switch (dtype) {
    case DType::kF16:
      return load_run<T, std::uint16_t>(data, stride, count, out, f16_to_f32);
    case DType::kBF16:
      return load_run<T, std::uint16_t>(data, stride, count, out, bf16_to_f32);
    case DType::kF32:
      return load_run<T, float>(data, stride, count, out, kSame);
    case DType::kF64:
      return load_run<T, double>(data, stride, count, out, kSame);
    case DType::kI64:
      return load_run<T, std::int64_t>(data, stride, count, out, kSame);
    case DType::kBool:
      return load_run<T, std::uint8_t>(data, stride, count, out, [](auto x) { return x != 0 ? 1 : 0; });
    default:
      break;
  }
  const auto size = static_cast<std::int64_t>(dtype_size(dtype));
  for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(load_as_f64(dtype, data + i * stride * size));
}

template <typename T>
void store(DType dtype, std::byte* data, std::int64_t stride, std::int64_t count, const T* values) {
  const bool bulk = std::is_same_v<T, float> && stride == 1 && count >= 16;
  if constexpr (std::is_same_v<T, float>) {
    auto* codes = reinterpret_cast<std::uint16_t*>(data);
    const auto n = static_cast<std::size_t>(count);
    if (bulk && dtype == DType::kF16) return kernels::convert_f32_to_f16(values, codes, n);
    if (bulk && dtype == DType::kBF16) return kernels::convert_f32_to_bf16(values, codes, n);
  }
  switch (dtype) {
    case DType::kF16:
      return store_run<T, std::uint16_t>(data, stride, count, values, [](T x) { return to_f16(x); });
    case DType::kBF16:
      return store_run<T, std::uint16_t>(data, stride, count, values, [](T x) { return to_bf16(x); });
    case DType::kF32:
      return store_run<T, float>(data, stride, count, values, kSame);
    case DType::kF64:
      return store_run<T, double>(data, stride, count, values, kSame);
    case DType::kBool:
      return store_run<T, std::uint8_t>(data, stride, count, values, [](T x) { return x != T{0} ? 1 : 0; });
    default:
      break;
  }
  const auto size = static_cast<std::int64_t>(dtype_size(dtype));
  for (std::int64_t i = 0; i < count; ++i) {
    store_from_f64(dtype, data + i * stride * size, static_cast<double>(values[i]));
  }
}

bool is_16_bit(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

template <typename Word>
void copy_words(const Tensor& target, const Tensor& source) {
  const Layout to(target.sizes(), target.sizes(), target.strides());
  const Layout from(target.sizes(), source.sizes(), source.strides());
  const auto* data = static_cast<const Word*>(source.raw());
  auto* out = static_cast<Word*>(const_cast<void*>(target.raw()));
  Word buffer[kChunk];
  const std::int64_t n = target.numel();
  for (std::int64_t start = 0; start < n; start += kChunk) {
    const std::int64_t count = std::min(kChunk, n - start);
    Word* gathered = buffer;
    from.for_runs(start, count, [&](std::int64_t offset, std::int64_t stride, std::int64_t length) {
      for (std::int64_t i = 0; i < length; ++i) *gathered++ = data[offset + i * stride];
    });
    const Word* next = buffer;
    to.for_runs(start, count, [&](std::int64_t offset, std::int64_t stride, std::int64_t length) {
      for (std::int64_t i = 0; i < length; ++i) out[offset + i * stride] = *next++;
    });
  }
}

template <typename T>
void convert_elements(const Tensor& target, const Tensor& source) {
  const Reader<T> reader(source, target.sizes(), source.dtype());
  const Writer<T> writer(target);
  T buffer[kChunk];
  const std::int64_t n = target.numel();
  for (std::int64_t start = 0; start < n; start += kChunk) {
    const std::int64_t count = std::min(kChunk, n - start);
    const T* values = reader.read(start, count, buffer);
    T* out = writer.target(start, buffer);
    if (out != values) std::copy_n(values, count, out);
    writer.commit(start, count, out);
  }
}

}  // namespace

Layout::Layout(const Shape& shape, const Shape& sizes, const Shape& strides) {
  const std::size_t lead = shape.size() - sizes.size();
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const std::int64_t size = shape[d];
    if (size == 1) continue;
    const std::int64_t stride = d < lead || sizes[d - lead] == 1 ? 0 : strides[d - lead];
    if (!sizes_.empty() && strides_.back() == stride * size) {
      sizes_.back() *= size;
      strides_.back() = stride;
    } else {
      sizes_.push_back(size);
      strides_.push_back(stride);
    }
  }
  if (sizes_.empty()) {
    sizes_.push_back(1);
    strides_.push_back(1);
  }
}

template <typename T>
Reader<T>::Reader(const Tensor& tensor, const Shape& shape, DType common)
    : layout_(shape, tensor.sizes(), tensor.strides()),
      data_(static_cast<const std::byte*>(tensor.raw())),
      dtype_(tensor.dtype()),
      common_(common),
      direct_(dtype_ == kDTypeOf<T> && (common == dtype_ || !is_16_bit(common)) && layout_.is_dense()) {}

template <typename T>
const T* Reader<T>::read(std::int64_t start, std::int64_t count, T* buffer) const {
  if (direct_) return reinterpret_cast<const T*>(data_) + start;
  const bool round_first = dtype_ != common_ && is_16_bit(common_) && dtype_ != DType::kBool;
  const auto size = static_cast<std::int64_t>(dtype_size(dtype_));
  T* out = buffer;
  layout_.for_runs(start, count, [&](std::int64_t offset, std::int64_t stride, std::int64_t length) {
    const std::byte* from = data_ + offset * size;
    const std::int64_t distinct = stride == 0 ? 1 : length;
    if (round_first) {
      for (std::int64_t i = 0; i < distinct; ++i) {
        out[i] = static_cast<T>(round_to(common_, load_as_f64(dtype_, from + i * stride * size)));
      }
    } else {
      load(dtype_, from, stride, distinct, out);
    }
    if (stride == 0) std::fill(out + 1, out + length, out[0]);
    out += length;
  });
  return buffer;
}

template <typename T>
Writer<T>::Writer(const Tensor& tensor)
    : layout_(tensor.sizes(), tensor.sizes(), tensor.strides()),
      data_(static_cast<std::byte*>(const_cast<void*>(tensor.raw()))),
      dtype_(tensor.dtype()),
      direct_(dtype_ == kDTypeOf<T> && layout_.is_dense()) {}

template <typename T>
void Writer<T>::commit(std::int64_t start, std::int64_t count, const T* values) const {
  if (direct_) return;
  const auto size = static_cast<std::int64_t>(dtype_size(dtype_));
  layout_.for_runs(start, count, [&](std::int64_t offset, std::int64_t stride, std::int64_t length) {
    store(dtype_, data_ + offset * size, stride, length, values);
    values += length;
  });
}

template <typename T>
Summer<T>::Summer(const Shape& shape, const Shape& sizes)
    : sizes_(sizes),
      layout_(shape, sizes, contiguous_strides(sizes)),
      sums_(static_cast<std::size_t>(numel_of(sizes))) {}

template <typename T>
void Summer<T>::add(std::int64_t start, std::int64_t count, const T* values) {
  layout_.for_runs(start, count, [&](std::int64_t offset, std::int64_t stride, std::int64_t length) {
    T* to = sums_.data() + offset;
    if (stride == 0) {
      *to += sum_block(values, length);
    } else {
      for (std::int64_t i = 0; i < length; ++i) to[i * stride] += values[i];
    }
    values += length;
  });
}

template <typename T>
Tensor Summer<T>::finish(DType via, DType dtype) const {
  Tensor out = Tensor::empty(sizes_, via);
  const Writer<T> writer(out);
  write_all(writer, 0, static_cast<std::int64_t>(sums_.size()), sums_.data());
  if (via == dtype) return out;
  Tensor converted = Tensor::empty(sizes_, dtype);
  copy_elements(converted, out);
  return converted;
}

void copy_elements(const Tensor& target, const Tensor& source) {
  const bool same_place = source.storage() == target.storage();
  if (same_place && source.storage_offset() == target.storage_offset() && source.sizes() == target.sizes() &&
      source.strides() == target.strides() && source.dtype() == target.dtype()) {
    return;
  }
  // Overlap: later chunks must not read what earlier ones wrote.
  const Tensor from = same_place ? source.clone() : source;
  if (!on_cpu(target) || !on_cpu(from)) {
    device_copy(target, from);
    return;
  }
  if (from.dtype() != target.dtype()) {
    const bool wide = !is_floating(from.dtype()) || from.dtype() == DType::kF64 || target.dtype() == DType::kF64 ||
                      !is_floating(target.dtype());
    wide ? convert_elements<double>(target, from) : convert_elements<float>(target, from);
    return;
  }
  const std::size_t size = dtype_size(target.dtype());
  if (target.is_contiguous() && from.is_contiguous() && from.sizes() == target.sizes()) {
    std::memcpy(const_cast<void*>(target.raw()), from.raw(), static_cast<std::size_t>(target.numel()) * size);
    return;
  }
  switch (size) {
    case 1:
      copy_words<std::uint8_t>(target, from);
      break;
    case 2:
      copy_words<std::uint16_t>(target, from);
      break;
    case 4:
      copy_words<std::uint32_t>(target, from);
      break;
    default:
      copy_words<std::uint64_t>(target, from);
      break;
  }
}

template class Reader<float>;
template class Reader<double>;
template class Reader<Narrow<DType::kF16>>;
template class Reader<Narrow<DType::kBF16>>;
template class Writer<float>;
template class Writer<double>;
template class Writer<Narrow<DType::kF16>>;
template class Writer<Narrow<DType::kBF16>>;
template class Summer<float>;
template class Summer<double>;

}  // namespace nanhunt::engine
