// SPDX-License-Identifier: Apache-2.0
// The last bad number of ValueGraph, which is what a run that ends with it has shown.
#include <algorithm>
#include <string_view>

#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {
namespace {

constexpr std::string_view kOutside = "<loss>";

}  // namespace

void ValueGraph::note_last_number(const OpInView& op) {
  const bool validation = op.record->phase == Phase::kValidation;
  if (op.record->phase == Phase::kOptimizer || op.record->phase == Phase::kUpdate) return;
  for (const Value* value : op.out) {
    if (value == nullptr || value->bad == 0 || value->deliberate == Deliberate::kYes || value->labels == 0) continue;
    const bool nan = (value->bad & kBadNaN) != 0, one = value->stats.numel == 1;
    // Of many, who knows which are used: what a model gave is marked. What selects may hand on a mask.
    const bool counts =
        validation ? one && (nan || (value->deliberate == Deliberate::kNo && !op.info->has(kSelects))) : one || nan;
    if (!counts) continue;
    (validation ? last_validated_ : last_number_) = {true, *value};
    const std::string module = names_.text(op.record->module);
    if (!trained_ && one && nan && (module.empty() || module == kOutside)) last_alone_ = {true, *value};
  }
}

// Something that is finite was made of it: it was meant (a mask, nan_to_num). Who shows a tensor selects what is
// finite.
void ValueGraph::forget_cured(const OpInView& op) {
  const bool floating = std::any_of(op.out.begin(), op.out.end(), [&](const Value* out) {
    const LayoutRecord* layout = out == nullptr ? nullptr : names_.layout(out->layout);
    return layout != nullptr && is_floating(layout->dtype);
  });
  if (!floating || op.info->name == "masked_select") return;
  const auto is_part = [&](LabelSetId part, LabelSetId whole) {
    const std::vector<BirthId>& births = labels_.get(part).births;
    const auto holds = [&](BirthId id) { return labels_.contains(whole, id); };
    return !births.empty() && std::all_of(births.begin(), births.end(), holds);
  };
  for (std::size_t i = 0; i < op.in.size(); ++i) {
    const Value* read = op.in[i];
    if (read == nullptr || read->bad == 0 || op.inputs[i].role == ArgRole::kOverwritten) continue;
    for (LastNumber* last : {&last_number_, &last_alone_, &last_validated_}) {
      if (trained_ && last != &last_validated_) continue;
      if (last->bad && (last->value.storage == read->storage || is_part(last->value.labels, read->labels)))
        last->bad = false;
    }
  }
}

}  // namespace nanhunt::analyze
