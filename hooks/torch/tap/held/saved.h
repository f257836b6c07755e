// SPDX-License-Identifier: Apache-2.0
// What an op was given, with copies of what it writes over. Little memory is copied as bytes, of which tensors are made
// where somebody asks: nobody does in a healthy step, and an optimizer counts steps in a tensor for each parameter.
#pragma once

#include <ATen/Functions.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "hooks/torch/tap/describe.h"
#include "hooks/torch/tap/plan.h"

namespace nanhunt::tap {

class Saved {
 public:
  using Values = std::vector<c10::IValue>;

  void clear() {
    args_.clear();
    bytes_.clear();
  }
  void set(Values args) { args_ = std::move(args); }

  // Whether the bytes of what `plan` writes are here now.
  bool save_bytes(const Plan& plan, const Values& args) {
    bool all = true;
    each_written(plan, args, [&](const at::Tensor& t) {
      all = all && t.device().is_cpu() && t.layout() == c10::kStrided && t.has_storage() && !t.is_quantized() &&
            !t.key_set().has(c10::DispatchKey::Python) && t.is_non_overlapping_and_dense() && Describer::holds(t);
      if (!all) return;
      const auto* const from = static_cast<const char*>(t.const_data_ptr());
      bytes_.insert(bytes_.end(), from, from + static_cast<std::ptrdiff_t>(t.nbytes()));
    });
    if (!all) bytes_.clear();
    return all;
  }

  // Whether what was written holds the bytes that were there before; false where they are not here.
  bool is_unchanged(const Plan& plan, const Values& args) const {
    if (bytes_.empty()) return false;
    const char* from = bytes_.data();
    bool same = true;
    each_written(plan, args, [&](const at::Tensor& t) {
      same = same && std::memcmp(from, t.const_data_ptr(), t.nbytes()) == 0;
      from += static_cast<std::ptrdiff_t>(t.nbytes());
    });
    return same;
  }

  // None: they are gone. `args`: what the op was given, as it is now.
  const Values& take(const Plan& plan, const Values& args) {
    if (args_.empty() && !bytes_.empty()) restore(plan, args);
    return args_;
  }

 private:
  template <typename F>
  static void each_written(const Plan& plan, const Values& args, F&& take) {
    for (const Arg& arg : plan.args) {
      if (!arg.written) continue;
      const c10::IValue& value = args[static_cast<std::size_t>(arg.index)];
      if (value.isTensor()) {
        if (value.toTensor().defined()) take(value.toTensor());
      } else if (value.isTensorList()) {
        for (const c10::IValue& item : value.toListRef()) take(item.toTensor());
      }
    }
  }

  void restore(const Plan& plan, const Values& args) {
    const Unheard unheard;
    const char* from = bytes_.data();
    const auto copy = [&](const at::Tensor& t) {
      at::Tensor made = at::empty_strided(t.sizes(), t.strides(), t.options());
      std::memcpy(made.mutable_data_ptr(), from, t.nbytes());
      from += t.nbytes();
      return made;
    };
    args_ = args;
    for (const Arg& arg : plan.args) {
      if (!arg.written) continue;
      c10::IValue& value = args_[static_cast<std::size_t>(arg.index)];
      if (value.isTensor()) {
        if (value.toTensor().defined()) value = copy(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& t : value.toTensorVector()) list.push_back(copy(t));
        value = list;
      }
    }
  }

  Values args_;
  std::vector<char> bytes_;  // of each tensor that is written, one after the other
};

}  // namespace nanhunt::tap
