// SPDX-License-Identifier: Apache-2.0
// Tensors of the bundled engine: a strided view of reference-counted storage, with define-by-run
// autograd. 16-bit ops compute in fp32 and round each stored result. Misuse throws
// std::invalid_argument as "[op] expected ..., got ...".
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/dtype.h"
#include "nanhunt/engine/device.h"
#include "nanhunt/tensor_view.h"

namespace nanhunt::engine {

using Shape = std::vector<std::int64_t>;

// Bytes with a generation number that is never reused, and a version that counts in-place writes. Memory of ended
// storages is used again: a new storage has a new generation, wherever it lies.
class Storage {
 public:
  enum class Contents : std::uint8_t { kZero, kUndefined };
  // Tells observers that the generation began.
  explicit Storage(std::size_t bytes, Contents contents = Contents::kZero, const Device& device = {});
  ~Storage();                           // tells observers that the generation ended
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  std::byte* data() { return data_; }  // an address of the device: only for the CPU one to read
  const std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  const Device& device() const { return device_; }
  // The whole contents as host memory, whatever the device; waits for it.
  void read(std::byte* to) const;
  void write(const std::byte* from);  // does not bump the version
  std::uint64_t generation() const { return generation_; }
  std::uint32_t version() const { return version_; }
  void bump_version() { ++version_; }

 private:
  friend class Tensor;
  // Indices that came from the CPU are remembered there, so that checking them waits for no device. Null once written
  // to.
  const std::int64_t* remembered() const { return remembered_version_ == version_ ? remembered_.get() : nullptr; }

  Device device_;
  std::byte* data_;  // 64-byte aligned
  std::size_t bytes_;
  std::uint64_t generation_;
  std::uint32_t version_ = 0;
  std::shared_ptr<const std::int64_t[]> remembered_;
  std::uint32_t remembered_version_ = 0;
};

struct Node;  // autograd.h
struct TensorImpl;

// A handle; copies share everything. An undefined tensor (default-constructed) holds nothing.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(std::shared_ptr<TensorImpl> impl) : impl_(std::move(impl)) {}

  // Factories. Contents are zero unless said otherwise. They are not ops and are not observed.
  static Tensor zeros(Shape sizes, DType dtype, const Device& device = {});
  // Undefined contents: write every element before anybody reads one.
  static Tensor empty(Shape sizes, DType dtype, const Device& device = {});
  static Tensor full(Shape sizes, double value, DType dtype, const Device& device = {});
  static Tensor from_values(std::span<const double> values, Shape sizes, DType dtype);  // rounds once
  static Tensor from_indices(std::span<const std::int64_t> values, Shape sizes);        // int64

  bool defined() const { return impl_ != nullptr; }
  DType dtype() const;
  const Device& device() const;
  const Shape& sizes() const;
  const Shape& strides() const;  // in elements
  std::int64_t size(int dim) const;  // negative counts from the end
  int dim() const;
  std::int64_t numel() const;
  std::int64_t storage_offset() const;  // in elements
  bool is_contiguous() const;
  const std::shared_ptr<Storage>& storage() const;
  std::uint32_t version() const;  // of the contents as this tensor sees them: the storage's
  TensorView view() const;        // borrowed: valid while this tensor lives; without data unless on the CPU

  void* raw();  // first element; throws unless on the CPU
  const void* raw() const;
  template <typename T>
  T* data() { return static_cast<T*>(raw()); }
  template <typename T>
  const T* data() const { return static_cast<const T*>(raw()); }

  double item() const;                         // one element
  double at(std::int64_t flat_index) const;    // logical row-major index
  std::vector<double> to_vector() const;       // logical row-major order
  Tensor clone() const;                        // contiguous copy, no autograd, not observed
  Tensor detach() const;                       // shares storage, no autograd
  // Itself where it is on that device already, else a copy without gaps, no autograd, not observed. Off a device it
  // waits.
  Tensor on(const Device& device) const;
  // All indices of an int64 tensor in logical order, without waiting for the device where it came from the CPU as it
  // is.
  std::vector<std::int64_t> to_indices() const;
  void copy_from(const Tensor& source);        // in-place write, converts dtype with one rounding; not observed

  // Autograd.
  bool requires_grad() const;
  Tensor& set_requires_grad(bool value);  // leaves only
  bool is_leaf() const;
  const Tensor& grad() const;  // undefined until a backward reached it
  void set_grad(Tensor grad);
  void backward() const;       // from a one-element tensor, with gradient 1

  const std::shared_ptr<TensorImpl>& impl() const { return impl_; }

 private:
  void remember_as(const Tensor& source);
  std::shared_ptr<TensorImpl> impl_;
};

}  // namespace nanhunt::engine
