// SPDX-License-Identifier: Apache-2.0
// Calls at which badness began, with copies of what they read: enough to compute them again once it is known which of
// them matters.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "hooks/torch/tap/describe.h"
#include "hooks/torch/tap/held/saved.h"
#include "hooks/torch/tap/numbers.h"
#include "hooks/torch/tap/plan.h"

namespace nanhunt::tap {

class KeptCalls {
 public:
  using Values = Saved::Values;
  struct Call {
    std::string op, overload;
    Values args, results;
    std::uint64_t first_seq, rows;
    std::int64_t phase;
    bool began;    // false: it was given bad numbers by another call that is kept
    bool graphed;  // autograd was to take its derivative
  };

  // Nothing is kept so far; at most so many bytes will be. 0: off. `max_written`: bytes that are copied before an op
  // writes over them.
  void begin(std::int64_t max_bytes, std::int64_t max_written) {
    max_bytes_ = max_bytes;
    max_written_ = max_written;
    bytes_ = 0;
    calls_.clear();
    handed_on_.clear();
    followers_ = 0;
  }
  bool on() const { return max_bytes_ > 0; }
  const std::vector<Call>& calls() const { return calls_; }

  // What an op is given, with copies of what it will write over, where that is little or the op is `armed`. Nothing,
  // where it writes nothing: what it is given then is there afterwards as well.
  void before(const Plan& plan, const Values& args, bool armed, Saved& saved) const {
    saved.clear();
    if (!plan.writes) return;
    if (plan.ignores_old) return saved.set(args);
    std::int64_t size = 0;
    for (const Arg& arg : plan.args)
      if (arg.written && !arg.only_written) size += bytes_of(args[static_cast<std::size_t>(arg.index)]);
    if (size > (armed ? max_written_ : std::min(max_written_, kLittle))) return;
    if (size > 0 && size <= kLittle && saved.save_bytes(plan, args)) return;
    Values copies = args;
    for (const Arg& arg : plan.args)
      if (arg.written) copies[static_cast<std::size_t>(arg.index)] = copy(args[static_cast<std::size_t>(arg.index)]);
    saved.set(std::move(copies));
  }

  // Whether an op is given what a kept call has made, and so shows what a remedy of that one would come to. Memory that
  // another tensor has got since is followed as well: it does no harm.
  bool follows(const Values& args) const {
    if (handed_on_.empty() || followers_ >= kMaxFollowers) return false;
    bool any = false;
    for (const c10::IValue& value : args)
      each_tensor(value, [&](const at::Tensor& t) {
        any = any || std::find(handed_on_.begin(), handed_on_.end(), memory_of(t)) != handed_on_.end();
      });
    return any;
  }

  // A call whose rows say that badness `began` at it, or that follows one. `args`: none: they are gone.
  void keep(const Plan& plan, const Values& args, const c10::Stack& stack, std::uint64_t first_seq, std::uint64_t rows,
            std::int64_t phase, bool began) {
    if (args.empty() || calls_.size() >= kMaxCalls) return;
    const Values results(stack.end() - static_cast<std::ptrdiff_t>(plan.returns), stack.end());
    std::int64_t size = 0;
    for (const Values* some : {&args, &results})
      for (const c10::IValue& value : *some) size += bytes_of(value);
    if (bytes_ + size > (began ? max_bytes_ : max_bytes_ / 4)) return;
    bytes_ += size;
    followers_ += began ? 0 : 1;
    Call call{plan.op, plan.overload, {}, {}, first_seq, rows, phase, began, c10::GradMode::is_enabled()};
    for (const c10::IValue& value : args) call.args.push_back(copy(value));
    for (const c10::IValue& value : results) {
      call.results.push_back(copy(value));
      each_tensor(value, [&](const at::Tensor& t) {
        if (memory_of(t) != nullptr) handed_on_.push_back(memory_of(t));
      });
    }
    calls_.push_back(std::move(call));
  }

 private:
  static constexpr std::size_t kMaxCalls = 64, kMaxFollowers = 24;
  static constexpr std::int64_t kLittle = 4096;  // bytes

  static std::int64_t bytes_of(const at::Tensor& t) {
    return t.defined() ? t.numel() * static_cast<std::int64_t>(t.element_size()) : 0;
  }
  static std::int64_t bytes_of(const c10::IValue& value) {
    if (value.isTensor()) return bytes_of(value.toTensor());
    std::int64_t size = 0;
    if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) size += bytes_of(t);
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) size += bytes_of(item);
    }
    return size;
  }
  static const void* memory_of(const at::Tensor& t) {
    return t.defined() && t.has_storage() && !t.key_set().has(c10::DispatchKey::Python)
               ? t.storage().unsafeGetStorageImpl() : nullptr;
  }
  // Of a tensor subclass nothing: what it would run is Python's. It is known of a copy whether a gradient is wanted.
  static at::Tensor copy(const at::Tensor& t) {
    const Unheard unheard;
    if (!t.defined() || t.key_set().has(c10::DispatchKey::Python)) return {};
    at::Tensor same = t.detach().clone();
    if (t.requires_grad() && c10::GradMode::is_enabled()) same.set_requires_grad(true);
    return same;
  }
  static c10::IValue copy(const c10::IValue& value) {
    // A number of Python's stays one: it decides no format, also beside a tensor without dimensions.
    if (value.isTensor() && value.toTensor().defined() && is_wrapped(value.toTensor())) {
      const Unheard unheard;
      return value.toTensor().item();
    }
    if (value.isTensor()) return copy(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : value.toTensorVector()) list.push_back(copy(t));
      return list;
    }
    if (!value.isList() || value.toListRef().empty() || !value.toListRef()[0].isTensor()) return value;
    c10::impl::GenericList list(value.toList().elementType());  // of tensors that may be missing
    for (const c10::IValue& item : value.toListRef()) list.push_back(copy(item));
    return list;
  }

  std::int64_t max_bytes_ = 0, max_written_ = 0, bytes_ = 0;
  std::vector<Call> calls_;
  std::vector<const void*> handed_on_;  // memory of their results
  std::size_t followers_ = 0;
};

}  // namespace nanhunt::tap
