// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/graph/slice.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

namespace nanhunt::analyze {
namespace {

constexpr std::size_t kMaxArgs = 64;  // of one op, in a snapshot

bool is_pole_slot(const OpInfo& info, const std::string& slot) {
  return !slot.empty() && std::find(info.pole_slots.begin(), info.pole_slots.end(), slot) != info.pole_slots.end();
}

// The argument that can be singular; nullptr: there is none.
const ArgSnapshot* pole_of(const OpSnapshot& op, const OpInfo& info, const Names& names) {
  const auto pole = std::find_if(op.inputs.begin(), op.inputs.end(),
                                 [&](const ArgSnapshot& arg) { return is_pole_slot(info, names.text(arg.slot)); });
  return pole == op.inputs.end() ? nullptr : &*pole;
}

// Fills pole_maker and pole_of of an op of backward.
void trace_pole(OriginContext& context, const OpInfo& info, const Names& names, ValueTable& values, const OpRing& ring) {
  const auto maker = [&](ValueId id) -> const RecentOp* {
    const Value* value = values.find(id);
    if (value == nullptr) return nullptr;
    const std::uint64_t known = values.producer_of(*value);
    const StorageInfo* storage = values.storage(value->storage);
    const std::uint64_t seq = known != kNoSeq || storage == nullptr ? known : storage->maker;
    return seq < context.op.seq ? ring.find(seq) : nullptr;
  };
  const ArgSnapshot* pole = pole_of(context.op, info, names);
  if (pole == nullptr) return;
  const RecentOp* first = maker(pole->value);
  if (first == nullptr) return;
  if (first->phase != Phase::kBackward) {  // a result of forward itself, or a view of one
    context.pole_of = first->op;
    context.pole_site = first->call_site;
    return;
  }
  const RecentOp* forward = nullptr;
  std::vector<const RecentOp*> open = {first};
  for (std::size_t i = 0; i < open.size(); ++i) {
    for (std::uint32_t input = 0; input < open[i]->inputs; ++input) {
      const RecentOp* op = maker(ring.input(*open[i], input).value);
      if (op == nullptr) return;
      if (op->phase != Phase::kBackward) {
        if (forward != nullptr && forward->seq != op->seq) return;
        forward = op;
      } else if (std::find(open.begin(), open.end(), op) == open.end()) {
        if (open.size() >= kMaxSlice) return;
        open.push_back(op);
      }
    }
  }
  if (forward == nullptr) return;
  context.pole_maker = first->op;
  context.pole_of = forward->op;
  context.pole_site = forward->call_site;
}

// Values of forward that a value of backward is computed of, by ops of one line; empty: a gradient is among them, or too
// much to follow.
std::vector<ValueId> saved_for(ValueId id, StringId call_site, ValueTable& values, const OpRing& ring) {
  std::vector<ValueId> open = {id}, saved;
  for (std::size_t i = 0; i < open.size(); ++i) {
    const Value* value = values.find(open[i]);
    const RecentOp* maker = value == nullptr ? nullptr : ring.find(values.producer_of(*value));
    if (maker == nullptr || maker->phase != Phase::kBackward) {
      if (std::find(saved.begin(), saved.end(), open[i]) == saved.end()) saved.push_back(open[i]);
      continue;
    }
    if (maker->call_site != call_site || open.size() + maker->inputs > kMaxSlice) return {};
    for (std::uint32_t input = 0; input < maker->inputs; ++input) open.push_back(ring.input(*maker, input).value);
  }
  return saved;
}

// Whether the derivative of an op has a pole in this value: what it was given, or its result.
bool has_derivative_pole(const RecentOp& op, ValueId value, Names& names, const OpRing& ring) {
  const OpInfo& forward = names.op(op.op);
  if (forward.bound == Bound::kQuotient) return false;
  const OpInfo& backward = op_info(std::string(forward.name) + "_backward");
  const bool of_result = is_pole_slot(backward, "result");
  for (std::uint32_t i = 0; i < op.inputs; ++i) {
    const std::string& slot = names.text(ring.input(op, i).slot);
    const bool pole = is_pole_slot(backward, slot) || (forward.pole == Pole::kNonPositive && is_pole_slot(forward, slot));
    if (pole && ring.input(op, i).value == value) return true;
  }
  for (std::uint32_t i = 0; i < op.outputs; ++i)
    if (of_result && ring.output(op, i).value == value) return true;
  return false;
}

bool takes_all(const RecentOp& op, const std::vector<ValueId>& wanted, const OpRing& ring) {
  return std::all_of(wanted.begin(), wanted.end(), [&](ValueId id) {
    for (std::uint32_t i = 0; i < op.inputs; ++i)
      if (ring.input(op, i).value == id) return true;
    return false;
  });
}

// The forward op of the line of an op of backward whose derivative that is a part of: by its pole, or where nothing but
// numbers of forward met, as the one op that was given them all.
std::optional<OpSnapshot> derived_of(const OriginContext& context, const OpInfo& info, Names& names, ValueTable& values,
                                     const OpRing& ring) {
  const OpSnapshot& origin = context.op;
  if (!forward_op(names.text(origin.op)).empty()) return std::nullopt;  // its name says it
  const ArgSnapshot* pole = pole_of(origin, info, names);
  const bool has_pole = pole != nullptr;
  std::vector<ValueId> saved;
  if (has_pole) {
    saved = saved_for(pole->value, origin.call_site, values, ring);
  } else {
    for (const ArgSnapshot& arg : origin.inputs) {
      const std::vector<ValueId> more = saved_for(arg.value, origin.call_site, values, ring);
      if (more.empty()) return std::nullopt;
      for (const ValueId one : more)
        if (std::find(saved.begin(), saved.end(), one) == saved.end()) saved.push_back(one);
    }
  }
  if (has_pole ? saved.size() != 1 : saved.size() < 2 || origin.call_site == 0) return std::nullopt;
  const RecentOp* found = nullptr;
  for (std::uint64_t back = 1; back <= OpRing::kOps && back <= origin.seq; ++back) {
    const RecentOp* op = ring.find(origin.seq - back);
    if (op == nullptr || op->step != origin.step) break;
    if (op->phase == Phase::kBackward || op->call_site != origin.call_site) continue;
    if (has_pole && has_derivative_pole(*op, saved.front(), names, ring)) return snapshot(*op, values, ring);
    if (has_pole || !takes_all(*op, saved, ring)) continue;
    if (found != nullptr || op->op == origin.op) return std::nullopt;  // which, or the same again: a checkpoint's
    found = op;
  }
  return found == nullptr ? std::nullopt : std::optional(snapshot(*found, values, ring));
}

constexpr std::size_t kMostFollowed = 64;  // values

bool is_among(std::span<const ValueId> values, ValueId id) { return std::ranges::find(values, id) != values.end(); }

// The values that are computed of an op's results, element by element, until an op selects among them.
class SelectionSearch {
 public:
  SelectionSearch(Names& names, ValueTable& values, const OpRing& ring) : names_(names), values_(values), ring_(ring) {}

  void follow(const RecentOp& op) {
    for (std::uint32_t i = 0; i < op.outputs && followed_.size() < kMostFollowed; ++i) followed_.push_back(ring_.output(op, i).value);
  }

  bool reads(const RecentOp& op, std::span<const ValueId> any) const {
    for (std::uint32_t i = 0; i < op.inputs; ++i) {
      const OpArg& arg = ring_.input(op, i);
      if (arg.role != ArgRole::kMask && arg.role != ArgRole::kIndex && is_among(any, arg.value)) return true;
    }
    return false;
  }

  bool selects(const RecentOp& op) const {
    const OpInfo& info = names_.op(op.op);
    if (info.has(kMasks) || info.has(kReplaces)) return true;
    if (info.has(kSelects)) return has_index(op) || drops(op);
    return info.has(kElementwise) && info.bound == Bound::kProduct && has_mask_beside(op);
  }

  // Whether what it gives is still that of one element.
  bool hands_on(const RecentOp& op) const {
    const OpInfo& info = names_.op(op.op);
    return info.has(kElementwise) || (info.has(kKeepsMask) && info.bound == Bound::kCopy);
  }

  std::span<const ValueId> followed() const { return followed_; }

 private:
  // The number of elements; a double, for the sizes of a damaged trace may overflow. -1: not known.
  double numel_of(ValueId id) const {
    const Value* value = values_.find(id);
    const LayoutRecord* layout = value == nullptr ? nullptr : names_.layout(value->layout);
    if (layout == nullptr) return -1;
    double numel = 1;
    for (const std::int64_t size : layout->sizes) numel *= static_cast<double>(size);
    return numel;
  }

  bool has_index(const RecentOp& op) const {
    for (std::uint32_t i = 0; i < op.inputs; ++i)
      if (ring_.input(op, i).role == ArgRole::kIndex || ring_.input(op, i).role == ArgRole::kMask) return true;
    return false;
  }

  bool drops(const RecentOp& op) const {
    if (op.outputs == 0) return false;
    const double left = numel_of(ring_.output(op, 0).value);
    for (std::uint32_t i = 0; i < op.inputs; ++i) {
      const OpArg& arg = ring_.input(op, i);
      if (is_among(followed_, arg.value) && left >= 0 && left < numel_of(arg.value)) return true;
    }
    return false;
  }

  bool has_mask_beside(const RecentOp& op) const {
    for (std::uint32_t i = 0; i < op.inputs; ++i) {
      const OpArg& arg = ring_.input(op, i);
      const Value* value = is_among(followed_, arg.value) ? nullptr : values_.find(arg.value);
      if (value == nullptr) continue;
      const LayoutRecord* layout = names_.layout(value->layout);
      if ((layout != nullptr && layout->dtype == DType::kBool) || (value->has_stats && value->stats.is_mask())) return true;
    }
    return false;
  }

  Names& names_;
  ValueTable& values_;
  const OpRing& ring_;
  std::vector<ValueId> followed_;
};

bool makes(const RecentOp& op, std::span<const ValueId> any, const OpRing& ring) {
  for (std::uint32_t i = 0; i < op.outputs; ++i)
    if (is_among(any, ring.output(op, i).value)) return true;
  return false;
}

// The first op that selected among the results of an op of forward, or of what was computed of them element by element:
// where(ok, log(x), 0). What is not taken has a gradient of 0, which the op's derivative is multiplied by all the same.
// `origin` is of backward and made of that op's derivative: its forward op is `derived`, where it is known, else one of
// the same line that took or made a value in `saved`.
const RecentOp* find_selection(const OpSnapshot& origin, const OpSnapshot* derived, std::span<const ValueId> saved,
                               Names& names, ValueTable& values, const OpRing& ring) {
  SelectionSearch search(names, values, ring);
  for (std::uint64_t seq = derived != nullptr ? derived->seq : origin.seq - std::min(origin.seq, OpRing::kOps); seq < origin.seq; ++seq) {
    const RecentOp* op = ring.find(seq);
    if (op == nullptr || op->step != origin.step || op->phase == Phase::kBackward) continue;
    const bool is_first = derived != nullptr
                              ? seq == derived->seq
                              : op->call_site == origin.call_site && (search.reads(*op, saved) || makes(*op, saved, ring));
    if (is_first) {
      search.follow(*op);
    } else if (search.reads(*op, search.followed())) {
      if (search.selects(*op)) return op;
      if (search.hands_on(*op)) search.follow(*op);
    }
  }
  return nullptr;
}

// What selected among the results of the forward op whose derivative this op of backward is a part of.
std::optional<OpSnapshot> selected_by(const OriginContext& context, const OpInfo& info, Names& names, ValueTable& values,
                                      const OpRing& ring) {
  const OpSnapshot& origin = context.op;
  const ArgSnapshot* pole = pole_of(origin, info, names);
  if (pole == nullptr || origin.call_site == 0) return std::nullopt;
  const OpSnapshot* derived = context.derivative_of ? &*context.derivative_of : nullptr;
  std::vector<ValueId> saved;
  if (derived == nullptr) saved = saved_for(pole->value, origin.call_site, values, ring);
  const RecentOp* op = find_selection(origin, derived, saved, names, values, ring);
  return op == nullptr ? std::nullopt : std::optional(snapshot(*op, values, ring));
}

// The labels of a loss that was added up and is divided now, where each of them is ignored.
std::optional<ArgSnapshot> ignored_labels(const OriginContext& context, Names& names, ValueTable& values,
                                          const OpRing& ring) {
  const auto sum = std::find_if(context.op.inputs.begin(), context.op.inputs.end(),
                                [&](const ArgSnapshot& arg) { return names.text(arg.slot) == "self"; });
  const Value* value = sum == context.op.inputs.end() ? nullptr : values.find(sum->value);
  const RecentOp* maker = value == nullptr ? nullptr : ring.find(values.producer_of(*value));
  if (maker == nullptr || names.op(maker->op).pole != Pole::kLabels) return std::nullopt;
  const OpSnapshot loss = snapshot(*maker, values, ring);
  const auto ignored = std::find_if(loss.scalars.begin(), loss.scalars.end(), [&](const ScalarSnapshot& scalar) {
    return names.text(scalar.name) == "ignore_index";
  });
  if (ignored == loss.scalars.end()) return std::nullopt;
  for (const ArgSnapshot& labels : loss.inputs) {
    if (!is_pole_slot(names.op(maker->op), names.text(labels.slot)) || !labels.known) continue;
    if (labels.stats.min == ignored->value && labels.stats.max == ignored->value) return labels;
  }
  return std::nullopt;
}

// A view of a parameter is one too.
ArgSnapshot snapshot_of(const Value* value, const OpArg& arg, ValueTable& values) {
  ArgSnapshot out = snapshot(value, arg);
  const StorageInfo* home = value == nullptr ? nullptr : values.storage(value->storage);
  out.is_parameter = out.is_parameter || (home != nullptr && home->parameter);
  return out;
}

}  // namespace

// PyTorch makes logdet of where(sign == -1, NaN, logabsdet), in this order. That NaN is given as a number, which counts
// as an input where the program read a NaN before.
const RecentOp* gave_sign(const OpInView& op, const Names& names, ValueTable& values, const OpRing& ring) {
  const OpRecord& record = *op.record;
  const auto nan = std::find_if(op.scalars.begin(), op.scalars.end(), [](const ScalarArg& s) { return std::isnan(s.value); });
  if (nan == op.scalars.end() || record.seq == 0 || !op.info->has(kWritesConstant)) return nullptr;
  if (!std::all_of(op.inputs.begin(), op.inputs.end(), [&](const OpArg& arg) { return arg.slot == nan->name; })) return nullptr;
  const RecentOp* compared = ring.find(record.seq - 1);
  if (compared == nullptr || compared->call_site != record.call_site || compared->inputs != 1) return nullptr;
  const Value* sign = values.find(ring.input(*compared, 0).value);
  const RecentOp* maker = sign == nullptr ? nullptr : ring.find(values.producer_of(*sign));
  if (maker == nullptr || maker->call_site != record.call_site) return nullptr;
  for (std::uint32_t i = 0; i < maker->outputs; ++i) {
    if (names.is(ring.output(*maker, i).slot, kLogOfDeterminant)) return maker;
  }
  return nullptr;
}

OpSnapshot snapshot(const RecentOp& op, ValueTable& values, const OpRing& ring) {
  OpSnapshot out;
  out.seq = op.seq;
  out.step = op.step;
  out.phase = op.phase;
  out.module = op.module;
  out.op = op.op;
  out.call_site = op.call_site;
  out.compute_dtype = op.compute_dtype;
  for (std::uint32_t i = 0; i < std::min<std::uint32_t>(op.scalars, kMaxArgs); ++i) {
    out.scalars.push_back({ring.scalar(op, i).name, ring.scalar(op, i).value});
  }
  auto take = [&](const OpArg& arg) { return snapshot_of(values.find(arg.value), arg, values); };
  for (std::uint32_t i = 0; i < std::min<std::uint32_t>(op.inputs, kMaxArgs); ++i)
    out.inputs.push_back(take(ring.input(op, i)));
  for (std::uint32_t i = 0; i < std::min<std::uint32_t>(op.outputs, kMaxArgs); ++i)
    out.outputs.push_back(take(ring.output(op, i)));
  return out;
}

ArgSnapshot snapshot(const Value* value, const OpArg& arg) {
  ArgSnapshot out;
  out.value = arg.value;
  out.slot = arg.slot;
  out.role = arg.role;
  if (value == nullptr) return out;
  out.name = value->name;
  out.layout = value->layout;
  out.known = value->has_stats;
  out.is_parameter = value->has_role(TensorRole::kParameter);
  out.is_made = value->producer != kNoSeq || value->base != 0;
  out.is_gradient = value->has_role(TensorRole::kBoundaryGradient);
  out.bad = value->bad;
  out.flushed = value->flushed;
  out.stats = value->stats;
  return out;
}

std::unique_ptr<OriginContext> capture(const OpInView& op, Names& names, ValueTable& values, const OpRing& ring) {
  auto context = std::make_unique<OriginContext>();
  OpSnapshot& origin = context->op;
  origin.seq = op.record->seq;
  origin.step = op.record->step;
  origin.phase = op.record->phase;
  origin.module = op.record->module;
  origin.op = op.record->op;
  origin.call_site = op.record->call_site;
  origin.compute_dtype = op.record->compute_dtype;
  for (std::size_t i = 0; i < std::min(op.scalars.size(), kMaxArgs); ++i) {
    origin.scalars.push_back({op.scalars[i].name, op.scalars[i].value});
  }
  for (std::size_t i = 0; i < std::min(op.inputs.size(), kMaxArgs); ++i)
    origin.inputs.push_back(snapshot_of(op.in[i], op.inputs[i], values));
  bool found_bad = false;
  for (std::size_t i = 0; i < std::min(op.outputs.size(), kMaxArgs); ++i) {
    origin.outputs.push_back(snapshot(op.out[i], op.outputs[i]));
    if (!found_bad && origin.outputs.back().bad != 0) {
      context->bad_output = i;
      found_bad = true;
    }
  }

  if (origin.phase == Phase::kBackward) {
    trace_pole(*context, *op.info, names, values, ring);
    context->derivative_of = derived_of(*context, *op.info, names, values, ring);
    context->selected_by = selected_by(*context, *op.info, names, values, ring);
  } else if (op.info->bound == Bound::kQuotient) {
    context->ignored_labels = ignored_labels(*context, names, values, ring);
  } else if (op.info->has(kWritesConstant)) {
    if (const RecentOp* maker = gave_sign(op, names, values, ring))
      context->slice.push_back(snapshot(*maker, values, ring));
  }

  // Breadth first through producers. A value may be met twice: its producer is taken once.
  struct Open {
    int slice;  // -1: the origin
    std::size_t input;
  };
  std::vector<Open> open;
  // Of a mean over nothing that it is empty says all; else any input may have made it bad.
  const bool has_pole = op.info->pole != Pole::kEmpty && pole_of(origin, *op.info, names) != nullptr;
  for (std::size_t i = 0; i < origin.inputs.size(); ++i) {
    if (!has_pole || is_pole_slot(*op.info, names.text(origin.inputs[i].slot))) open.push_back({-1, i});
  }
  std::map<std::uint64_t, std::int32_t> taken;
  for (std::size_t i = 0; i < open.size(); ++i) {
    const int at = open[i].slice;
    ArgSnapshot& arg =
        at < 0 ? origin.inputs[open[i].input] : context->slice[static_cast<std::size_t>(at)].inputs[open[i].input];
    const Value* value = values.find(arg.value);
    const std::uint64_t made_by = value == nullptr ? kNoSeq : values.producer_of(*value);
    if (made_by >= op.record->seq) continue;
    const RecentOp* producer = ring.find(made_by);
    if (producer == nullptr) continue;
    const auto it = taken.find(producer->seq);
    if (it != taken.end()) {
      arg.producer = it->second;
      continue;
    }
    if (context->slice.size() >= kMaxSlice) continue;
    const auto index = static_cast<std::int32_t>(context->slice.size());
    arg.producer = index;  // before push_back: `arg` may live in the slice
    taken.emplace(producer->seq, index);
    context->slice.push_back(snapshot(*producer, values, ring));
    for (std::size_t input = 0; input < context->slice.back().inputs.size(); ++input) {
      const ArgRole role = context->slice.back().inputs[input].role;
      if (role != ArgRole::kMask && role != ArgRole::kIndex) open.push_back({index, input});
    }
  }
  return context;
}

}  // namespace nanhunt::analyze
