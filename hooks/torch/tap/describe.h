// SPDX-License-Identifier: Apache-2.0
// A tensor as the four words of a row: address, identity, offset, layout.
#pragma once

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/TensorWrapper.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hooks/torch/tap/identity.h"
#include "hooks/torch/tap/listening.h"
#include "hooks/torch/tap/recording.h"

namespace nanhunt::tap {

// Around what the tap itself computes: nobody hears of it.
struct Unheard {
  c10::impl::ExcludeDispatchKeyGuard guard{
      c10::DispatchKeySet(listening_key()) | c10::autograd_dispatch_keyset | c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView) |
      c10::DispatchKeySet(c10::DispatchKey::Python) | c10::DispatchKeySet(c10::DispatchKey::PythonTLSSnapshot) |
      c10::autocast_dispatch_keyset};
  at::RecordFunctionGuard unrecorded{false};  // a profiler
};

// A borrowed tensor, from the address that Python calls `_cdata`.
inline at::Tensor tensor_at(std::int64_t address) {
  return at::Tensor(c10::intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>::reclaim_copy(
      reinterpret_cast<at::TensorImpl*>(static_cast<std::uintptr_t>(address))));
}

// Undefined: it has none. PyTorch warns where a tensor is asked that is no leaf.
inline const at::Tensor& gradient_of(const at::Tensor& t) { return t.unsafeGetTensorImpl()->grad(); }

// The whole storage as one dimension, of the dtype of `t`.
inline at::Tensor whole_of(c10::Storage storage, const at::Tensor& t) {
  const auto count = static_cast<std::int64_t>(storage.nbytes() / t.itemsize());
  at::Tensor whole = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), t.key_set(), t.dtype());
  whole.unsafeGetTensorImpl()->set_sizes_contiguous({count});
  return whole;
}
inline at::Tensor whole_of(const at::Tensor& t) { return whole_of(t.storage(), t); }

using WeakTensor = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;

struct Quad {
  std::int64_t data = 0, word = 0, offset = 0, layout = 0;
  Identity* identity = nullptr;
  bool wide = false;  // fp64
};

// The tensor that transforms (torch.func.grad, vmap) stand around, which has the numbers.
inline const at::Tensor& unwrapped(const at::Tensor& t) {
  if (const auto* of_grad = at::functorch::maybeGetTensorWrapper(t)) return unwrapped(of_grad->value());
  if (const auto* of_vmap = at::functorch::maybeGetBatchedImpl(t)) return unwrapped(of_vmap->value());
  return t;
}

class Describer {
 public:
  Describer(const Recording& to, Notes& notes) : to_(to), notes_(notes) {}

  Identities identities;

  // nullopt: it cannot be watched, which is noted.
  std::optional<Quad> describe(const at::Tensor& t, bool with_data) {
    if (!t.defined()) return std::nullopt;
    if (t.layout() != c10::kStrided || !t.has_storage() || t.is_nested() || t.key_set().has(c10::DispatchKey::Python)) {
      if (const at::Tensor& inner = unwrapped(t); !inner.is_same(t)) return describe(inner, with_data);
      ++notes_[kind_of(t) + " tensors"];
      return std::nullopt;
    }
    const c10::Storage& storage = t.storage();
    Quad quad;
    const at::ScalarType type = t.scalar_type();
    const std::int32_t dtype = dtype_of(type);
    const bool pairs = type == at::kComplexFloat || type == at::kComplexDouble;
    const auto layout = layout_of(t, type, dtype, pairs);
    if (layout < 0) {
      ++notes_[kind_of(t) + " tensors"];
      return std::nullopt;
    }
    quad.layout = layout;
    quad.wide = type == at::kDouble || type == at::kComplexDouble;
    quad.offset = t.storage_offset() * (pairs ? 2 : 1);
    quad.identity = &identities.of(storage.unsafeGetStorageImpl());
    quad.word = quad.identity->word;
    if (!with_data) return quad;
    if (dtype < 0 && !pairs) {
      if (c10::isFloatingType(type) || t.is_quantized()) ++notes_[kind_of(t) + " tensors"];
    } else if (t.device().is_cpu()) {
      if (holds(t, storage)) quad.data = address(t);
    } else if (t.device().type() != c10::kMeta) {
      const std::int64_t stream = stream_of(t.device());
      if (stream > 0) {
        if (holds(t, storage)) {
          quad.data = address(t);
          quad.layout |= stream;
        }
      } else if (stream == 0 && holds(t, storage)) {
        ++notes_["what waiting costs: tensors on " + c10::DeviceTypeName(t.device().type(), true) +
                   " are copied to the host to be read"];
        quad.data = on_host(t);
      }
    }
    return quad;
  }

  void release_hosts() { hosts_.clear(); }

  // For the layout word: number << 32; 0: it cannot be read there; -1: not now.
  std::int64_t stream_of(c10::Device device) {
    const auto type = device.type();
    if (type != c10::kCUDA) return to_.stream(c10::DeviceTypeName(type, true).c_str(), device.index());
    const c10::impl::VirtualGuardImpl guard(type);
    const c10::Stream stream = guard.getStream(device);
    const auto [known, added] = streams_.try_emplace({device.index(), stream.id()}, -1);
    if (known->second < 0) known->second = to_.stream(c10::DeviceTypeName(type, true).c_str(), device.index());
    return known->second;
  }

  // Whether the memory is there: storages can be shrunk under their tensors (sharded training does).
  static bool holds(const at::Tensor& t) { return holds(t, t.storage()); }

 private:
  static std::int64_t address(const at::Tensor& t) {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(
        static_cast<const char*>(t.storage().unsafeGetStorageImpl()->data()) + t.storage_offset() * t.itemsize()));
  }

  // NANHUNT_ dtype; -1: none.
  static std::int32_t dtype_of(at::ScalarType type) {
    switch (type) {
      case at::kHalf: return NANHUNT_F16;
      case at::kBFloat16: return NANHUNT_BF16;
      case at::kFloat: return NANHUNT_F32;
      case at::kDouble: return NANHUNT_F64;
      case at::kFloat8_e4m3fn: return NANHUNT_E4M3FN;
      case at::kFloat8_e5m2: return NANHUNT_E5M2;
      case at::kLong: return NANHUNT_I64;
      case at::kInt: return NANHUNT_I32;
      case at::kByte: return NANHUNT_U8;
      case at::kBool: return NANHUNT_BOOL;
      default: return -1;
    }
  }

  static bool holds(const at::Tensor& t, const c10::Storage& storage) {
    if (t.numel() == 0) return true;
    std::int64_t last = t.storage_offset();
    const auto sizes = t.sizes(), strides = t.strides();
    for (std::size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
    return static_cast<std::size_t>(last + 1) * t.itemsize() <= storage.nbytes();
  }

  static std::string kind_of(const at::Tensor& t) {
    if (t.key_set().has(c10::DispatchKey::Python)) return "subclass";
    if (t.is_nested()) return "nested";
    if (t.layout() == c10::kSparse) return "sparse";
    if (t.layout() != c10::kStrided) {
      switch (t.layout()) {
        case c10::kSparseCsr: return "sparse_csr";
        case c10::kSparseCsc: return "sparse_csc";
        case c10::kSparseBsr: return "sparse_bsr";
        case c10::kSparseBsc: return "sparse_bsc";
        case c10::kMkldnn: return "_mkldnn";
        default: return "jagged";
      }
    }
    if (t.is_quantized()) return "quantised";
    std::string name = type_name(t.scalar_type());
    return t.device().is_cpu() ? name : c10::DeviceTypeName(t.device().type(), true) + " " + name;
  }

  static std::string type_name(at::ScalarType type) {
    switch (type) {
      case at::kFloat8_e4m3fnuz: return "float8_e4m3fnuz";
      case at::kFloat8_e5m2fnuz: return "float8_e5m2fnuz";
      case at::kComplexHalf: return "complex32";
      default: break;
    }
    std::string name = c10::toString(type);
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return name;
  }

  // -1: refused.
  std::int64_t layout_of(const at::Tensor& t, at::ScalarType type, std::int32_t dtype, bool pairs) {
    const auto sizes = t.sizes(), strides = t.strides();
    std::uint64_t hash = 1469598103934665603ull ^ (static_cast<std::uint64_t>(type) << 8 | sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      hash = (hash ^ static_cast<std::uint64_t>(sizes[i])) * 0x9E3779B97F4A7C15ull;
      hash = (hash ^ (hash >> 29) ^ static_cast<std::uint64_t>(strides[i])) * 0xBF58476D1CE4E5B9ull;
    }
    std::vector<Layout>& alike = layouts_[hash];
    for (const Layout& layout : alike)
      if (layout.type == type && sizes == c10::IntArrayRef(layout.sizes) && strides == c10::IntArrayRef(layout.strides))
        return layout.number;
    Layout layout{type, sizes.vec(), strides.vec(), -1};
    std::vector<std::int64_t> its_sizes = layout.sizes, its_strides = layout.strides;
    std::int32_t told = dtype;
    if (pairs) {  // of real numbers
      told = type == at::kComplexFloat ? NANHUNT_F32 : NANHUNT_F64;
      its_sizes.push_back(2);
      for (std::int64_t& stride : its_strides) stride *= 2;
      its_strides.push_back(1);
    } else if (told < 0) {
      told = NANHUNT_I64;  // other integers: never bad; described without data
    }
    layout.number = to_.layout(to_.self, told, static_cast<std::int32_t>(its_sizes.size()), its_sizes.data(),
                               its_strides.data());
    const std::int64_t number = layout.number;
    if (number >= 0) alike.push_back(std::move(layout));
    return number;
  }

  // Memory with the numbers of t in its strides, from the first one on; alive until release_hosts().
  std::int64_t on_host(const at::Tensor& t) {
    const Unheard unheard;
    std::vector<std::int64_t> sizes = t.sizes().vec();
    const auto strides = t.strides();
    std::int64_t span = t.numel() > 0 ? 1 : 0, product = 1;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (strides[i] == 0) sizes[i] = 1;  // what was expanded is there once
      if (span > 0) span += (sizes[i] - 1) * strides[i];
      product *= sizes[i];
    }
    at::Tensor copy;
    if (span <= 2 * product) {  // windows may overlap, and nothing can be written into those
      copy = t.as_strided({span}, {1}).cpu();
    } else {
      copy = at::empty_strided(sizes, strides, t.options().device(c10::kCPU));
      copy.copy_(t.as_strided(sizes, strides));
    }
    hosts_.push_back(copy);
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(copy.const_data_ptr()));
  }

  struct Layout {
    at::ScalarType type;
    std::vector<std::int64_t> sizes, strides;
    std::int64_t number;
  };
  const Recording& to_;
  Notes& notes_;
  ska::flat_hash_map<std::uint64_t, std::vector<Layout>> layouts_;
  std::map<std::pair<int, c10::StreamId>, std::int64_t> streams_;
  std::vector<at::Tensor> hosts_;
};

}  // namespace nanhunt::tap
