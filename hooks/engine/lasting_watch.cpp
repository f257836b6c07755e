// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/lasting_watch.h"

#include "hooks/engine/op_adapter.h"

namespace nanhunt::hooks {

LastingWatch::LastingWatch(engine::Trainer& trainer, OpAdapter& adapter) : trainer_(trainer), adapter_(adapter) {
  const auto add = [&](TensorRole kind, const std::vector<engine::NamedTensor>& tensors) {
    for (const auto& [path, tensor] : tensors) all_.push_back({kind, path, tensor});
  };
  add(TensorRole::kParameter, trainer.model().named_parameters());
  add(TensorRole::kState, trainer.optimizer().named_state());
  add(TensorRole::kBuffer, trainer.model().named_buffers());
}

// All at once: on a device one look is one launch.
template <class Gather>
void LastingWatch::check(Gather gather) noexcept {
  try {
    std::vector<engine::Tensor> tensors;
    gather(tensors);
    if (!tensors.empty()) adapter_.check(tensors);
  } catch (...) {  // no memory for a list: they are not looked at
  }
}

void LastingWatch::on_op(const engine::OpCall& call) noexcept {
  const bool after_backward =
      call.phase == Phase::kUnscale || call.phase == Phase::kClip || call.phase == Phase::kOptimizer;
  if (!after_backward || gradients_checked_) return;
  gradients_checked_ = true;
  check([&](std::vector<engine::Tensor>& tensors) {
    for (const engine::NamedTensor& parameter : trainer_.optimizer().parameters())
      tensors.push_back(parameter.tensor.grad());
  });
}

void LastingWatch::on_step_begin(std::uint32_t /*step*/) noexcept {
  gradients_checked_ = false;
  check([&](std::vector<engine::Tensor>& tensors) {
    for (Lasting& lasting : all_) {
      if (!lasting.tensor.defined()) continue;
      if (known_ && lasting.tensor.version() != lasting.version) {
        adapter_.on_mark(lasting.kind, lasting.path, lasting.tensor);
      } else if (lasting.kind == TensorRole::kBuffer) {
        tensors.push_back(lasting.tensor);
      }
    }
  });
}

void LastingWatch::on_optimizer_begin() noexcept {
  check([&](std::vector<engine::Tensor>& tensors) {
    for (const Lasting& lasting : all_) {
      if (lasting.kind != TensorRole::kBuffer) tensors.push_back(lasting.tensor);
    }
  });
}

void LastingWatch::on_step_end(std::uint32_t /*step*/, double /*loss*/, double /*lr*/, double /*scale*/,
                               bool /*skipped*/) noexcept {
  known_ = true;
  for (Lasting& lasting : all_) {
    if (lasting.tensor.defined()) lasting.version = lasting.tensor.version();
  }
}

}  // namespace nanhunt::hooks
