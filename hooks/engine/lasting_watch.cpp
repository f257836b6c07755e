// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/lasting_watch.h"

#include "hooks/engine/op_adapter.h"

namespace nanhunt::hooks {

LastingWatch::LastingWatch(engine::Trainer& trainer, Recorder& recorder) : recorder_(recorder) {
  const auto add = [&](MarkKind kind, const std::vector<engine::NamedTensor>& tensors) {
    for (const auto& [path, tensor] : tensors) all_.push_back({kind, path, tensor});
  };
  add(MarkKind::kParameter, trainer.model().named_parameters());
  add(MarkKind::kState, trainer.optimizer().named_state());
  add(MarkKind::kBuffer, trainer.model().named_buffers());
}

void LastingWatch::check(const Lasting& lasting) noexcept {
  if (lasting.tensor.defined()) recorder_.check_contents(step_, view_of(lasting.tensor, lasting.tensor.version()));
}

void LastingWatch::on_step_begin(std::uint32_t step) noexcept {
  step_ = step;
  for (Lasting& lasting : all_) {
    if (!lasting.tensor.defined()) continue;
    if (known_ && lasting.tensor.version() != lasting.version) {
      recorder_.on_mark({step_, 0, lasting.kind, lasting.path, view_of(lasting.tensor, lasting.tensor.version())});
    } else if (lasting.kind == MarkKind::kBuffer) {
      check(lasting);
    }
  }
}

void LastingWatch::on_optimizer_begin() noexcept {
  for (const Lasting& lasting : all_) {
    if (lasting.kind != MarkKind::kBuffer) check(lasting);
  }
}

void LastingWatch::on_step_end(std::uint32_t step, double /*loss*/, double /*lr*/, double /*scale*/,
                               bool /*skipped*/) noexcept {
  step_ = step + 1;
  known_ = true;
  for (Lasting& lasting : all_) {
    if (lasting.tensor.defined()) lasting.version = lasting.tensor.version();
  }
}

}  // namespace nanhunt::hooks
