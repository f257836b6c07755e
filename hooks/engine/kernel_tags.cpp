// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/kernel_tags.h"

namespace nanhunt::hooks {

KernelTags::KernelTags(Recorder& recorder, record::KernelSource& source)
    : recorder_(recorder), numbers_(dynamic_cast<const record::NumberingRecorder*>(&recorder)), source_(source) {}

KernelTags::~KernelTags() {
  first_handle_.remove();
  last_handle_.remove();
  if (own_) source_.pop_own();
  end_gap(kNoSeq);
}

void KernelTags::observe_first() { first_handle_ = engine::add_observer(first_); }

void KernelTags::observe_last() {
  last_handle_ = engine::add_observer(last_);
  begin_gap();
}

void KernelTags::begin_gap() noexcept {
  source_.set_place(step_, engine::current_phase());
  ticket_ = source_.push_op();
  in_gap_ = true;
}

void KernelTags::end_gap(std::uint64_t seq) noexcept {
  if (!in_gap_) return;
  in_gap_ = false;
  source_.pop_op(ticket_, seq, step_);
}

void KernelTags::tell(bool begins, bool of_op) noexcept {
  if (begins) {
    if (of_op) seq_ = numbers_ == nullptr ? kNoSeq : numbers_->next_seq();
    if (!own_) source_.push_own();
    own_ = true;
    return;
  }
  if (own_) source_.pop_own();
  own_ = false;
  if (!of_op) return;
  // An op that was not recorded after all leaves its number to the next one.
  const bool recorded = numbers_ != nullptr && numbers_->next_seq() != seq_;
  end_gap(recorded ? seq_ : kNoSeq);
  begin_gap();
}

void KernelTags::Half::on_step_begin(std::uint32_t step) noexcept {
  tags_.tell(first_, false);
  if (first_) return;
  tags_.end_gap(kNoSeq);  // what was launched between two steps
  tags_.step_ = step;
  tags_.begin_gap();
}

void KernelTags::Half::on_step_end(std::uint32_t step, double, double, double, bool) noexcept {
  tags_.tell(first_, false);
  if (first_) return;
  tags_.end_gap(kNoSeq);
  tags_.source_.drain(tags_.recorder_);
  tags_.step_ = step + 1;
  tags_.begin_gap();
}

}  // namespace nanhunt::hooks
