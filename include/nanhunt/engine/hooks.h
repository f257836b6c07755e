// SPDX-License-Identifier: Apache-2.0
// Hook points of the engine. The engine offers them and does not know who listens: with no observer it
// runs the same arithmetic in the same order. Observers must not throw and must not write to tensors.
// The engine runs one training loop per thread; observers and context are per thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "nanhunt/engine/tensor.h"
#include "nanhunt/event.h"

namespace nanhunt::engine {

// One op as it ran. For an in-place op the written tensor is an output, and its old version is an input
// with role kOverwritten and `version` one below. Any input whose `version` is below tensor->version() has
// lost its contents (x.mul_(x)): what its memory holds now is the output.
struct OpArgument {
  std::string_view slot;
  const Tensor* tensor = nullptr;
  std::uint32_t version = 0;  // of the contents that were read or written
  ArgRole role = ArgRole::kRead;
};
struct OpCall {
  std::string_view op;
  Phase phase = Phase::kForward;
  std::string_view module;
  DType compute_dtype = DType::kF32;
  std::span<const OpArgument> inputs;
  std::span<const OpArgument> outputs;
  std::span<const OpScalar> scalars;
};

// A call between ranks, told before it runs; its op is the next one.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Reduction reduction = Reduction::kNone;
  std::int32_t root = -1;
  std::uint64_t call = 0;    // counted from 0 by all ranks alike
  std::uint32_t ranks = 1;   // from 0 on
  const Tensor* share = nullptr;  // what this rank gives
};

class Observer {
 public:
  virtual ~Observer() = default;
  // What it wants, asked once when it is added. Ops stand for all that is told of each one: ops, beginnings and ends
  // of storages, marks of parameters, state and buffers. Where nobody wants them nothing is put together for them.
  virtual bool wants_ops() const noexcept { return true; }
  virtual void on_op(const OpCall&) noexcept {}
  virtual void on_collective(const CollectiveCall&) noexcept {}
  virtual void on_module_enter(std::string_view /*path*/) noexcept {}
  virtual void on_module_exit(std::string_view /*path*/) noexcept {}
  virtual void on_step_begin(std::uint32_t /*step*/) noexcept {}
  virtual void on_micro_batch(std::uint32_t /*micro_batch*/, std::span<const std::int64_t> /*sample_ids*/) noexcept {}
  // A tensor plays a part: loss, gradient at the optimizer boundary, parameter (when first seen and after each update),
  // optimizer state, buffer, batch, label.
  virtual void on_mark(TensorRole, std::string_view /*path*/, const Tensor&) noexcept {}
  // step and micro_batch of the event are not filled in: observers count them.
  virtual void on_scaler(const ScalerEvent&) noexcept {}
  // Before the optimizer changes anything; after it did (or did not: skipped).
  virtual void on_optimizer_begin() noexcept {}
  virtual void on_optimizer_end(bool /*skipped*/) noexcept {}
  virtual void on_step_end(std::uint32_t /*step*/, double /*loss*/, double /*lr*/, double /*scale*/,
                           bool /*skipped*/) noexcept {}
  // Instead of on_step_end: the step ended before its optimizer, as `ending` says.
  virtual void on_step_given_up(std::uint32_t /*step*/, StepEnding /*ending*/, std::string_view /*message*/) noexcept {}
  virtual void on_storage_allocated(std::uint64_t /*generation*/, std::size_t /*bytes*/) noexcept {}
  virtual void on_storage_released(std::uint64_t /*generation*/) noexcept {}
};

// Keeps an observer registered on this thread for as long as it lives. Remove it on the same thread.
class [[nodiscard]] HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(Observer* observer);
  ~HookHandle();
  HookHandle(HookHandle&& other) noexcept;
  HookHandle& operator=(HookHandle&& other) noexcept;
  void remove();
  bool empty() const { return observer_ == nullptr; }

 private:
  Observer* observer_ = nullptr;
};
HookHandle add_observer(Observer& observer);  // not owned; must outlive the handle
bool has_observers();  // that are told now
bool ops_observed();   // by any of them

// While it lives the ops of this thread are told to nobody: who runs them tells of one op in their place.
class [[nodiscard]] ScopedUnobserved {
 public:
  ScopedUnobserved();
  ~ScopedUnobserved();
  ScopedUnobserved(const ScopedUnobserved&) = delete;
  ScopedUnobserved& operator=(const ScopedUnobserved&) = delete;
};

// What the engine is doing now, on this thread.
Phase current_phase();
const std::string& current_module();

class [[nodiscard]] ScopedPhase {
 public:
  explicit ScopedPhase(Phase phase);
  ~ScopedPhase();
  ScopedPhase(const ScopedPhase&) = delete;
  ScopedPhase& operator=(const ScopedPhase&) = delete;

 private:
  Phase previous_;
};

// Sets the whole module path ("encoder.0.fc1", "<loss>", a parameter's path) and restores the old one.
// Does not fire on_module_enter: Module::operator() does.
class [[nodiscard]] ScopedModule {
 public:
  explicit ScopedModule(std::string path);
  ~ScopedModule();
  ScopedModule(const ScopedModule&) = delete;
  ScopedModule& operator=(const ScopedModule&) = delete;

 private:
  std::string previous_;
};

// Used by ops, modules, optimizers and the Trainer to tell observers; each does nothing without one.
void notify_op(const OpCall& call);
void notify_collective(const CollectiveCall& call);
void notify_mark(TensorRole kind, std::string_view path, const Tensor& tensor);
void notify_module_enter(std::string_view path);
void notify_module_exit(std::string_view path);
void notify_step_begin(std::uint32_t step);
void notify_micro_batch(std::uint32_t micro_batch, std::span<const std::int64_t> sample_ids);
void notify_scaler(const ScalerEvent& event);
void notify_optimizer_begin();
void notify_optimizer_end(bool skipped);
void notify_step_end(std::uint32_t step, double loss, double lr, double scale, bool skipped);
void notify_step_given_up(std::uint32_t step, StepEnding ending, std::string_view message);
void notify_storage_allocated(std::uint64_t generation, std::size_t bytes) noexcept;
void notify_storage_released(std::uint64_t generation) noexcept;  // safe even while the thread ends

}  // namespace nanhunt::engine
