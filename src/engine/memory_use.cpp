// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/memory_use.h"

#include <algorithm>
#include <map>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/hooks.h"
#include "src/engine/memory.h"

namespace nanhunt::engine {
namespace {

// What a storage is for is known for sure only after the step, so beginnings and ends are kept and added up then.
class StepLog final : public Observer, public GradientListener {
 public:
  explicit StepLog(Trainer& trainer) : trainer_(trainer) {
    const auto begin = [this](const Tensor& tensor, MemoryKind kind) {
      if (!tensor.defined() || !kinds_.emplace(generation_of(tensor), kind).second) return;
      events_.push_back({generation_of(tensor), tensor.storage()->bytes(), true});
    };
    for (const NamedTensor& entry : trainer.model().named_parameters()) begin(entry.tensor, MemoryKind::kParameters);
    for (const NamedTensor& entry : trainer.model().named_buffers()) begin(entry.tensor, MemoryKind::kBuffers);
    for (std::size_t i = 0; i < trainer.optimizer().parameters().size(); ++i) {
      begin(trainer.optimizer().master(i), MemoryKind::kMasters);
    }
    for (const NamedTensor& entry : trainer.optimizer().named_state()) begin(entry.tensor, MemoryKind::kOptimizerState);
    for (const NamedTensor& entry : trainer.optimizer().parameters())
      begin(entry.tensor.grad(), MemoryKind::kGradients);
    for (const NamedTensor& entry : trainer.optimizer().with_gradients()) {
      begin(entry.tensor.grad(), MemoryKind::kGradients);
    }
    at_start_ = events_.size();
  }

  void on_storage_allocated(std::uint64_t generation, std::size_t bytes) noexcept override {
    const Phase phase = current_phase();
    const bool computes = phase == Phase::kForward || phase == Phase::kLoss || phase == Phase::kBackward;
    kinds_[generation] = phase == Phase::kData ? MemoryKind::kBatch
                         : computes            ? MemoryKind::kActivations
                                               : MemoryKind::kTemporaries;
    events_.push_back({generation, bytes, true});
  }
  void on_storage_released(std::uint64_t generation) noexcept override { events_.push_back({generation, 0, false}); }

  void on_op(const OpCall& call) noexcept override {
    if (call.op != "_to_copy" || call.inputs.empty() || call.outputs.empty()) return;
    const auto from = kinds_.find(generation_of(*call.inputs.front().tensor));
    if (from == kinds_.end() || from->second != MemoryKind::kParameters) return;
    change(*call.outputs.front().tensor, MemoryKind::kWeightCasts);
  }
  void on_gradient(const Tensor& leaf) override { change(leaf.grad(), MemoryKind::kGradients); }
  void on_backward_end() override {}
  void on_optimizer_begin() noexcept override {
    for (const NamedTensor& entry : trainer_.optimizer().with_gradients()) {
      change(entry.tensor.grad(), MemoryKind::kGradients);
    }
  }

  StepMemory add_up() {
    for (const NamedTensor& entry : trainer_.optimizer().named_state())
      change(entry.tensor, MemoryKind::kOptimizerState);
    for (std::size_t i = 0; i < trainer_.optimizer().parameters().size(); ++i) {
      change(trainer_.optimizer().master(i), MemoryKind::kMasters);
    }
    StepMemory out;
    MemoryBytes now = {};
    std::uint64_t total = 0;
    std::map<std::uint64_t, std::size_t> alive;
    std::size_t seen = 0;
    for (const Event& event : events_) {
      const auto kind = static_cast<std::size_t>(kinds_[event.generation]);
      if (event.begins) {
        alive[event.generation] = event.bytes;
        now[kind] += event.bytes;
        total += event.bytes;
      } else if (const auto ended = alive.find(event.generation); ended != alive.end()) {
        now[kind] -= ended->second;
        total -= ended->second;
        alive.erase(ended);
      }
      if (++seen < at_start_) continue;  // these are there together
      for (std::size_t k = 0; k < kMemoryKinds; ++k) out.largest[k] = std::max(out.largest[k], now[k]);
      if (total <= out.peak) continue;
      out.peak = total;
      out.at_peak = now;
    }
    return out;
  }

 private:
  struct Event {
    std::uint64_t generation;
    std::size_t bytes;
    bool begins;
  };

  static std::uint64_t generation_of(const Tensor& tensor) { return tensor.storage()->generation(); }
  // Of a storage that began in this step; what was there before keeps what it is.
  void change(const Tensor& tensor, MemoryKind kind) {
    if (!tensor.defined()) return;
    const auto known = kinds_.find(generation_of(tensor));
    if (known == kinds_.end()) return;
    if (known->second == MemoryKind::kActivations || known->second == MemoryKind::kTemporaries) known->second = kind;
  }

  Trainer& trainer_;
  std::map<std::uint64_t, MemoryKind> kinds_;  // by generation
  std::vector<Event> events_;
  std::size_t at_start_ = 0;  // events that stand for what was there before
};

}  // namespace

StepMemory measure_step_memory(Trainer& trainer) {
  StepLog log(trainer);
  scratch_use().most = scratch_use().now;
  {
    const HookHandle handle = add_observer(log);
    const ScopedGradientListener listener(log);
    trainer.step();
  }
  StepMemory memory = log.add_up();
  memory.scratch = scratch_use().most - scratch_use().now;
  return memory;
}

}  // namespace nanhunt::engine
