// SPDX-License-Identifier: Apache-2.0
// The part of RowBuilder that finds contents which changed although nothing that was watched wrote them.
#include <limits>

#include "kernels/cpu/checksum.h"
#include "src/record/rows/row_builder.h"

namespace nanhunt::record {

bool RowBuilder::shows_same_elements(const ValueView& view, LayoutId layout, const ValueInfo& base) const {
  return base.record.has_stats && base.dtype == view.tensor.dtype && base.record.offset == view.offset &&
         base.record.stats.numel == view.tensor.numel() && layouts_.is_dense(layout) &&
         layouts_.is_dense(base.record.layout);
}

// Dense views of one block of memory have one checksum, whatever the order of their dimensions.
std::uint64_t RowBuilder::checksum_of(const ValueView& view, LayoutId layout) const {
  if (!is_readable(view.tensor)) return *view.known->checksum;
  if (!layouts_.is_dense(layout)) return kernels::checksum_elements(view.tensor);
  return kernels::checksum_bytes(view.tensor.data,
                                 static_cast<std::size_t>(view.tensor.numel()) * dtype_size(view.tensor.dtype));
}

bool RowBuilder::still_holds(const ValueView& view, ValueInfo& known, const Use& use) {
  // Layouts that were refused a number share number 0.
  if (checks_left_ == 0 || only_asked_ || use.old_contents) return true;
  if (known.record.layout == 0 || !can_compare(view)) return true;
  if (known.has_checksum && use.reader == use.after && known.checked_after == use.after) return true;  // mul(x, x)
  const std::uint64_t now = checksum_of(view, known.record.layout);
  if (known.has_checksum && known.checksum != now) return false;
  known.checksum = now;
  known.has_checksum = true;
  known.checked_after = use.after;
  known.checked_step = use.step;
  return true;
}

void RowBuilder::remember(const ValueView& view, ValueInfo& known, const Use& use) {
  if (!only_asked_ || is_readable(view.tensor) || !can_compare(view) || known.record.layout == 0) return;
  known.checksum = *view.known->checksum;
  known.has_checksum = true;
  known.checked_after = use.after;
  known.checked_step = use.step;
}

// Some write past whoever watches on purpose. What is bad afterwards is told; what is not is only counted, and known
// anew.
void RowBuilder::look_again(const ValueView& view, LayoutId layout, ValueInfo& known, const Use& use) {
  if (!only_asked_) {
    look_up(view, layout, use);
    return;
  }
  count_reading(view, use);
  TensorStats stats;
  if (checks_left_ == 0 || layout == 0 || is_readable(view.tensor) || !can_compare(view)) return;
  if (!known.has_checksum || known.checksum == *view.known->checksum) return remember(view, known, use);
  if (!take_stats(view, stats)) return;
  ValueInfo& after = add_value(view, layout, nullptr, kNoSeq, use);  // hides the one before
  if (stats.nonfinite() > 0) {
    --checks_left_;
    write_again_if_dropped(known);
    write_row(after);
    rows_.batch.changed.push_back(
        {use.reader, use.step, known.record.id, after.record.id, kNoSeq, known.checked_step, /*opaque=*/false});
    extra_bytes_ += sizeof(ChangedRecord);
  } else {
    ++not_recorded_.harmless;
  }
  hide_what_overlaps(after);
}

void RowBuilder::note_change(ValueInfo& before, ValueInfo& after, const Use& use) {
  if (checks_left_ > 0) --checks_left_;
  write_again_if_dropped(before);
  if (after.row_batch == 0) write_row(after);
  rows_.batch.changed.push_back({use.reader, use.step, before.record.id, after.record.id, before.checked_after,
                                 before.checked_step, /*opaque=*/false});
  extra_bytes_ += sizeof(ChangedRecord);
  table_.supersede(before);
}

// Bytes of the storage between its first and its last element.
RowBuilder::Extent RowBuilder::extent_of(const ValueInfo& value) const {
  if (value.record.layout == 0)
    return {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
  const KnownLayout& layout = layouts_.layout(value.record.layout);
  const auto bytes = static_cast<std::int64_t>(dtype_size(layout.dtype));
  Extent extent{value.record.offset * bytes, value.record.offset * bytes};
  for (std::size_t d = 0; d < layout.sizes.size(); ++d) {
    if (layout.sizes[d] == 0) return {0, 0};
    (layout.strides[d] < 0 ? extent.begin : extent.end) += (layout.sizes[d] - 1) * layout.strides[d] * bytes;
  }
  extent.end += bytes;
  return extent;
}

// Known views of contents that changed show old statistics; others of the storage do not.
void RowBuilder::hide_what_overlaps(const ValueInfo& after) {
  const Extent changed = extent_of(after);
  table_.supersede_others(after, [&](const ValueInfo& other) {
    const Extent its = extent_of(other);
    return its.begin < changed.end && changed.begin < its.end;
  });
}

}  // namespace nanhunt::record
