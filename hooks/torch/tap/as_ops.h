// SPDX-License-Identifier: Apache-2.0
// What Python asks for as ops, so that PyTorch turns the values into Python's.
#pragma once

#include <torch/library.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "hooks/torch/tap/one_tap.h"

namespace nanhunt::tap {

inline c10::impl::GenericList any_list() { return c10::impl::GenericList(c10::AnyType::get()); }

template <typename T>
T* pop_pointer(c10::Stack* stack) {
  T* const at = reinterpret_cast<T*>(static_cast<std::uintptr_t>(stack->back().toInt()));
  stack->pop_back();
  return at;
}

// Of one kept call its name, overload, arguments, results, the number of its first row, and how many it has.
inline void kept_call(const c10::OperatorHandle&, c10::DispatchKeySet, c10::Stack* stack) {
  const std::int64_t index = stack->back().toInt();
  stack->pop_back();
  Tap* const tap = pop_pointer<Tap>(stack);
  const std::lock_guard lock(tap->mutex);
  const KeptCalls::Call& call = tap->kept.calls().at(static_cast<std::size_t>(index));
  for (const std::string* text : {&call.op, &call.overload}) stack->emplace_back(*text);
  for (const KeptCalls::Values* values : {&call.args, &call.results}) {
    c10::impl::GenericList list = any_list();
    for (const c10::IValue& value : *values) list.push_back(value);
    stack->emplace_back(std::move(list));
  }
  for (const std::uint64_t number : {call.first_seq, call.rows}) stack->emplace_back(static_cast<std::int64_t>(number));
}

// Of one op on the tape its name, overload, arguments (a tensor is a tuple: tape.h), keys of results, numbers of
// storages that it writes, states of generators as (device or None, state) and (generator, state), its line,
// micro-batch, phase, segment, whether gradients were on, and whether it came after backward.
inline void taped_op(const c10::OperatorHandle&, c10::DispatchKeySet, c10::Stack* stack) {
  const std::int64_t index = stack->back().toInt();
  stack->pop_back();
  const Taped* const taped = pop_pointer<const Taped>(stack);
  Tap* const tap = pop_pointer<Tap>(stack);
  const TapedOp& op = *taped->ops.at(static_cast<std::size_t>(index));
  stack->emplace_back(op.op);
  stack->emplace_back(op.overload);
  c10::impl::GenericList args = any_list(), random = any_list(), generators = any_list();
  for (const c10::IValue& value : op.args) args.push_back(value);
  stack->emplace_back(std::move(args));
  stack->emplace_back(op.outputs);
  stack->emplace_back(op.writes);
  for (const auto& [device, state] : op.random)
    random.push_back(c10::ivalue::Tuple::create(device ? c10::IValue(*device) : c10::IValue(), state));
  stack->emplace_back(std::move(random));
  for (const auto& [generator, state] : op.generators)
    generators.push_back(c10::ivalue::Tuple::create(generator, state));
  stack->emplace_back(std::move(generators));
  {
    const std::lock_guard lock(tap->mutex);
    stack->emplace_back(std::string(tap->rows.frames.name_of(op.site)));
  }
  for (const std::int64_t number : {op.micro_batch, op.phase, op.segment}) stack->emplace_back(number);
  for (const bool answer : {op.grad, op.after}) stack->emplace_back(answer);
}

// Tensors from outside of the step that are named by keys, as they were.
inline void taped_start(const c10::OperatorHandle&, c10::DispatchKeySet, c10::Stack* stack) {
  c10::List<std::int64_t> keys;
  c10::List<at::Tensor> tensors;
  for (const auto& [key, t] : pop_pointer<const Taped>(stack)->start) {
    keys.push_back(key);
    tensors.push_back(t);
  }
  stack->emplace_back(std::move(keys));
  stack->emplace_back(std::move(tensors));
}

// Tensors of one element that ops were given from outside and that are not trained, with their versions.
inline void taped_numbers(const c10::OperatorHandle&, c10::DispatchKeySet, c10::Stack* stack) {
  c10::List<at::Tensor> tensors;
  c10::List<std::int64_t> versions;
  for (const auto& op : pop_pointer<const Taped>(stack)->ops) {
    for (const c10::IValue& value : op->args) {
      if (!value.isTuple() || value.toTupleRef().elements().size() != 2) continue;
      const at::Tensor t = value.toTupleRef().elements()[0].toTensor();
      if (t.numel() != 1 || t.requires_grad()) continue;
      tensors.push_back(t);
      versions.push_back(value.toTupleRef().elements()[1].toInt());
    }
  }
  stack->emplace_back(std::move(tensors));
  stack->emplace_back(std::move(versions));
}

// Once a process.
inline void define_ops() {
  static torch::Library ops(torch::Library::DEF, "nanhunt_tap", std::nullopt, __FILE__, __LINE__);
  ops.def("kept(int tap, int index) -> (str, str, Any[], Any[], int, int)",
          torch::CppFunction::makeFromBoxedFunction<&kept_call>());
  ops.def("taped(int tap, int taped, int index) -> "
          "(str, str, Any[], int[], int[], Any[], Any[], str, int, int, int, bool, bool)",
          torch::CppFunction::makeFromBoxedFunction<&taped_op>());
  ops.def("taped_start(int taped) -> (int[], Tensor[])", torch::CppFunction::makeFromBoxedFunction<&taped_start>());
  ops.def("taped_numbers(int taped) -> (Tensor[], int[])", torch::CppFunction::makeFromBoxedFunction<&taped_numbers>());
}

}  // namespace nanhunt::tap
