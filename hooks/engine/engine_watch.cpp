// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "hooks/engine/engine_hooks.h"

namespace nanhunt::hooks {
namespace {

ValueView view_of(const engine::Tensor& tensor, std::uint32_t version, bool has_contents) {
  ValueView value;
  value.tensor = tensor.view();
  if (!has_contents) value.tensor.data = nullptr;
  value.storage = tensor.storage()->generation();
  value.version = version;
  value.offset = tensor.storage_offset();
  return value;
}

}  // namespace

// Says what the engine did in the recorder's words.
class EngineWatch::Adapter final : public engine::Observer {
 public:
  explicit Adapter(Recorder& recorder) : recorder_(recorder) {}

  void on_op(const engine::OpCall& call) noexcept override {
    try {
      gather(call);
    } catch (...) {
      return;  // no memory for three short lists: the op goes unseen, its results show up as made unseen
    }
    OpEvent event;
    event.step = step_;
    event.micro_batch = micro_batch_;
    event.phase = call.phase;
    event.module = call.module;
    event.op = call.op;
    event.compute_dtype = call.compute_dtype;
    event.inputs = inputs_;
    event.outputs = outputs_;
    event.scalars = call.scalars;
    recorder_.on_op(event);
  }

  void on_step_begin(std::uint32_t step) noexcept override {
    step_ = step;
    micro_batch_ = 0;
  }

  void on_micro_batch(std::uint32_t micro_batch, std::span<const std::int64_t> sample_ids) noexcept override {
    micro_batch_ = micro_batch;
    recorder_.on_batch({step_, micro_batch, sample_ids});
  }

  void on_mark(MarkKind kind, std::string_view path, const engine::Tensor& tensor) noexcept override {
    if (!tensor.defined()) return;
    recorder_.on_mark({step_, micro_batch_, kind, path, view_of(tensor, tensor.version(), /*has_contents=*/true)});
  }

  void on_scaler(const ScalerEvent& event) noexcept override {
    ScalerEvent placed = event;
    placed.step = step_;
    placed.micro_batch = micro_batch_;
    recorder_.on_scaler(placed);
  }

  void on_step_end(std::uint32_t step, double loss, double lr, double scale, bool skipped) noexcept override {
    recorder_.on_step_end({step, skipped, loss, lr, scale});
    step_ = step + 1;  // what happens between two steps belongs to the coming one
    micro_batch_ = 0;
  }

  void on_storage_released(std::uint64_t generation) noexcept override { recorder_.on_storage_released(generation); }

 private:
  void gather(const engine::OpCall& call) {
    inputs_.clear();
    outputs_.clear();
    for (const engine::OpArgument& in : call.inputs) {
      if (in.tensor == nullptr || !in.tensor->defined()) continue;
      // Contents are gone when the op wrote over them, or anything else did since.
      const bool has_contents = in.role != ArgRole::kOverwritten && in.tensor->version() == in.version;
      inputs_.push_back({in.slot, view_of(*in.tensor, in.version, has_contents), in.role});
    }
    for (const engine::OpArgument& out : call.outputs) {
      if (out.tensor == nullptr || !out.tensor->defined()) continue;
      outputs_.push_back({out.slot, view_of(*out.tensor, out.version, out.tensor->version() == out.version)});
    }
  }

  Recorder& recorder_;
  std::uint32_t step_ = 0, micro_batch_ = 0;
  std::vector<OpInput> inputs_;
  std::vector<OpOutput> outputs_;
};

EngineWatch::EngineWatch(Recorder& recorder)
    : adapter_(std::make_unique<Adapter>(recorder)), handle_(engine::add_observer(*adapter_)) {}

EngineWatch::~EngineWatch() = default;

}  // namespace nanhunt::hooks
