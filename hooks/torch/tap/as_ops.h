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

// Of one kept call its name, overload, arguments, results, the number of its first row, how many it has, its phase, and
// whether badness began at it (1) and autograd was to take its derivative (2).
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
  stack->emplace_back(call.phase);
  stack->emplace_back(std::int64_t{(call.began ? 1 : 0) | (call.graphed ? 2 : 0)});
}

// Once a process.
inline void define_ops() {
  static torch::Library ops(torch::Library::DEF, "nanhunt_tap", std::nullopt, __FILE__, __LINE__);
  ops.def("kept(int tap, int index) -> (str, str, Any[], Any[], int, int, int, int)",
          torch::CppFunction::makeFromBoxedFunction<&kept_call>());
  ops.def(CompiledGraphs::kSchema);  // never called: rows of graphs, and of kernels, are made as those of ops that are
  ops.def(LaunchedKernels::kSchema);
}

}  // namespace nanhunt::tap
