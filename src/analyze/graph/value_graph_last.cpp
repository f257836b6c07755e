// SPDX-License-Identifier: Apache-2.0
// The last bad number of ValueGraph, which is what a run that ends with it has shown.
#include <algorithm>
#include <string_view>

#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {

// Whether something that lasts is as bad as it was before the first forward, or less so. A parameter is stepped. Of
// anything else places that were not written yet may be filled, or moved on; what arithmetic writes as a whole, as it
// does running statistics, was used.
bool ValueGraph::is_as_at_first(const Value& value, TensorRole kind, StringId path, std::uint32_t step) {
  constexpr std::size_t kMost = 1u << 16;
  const bool at_first =
      value.made_in == Phase::kData && (step == 0 || (value.producer != kNoSeq && value.made_step == 0));
  const AtFirst now{value.id, value.stats.nan, value.stats.inf()};
  if (at_first && bad_at_first_.size() < kMost) {
    bad_at_first_.try_emplace(value.storage, now);
    if (path != 0) named_at_first_.try_emplace(path, now);
  }
  const auto home = bad_at_first_.find(value.storage);
  const auto named = named_at_first_.find(path);
  if (home == bad_at_first_.end() && named == named_at_first_.end()) return false;
  const AtFirst& first = home != bad_at_first_.end() ? home->second : named->second;
  if (kind == TensorRole::kParameter || first.value == value.id) return true;
  if (now.nan > first.nan || now.inf > first.inf) return false;
  return now.nan + now.inf < first.nan + first.inf || is_moved(value);
}

// Whether no arithmetic made all of it: parts were written, or what was there is in other places.
bool ValueGraph::is_moved(const Value& value) {
  constexpr int kMostCopies = 4;
  const Value* at = &value;
  for (int copies = 0; at != nullptr && copies < kMostCopies; ++copies) {
    if (at->producer == kNoSeq) return at->storage == value.storage;
    const RecentOp* maker = ring_.find(at->producer);
    if (maker == nullptr) return false;
    const OpInfo& info = names_.op(maker->op);
    if (info.has(kSelects)) return true;
    if (info.bound != Bound::kCopy) return false;
    at = nullptr;
    for (std::uint32_t i = 0; i < maker->inputs && at == nullptr; ++i) {
      const OpArg& arg = ring_.input(*maker, i);
      if (arg.role != ArgRole::kOverwritten) at = values_.find(arg.value);
    }
  }
  return false;
}

// Whether nothing has computed what is bad: the program wrote it, as those do who mark what is missing.
bool ValueGraph::is_written_alone(LabelSetId labels) {
  const std::vector<BirthId>& births = labels_.get(labels).births;
  return !births.empty() && std::all_of(births.begin(), births.end(), [&](BirthId id) {
    const auto birth = births_.find(id);
    if (birth == births_.end()) return false;
    const BirthKind kind = birth->second->kind;
    return kind == BirthKind::kGiven ||
           (kind == BirthKind::kOp && names_.op(birth->second->at.op).has(kWritesConstant));
  });
}

// Whether an op was given no number but NaN: it puts them somewhere, and computes nothing with them.
bool ValueGraph::reads_nan_alone(const OpInView& op) {
  for (std::size_t i = 0; i < op.in.size(); ++i) {
    const Value* read = op.in[i];
    if (op.inputs[i].role == ArgRole::kOverwritten) continue;
    if (read == nullptr || read->stats.numel == 0 || read->stats.nan != read->stats.numel) return false;
  }
  return true;
}

void ValueGraph::note_last_number(const OpInView& op) {
  const bool validation = op.record->phase == Phase::kValidation;
  if (op.record->phase == Phase::kOptimizer || op.record->phase == Phase::kUpdate) return;
  for (const Value* value : op.out) {
    if (value == nullptr || value->bad == 0 || value->deliberate == Deliberate::kYes || value->labels == 0) continue;
    const bool nan = (value->bad & kBadNaN) != 0, one = value->stats.numel == 1;
    // Of many, who knows which are used: what a model gave is marked. What selects may hand on a mask.
    const bool counts =
        validation ? one && (nan || (value->deliberate == Deliberate::kNo && !op.info->has(kSelects))) : one || nan;
    // A step of a training that is given up may have been given up for it.
    const bool placed = !one || ((validation || !trained_) && reads_nan_alone(op));
    if (!counts || (placed && is_written_alone(value->labels))) continue;
    (validation ? last_validated_ : last_number_) = {true, *value};
    const std::string module = names_.text(op.record->module);
    if (!trained_ && one && nan && (module.empty() || module == kOutsideModules)) last_alone_ = {true, *value};
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
    const bool validates = op.record->phase == Phase::kValidation;
    for (LastNumber* last : {&last_number_, &last_alone_, &last_validated_}) {
      if (trained_ && validates != (last == &last_validated_)) continue;
      if (!last->bad || (last->value.storage != read->storage && !is_part(last->value.labels, read->labels))) continue;
      if (trained_ && !validates) {  // of a number a copy is made finite for a log; who gives a step up may have asked
        last->cured = last->cured || last->value.stats.numel != 1;
      } else {
        last->bad = false;
      }
    }
  }
}

}  // namespace nanhunt::analyze
