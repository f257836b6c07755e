// SPDX-License-Identifier: Apache-2.0
// Says what the engine did in the recorder's words.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "nanhunt/engine/hooks.h"
#include "nanhunt/recorder.h"
#include "src/record/recorder.h"

namespace nanhunt::hooks {

class TensorReader;

// The contents of `tensor` as they are named; their bytes only if they are still there.
ValueView view_of(const engine::Tensor& tensor, std::uint32_t version, bool has_contents = true);

// Every op, mark, batch and step, to the recorder.
class OpAdapter final : public engine::Observer {
 public:
  // `reader`: contents on a device are read there, and reported later; not owned. nullptr: they are copied, which waits.
  explicit OpAdapter(Recorder& recorder, TensorReader* reader = nullptr)
      : recorder_(recorder),
        numbers_(dynamic_cast<const record::NumberingRecorder*>(&recorder)),
        reader_(reader) {}

  void on_op(const engine::OpCall& call) noexcept override;
  void on_collective(const engine::CollectiveCall& call) noexcept override;
  void on_step_begin(std::uint32_t step) noexcept override;
  void on_micro_batch(std::uint32_t micro_batch, std::span<const std::int64_t> sample_ids) noexcept override;
  void on_mark(TensorRole kind, std::string_view path, const engine::Tensor& tensor) noexcept override;
  void on_scaler(const ScalerEvent& event) noexcept override;
  void on_step_end(std::uint32_t step, double loss, double lr, double scale, bool skipped) noexcept override;
  void on_step_given_up(std::uint32_t step, StepEnding ending, std::string_view message) noexcept override;
  void on_storage_released(std::uint64_t generation) noexcept override;
  // Contents that an op will write over, or that nothing was to write since they were recorded.
  void check(std::span<const engine::Tensor> tensors) noexcept;

 private:
  void end_step(const StepEvent& event) noexcept;
  void gather(const engine::OpCall& call);
  void name(const engine::Tensor& tensor, std::uint32_t version, bool has_contents, ValueView& value);

  Recorder& recorder_;
  std::uint32_t step_ = 0, micro_batch_ = 0;
  const record::NumberingRecorder* numbers_;  // nullptr: numbers of ops are not known
  TensorReader* reader_;
  std::vector<OpInput> inputs_;
  std::vector<OpOutput> outputs_;
  std::vector<ValueView> checked_;
};

}  // namespace nanhunt::hooks
