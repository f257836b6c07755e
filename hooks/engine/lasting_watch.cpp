// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/lasting_watch.h"

#include "hooks/engine/host_contents.h"
#include "hooks/engine/op_adapter.h"

namespace nanhunt::hooks {

LastingWatch::LastingWatch(engine::Trainer& trainer, Recorder& recorder, OpAdapter& adapter, bool copies)
    : trainer_(trainer), recorder_(recorder), adapter_(adapter), copies_(copies) {
  const auto add = [&](MarkKind kind, const std::vector<engine::NamedTensor>& tensors) {
    for (const auto& [path, tensor] : tensors) all_.push_back({kind, path, tensor});
  };
  add(MarkKind::kParameter, trainer.model().named_parameters());
  add(MarkKind::kState, trainer.optimizer().named_state());
  add(MarkKind::kBuffer, trainer.model().named_buffers());
}

void LastingWatch::check(const engine::Tensor& tensor) noexcept {
  if (!tensor.defined()) return;
  if (!copies_ && !tensor.device().is_cpu()) {
    ++unseen_;
    return;
  }
  const ScopedHostContents contents;
  recorder_.check_contents(step_, view_of(tensor, tensor.version()));
}

void LastingWatch::on_op(const engine::OpCall& call) noexcept {
  const bool after_backward =
      call.phase == Phase::kUnscale || call.phase == Phase::kClip || call.phase == Phase::kOptimizer;
  if (!after_backward || gradients_checked_) return;
  gradients_checked_ = true;
  for (const engine::NamedTensor& parameter : trainer_.optimizer().parameters()) {
    check(parameter.tensor.grad());
  }
}

void LastingWatch::on_step_begin(std::uint32_t step) noexcept {
  step_ = step;
  gradients_checked_ = false;
  for (Lasting& lasting : all_) {
    if (!lasting.tensor.defined()) continue;
    if (known_ && lasting.tensor.version() != lasting.version) {
      adapter_.on_mark(lasting.kind, lasting.path, lasting.tensor);
    } else if (lasting.kind == MarkKind::kBuffer) {
      check(lasting.tensor);
    }
  }
}

void LastingWatch::on_optimizer_begin() noexcept {
  for (const Lasting& lasting : all_) {
    if (lasting.kind != MarkKind::kBuffer) check(lasting.tensor);
  }
}

void LastingWatch::on_step_end(std::uint32_t step, double /*loss*/, double /*lr*/, double /*scale*/,
                               bool /*skipped*/) noexcept {
  if (unseen_ != told_unseen_) {
    recorder_.on_note({step, "not taken on a device: whether contents changed unseen", unseen_});
    told_unseen_ = unseen_;
  }
  step_ = step + 1;
  known_ = true;
  for (Lasting& lasting : all_) {
    if (lasting.tensor.defined()) lasting.version = lasting.tensor.version();
  }
}

}  // namespace nanhunt::hooks
