// SPDX-License-Identifier: Apache-2.0
#include "src/trace/cells.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

namespace nanhunt::trace {

std::string_view arg_role_name(ArgRole role) {
  static constexpr std::string_view kNames[] = {"read", "saved", "overwritten", "mask", "index"};
  const auto i = static_cast<std::size_t>(role);
  return i < std::size(kNames) ? kNames[i] : "unknown";
}

void show_op(Cells& cells, const TraceNames& names, std::uint64_t seq, bool with_step) {
  const OpBrief* op = seq == kNoSeq ? nullptr : names.op(seq);
  if (with_step) cells.u32("step", op == nullptr ? std::nullopt : std::optional(op->step));
  cells.text("module", op == nullptr ? std::string_view() : names.text(op->module));
  cells.text("op", op == nullptr ? std::string_view() : names.text(op->op));
}

void show_layout(Cells& cells, const TraceNames& names, LayoutId id) {
  const LayoutRecord* layout = names.layout(id);
  cells.text("dtype", layout == nullptr ? std::string_view() : dtype_name(layout->dtype));
  cells.shape("shape", layout == nullptr ? nullptr : &layout->sizes);
}

std::span<const RecordKind* const> shown_kinds() {
  static const std::vector<const RecordKind*> kShown = [] {
    std::vector<const RecordKind*> kinds;
    for (const RecordKind& kind : record_kinds()) {
      if (kind.show != nullptr) kinds.push_back(&kind);
    }
    // An op before the values it made, and a step before its samples.
    const auto at = [&](std::uint16_t type) { return std::ranges::find(kinds, type, &RecordKind::type); };
    std::iter_swap(at(kOpsType), at(kValuesType));
    std::iter_swap(at(kStepsType), at(kSamplesType));
    return kinds;
  }();
  return kShown;
}

const RecordKind* find_shown_kind(std::string_view name) {
  const auto found = std::ranges::find(shown_kinds(), name, [](const RecordKind* kind) { return kind->shown_name(); });
  return found == shown_kinds().end() ? nullptr : *found;
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (end != 0) words.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

const RecordBatch& one_row_of_each() {
  static const RecordBatch kBatch = [] {
    RecordBatch batch;
    std::apply([&](auto... list) { ((batch.*list).resize(1), ...); }, kEventLists);
    return batch;
  }();
  return kBatch;
}

}  // namespace nanhunt::trace
