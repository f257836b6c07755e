// SPDX-License-Identifier: Apache-2.0
// Where the gradients of many parameters lie, found without a word of Python for each.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

#include "hooks/torch/tap/export.h"
#include "hooks/torch/tap/held/rows_written.h"

namespace nanhunt::tap {

// Parameters on the CPU, which live longer than this, with what they were when it was made.
class Gradients {
 public:
  // `layouts`: numbers of the layouts of contiguous tensors like each parameter.
  Gradients(const std::int64_t* parameters, const std::int64_t* layouts, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      auto* const impl = reinterpret_cast<at::TensorImpl*>(static_cast<std::uintptr_t>(parameters[i]));
      all_.push_back({impl, layouts[i], impl->dtype(), impl->sizes().vec()});
    }
  }

  enum class What : std::int32_t { kGradients = 0, kWeights = 1, kUnheardWeights = 2 };  // 2: of tables as a whole, too

  // Of each gradient, or of each parameter, its address and layout number into `pairs`, and whose it is into
  // `which`: how many there are. Into `others` whose is not like the parameter was (on a device, of another format or
  // shape, a subclass, with other strides), with -1 behind the last.
  std::int64_t collect(What what, std::int64_t* pairs, std::int64_t* which, std::int64_t* others) const {
    const bool weights = what != What::kGradients;
    std::int64_t found = 0;
    *others = -1;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      const Parameter& parameter = all_[i];
      const at::Tensor gradient = weights ? at::Tensor(c10::intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>::reclaim_copy(parameter.tensor)) : parameter.tensor->grad();
      if (!gradient.defined() || (what == What::kWeights && writes_few_rows(*parameter.tensor))) continue;
      if (gradient.layout() != c10::kStrided || !gradient.is_cpu() || gradient.dtype() != parameter.dtype ||
          gradient.sizes() != c10::IntArrayRef(parameter.sizes) || !gradient.is_contiguous() ||
          gradient.key_set().has(c10::DispatchKey::Python) || !gradient.has_storage() || !is_there(gradient)) {
        *others = static_cast<std::int64_t>(i);
        *++others = -1;
        continue;
      }
      pairs[2 * found] = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(gradient.const_data_ptr()));
      pairs[2 * found + 1] = parameter.layout;
      which[found++] = static_cast<std::int64_t>(i);
    }
    return found;
  }

 private:
  // Of a large table, as its gradient says: where ops are heard, rows are read when they are written.
  static bool writes_few_rows(const at::TensorImpl& table) {
    const at::Tensor& gradient = table.grad();
    return gradient.defined() && gradient.layout() == c10::kSparse && gradient.sparse_dim() == 1 &&
           table.numel() >= kLarge && gradient._nnz() * kFewRows < table.sizes()[0];
  }

  static bool is_there(const at::Tensor& t) {
    const std::int64_t end = t.storage_offset() + t.numel();
    return static_cast<std::size_t>(end) * t.itemsize() <= t.storage().nbytes();
  }

  struct Parameter {
    at::TensorImpl* tensor;
    std::int64_t layout;
    caffe2::TypeMeta dtype;
    std::vector<std::int64_t> sizes;
  };
  std::vector<Parameter> all_;
};

}  // namespace nanhunt::tap

NANHUNT_TAP void* nanhunt_tap_gradients_of(const std::int64_t* parameters, const std::int64_t* layouts,
                                           std::size_t count) noexcept {
  try {
    return new nanhunt::tap::Gradients(parameters, layouts, count);
  } catch (const std::exception&) {
    return nullptr;
  }
}
// Python's lock is held: nobody takes a gradient away meanwhile.
NANHUNT_TAP std::int64_t nanhunt_tap_gradients(const void* of, std::int32_t what, std::int64_t* pairs,
                                               std::int64_t* which, std::int64_t* others) noexcept {
  try {
    using nanhunt::tap::Gradients;
    if (of == nullptr) return -1;
    return static_cast<const Gradients*>(of)->collect(static_cast<Gradients::What>(what), pairs, which, others);
  } catch (const std::exception&) {
    return -1;
  }
}
NANHUNT_TAP void nanhunt_tap_gradients_free(void* of) noexcept { delete static_cast<nanhunt::tap::Gradients*>(of); }
