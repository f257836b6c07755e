// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/graph/zero_walk.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace nanhunt::analyze {
namespace {

std::string_view slot_of_guard(const OpInfo& info) {
  return info.zero == ZeroRule::kAdd ? "other" : info.zero == ZeroRule::kClamp ? "min" : "";
}

class Walk {
 public:
  Walk(const OriginContext& context, const ArgSnapshot& pole, Names& names)
      : context_(context), pole_(pole), names_(names) {}

  ZeroOrigin from(const ArgSnapshot& arg, int depth) {
    if (arg.producer < 0 || depth > static_cast<int>(kMaxSlice) || !arg.known || arg.stats.zero == 0) return {};
    const OpSnapshot& op = context_.slice[static_cast<std::size_t>(arg.producer)];
    const ArgSnapshot* out = output(op, arg.value);
    if (out == nullptr || !out->known) return {};
    const OpInfo& info = names_.op(op.op);
    switch (info.zero) {
      case ZeroRule::kStop:
        return {};
      case ZeroRule::kAdd:
      case ZeroRule::kClamp:
        return guarded(op, info, *out, depth);
      case ZeroRule::kConstant: {
        const double constant = op.scalars.empty() ? 0 : op.scalars.front().value;
        // Zeros beside a constant that the format holds were there before it was written, into a part or a view.
        if (constant == 0 || round_to(dtype_of(*out, names_, op.compute_dtype), constant) != 0) return {};
        return lost_guard(op, *out, constant);
      }
      case ZeroRule::kSame:
      case ZeroRule::kProduct:
      case ZeroRule::kReduce:
      case ZeroRule::kSquareAdd:
        return flushed_or_on(op, info, *out, depth);
    }
    return {};
  }

 private:
  static const ArgSnapshot* output(const OpSnapshot& op, ValueId value) {
    for (const ArgSnapshot& out : op.outputs) {
      if (out.value == value) return &out;
    }
    return op.outputs.empty() ? nullptr : &op.outputs.front();
  }

  ZeroOrigin lost_guard(const OpSnapshot& op, const ArgSnapshot& out, double constant) const {
    ZeroOrigin found;
    found.cause = ZeroCause::kGuardLost;
    found.op = &op;
    found.stored = dtype_of(out, names_, op.compute_dtype);
    found.guard = constant;
    found.numel = out.stats.numel;
    return found;
  }

  // x + c or max(x, c), stored as 0.
  ZeroOrigin guarded(const OpSnapshot& op, const OpInfo& info, const ArgSnapshot& out, int depth) {
    Guard guard = guard_of(op, info, names_);
    if (!guard.there && out.stats.numel != 1) guard = guard_of_tensor(op, info);
    if (guard.there) {
      if (round_to(dtype_of(out, names_, op.compute_dtype), guard.value) == 0) return lost_guard(op, out, guard.value);
      return {};  // the constant survived: the sum cancelled
    }
    // Tensor + tensor: the guard may be a tensor of one element that was lost when it was made or cast.
    for (const ArgSnapshot& in : op.inputs) {
      if (!in.known || in.stats.numel != 1 || in.stats.zero != 1 || out.stats.numel == 1) continue;
      ZeroOrigin constant = from(in, depth + 1);
      if (constant.cause == ZeroCause::kExact) continue;
      if (constant.cause == ZeroCause::kFlushed) {
        constant.cause = ZeroCause::kGuardLost;
        constant.guard = constant.op->inputs.empty() ? 0 : constant.op->inputs.front().stats.amax;
      }
      return constant;
    }
    return onwards(op, depth);
  }

  // A tensor of one number, which it holds still: PyTorch makes one of the eps of cosine_similarity.
  Guard guard_of_tensor(const OpSnapshot& op, const OpInfo& info) const {
    if (info.has(kSubtracts)) return {};
    for (const ArgSnapshot& in : op.inputs) {
      if (names_.text(in.slot) != slot_of_guard(info) || !in.known || in.stats.numel != 1 || !in.stats.counted()) continue;
      if (in.stats.min > 0 && std::isfinite(in.stats.min)) return {in.stats.min, true};
    }
    return {};
  }

  ZeroOrigin flushed_or_on(const OpSnapshot& op, const OpInfo& info, const ArgSnapshot& out, int depth) {
    const std::int64_t flushed = flushed_in(op, info, out);
    // How many elements of this result meet in one of the zeros looked for (a row that was summed up; of one that is shown
    // several times, a part).
    const double numel = static_cast<double>(std::max<std::int64_t>(1, pole_.stats.numel));
    const double ratio = static_cast<double>(out.stats.numel) / numel;
    const double wanted = static_cast<double>(pole_.stats.zero) * ratio;
    const double exact = static_cast<double>(out.stats.zero - flushed);
    if (flushed > 0 && exact * 2 < wanted) {
      ZeroOrigin found;
      found.cause = ZeroCause::kFlushed;
      found.op = &op;
      found.stored = dtype_of(out, names_, op.compute_dtype);
      found.flushed = flushed;
      found.numel = out.stats.numel;
      return found;
    }
    if (info.zero == ZeroRule::kSquareAdd) return {};
    return onwards(op, depth);
  }

  // Elements lost to 0 by this op: counted by the recorder, else what a map of zeros to zeros added.
  static std::int64_t flushed_in(const OpSnapshot& op, const OpInfo& info, const ArgSnapshot& out) {
    if (out.flushed >= 0) return std::min(out.flushed, out.stats.zero);
    if (info.zero != ZeroRule::kSame || !info.has(kElementwise) || op.inputs.empty()) return 0;
    const ArgSnapshot& in = op.inputs.front();
    if (!in.known || !in.stats.counted() || in.stats.numel != out.stats.numel) return 0;
    return std::max<std::int64_t>(0, out.stats.zero - in.stats.zero);
  }

  ZeroOrigin onwards(const OpSnapshot& op, int depth) {
    for (const ArgSnapshot& in : op.inputs) {
      if (in.role == ArgRole::kMask || in.role == ArgRole::kIndex) continue;
      const ZeroOrigin found = from(in, depth + 1);
      if (found.cause != ZeroCause::kExact) return found;
    }
    return {};
  }

  const OriginContext& context_;
  const ArgSnapshot& pole_;
  Names& names_;
};

const ArgSnapshot* result_of(const OpSnapshot& op, ValueId value) {
  for (const ArgSnapshot& out : op.outputs) {
    if (out.value == value) return &out;
  }
  return nullptr;
}

// Whether `out` is a number less `in`, as far as both ranges show it.
bool is_turned(const ValueStats& in, const ValueStats& out, double number) {
  const double error = 0.01 * std::max({std::fabs(number), std::fabs(in.min), std::fabs(in.max)});
  return std::fabs(number - in.max - out.min) <= error && std::fabs(number - in.min - out.max) <= error;
}

// One step of the walk back from a number of a result to that of what it was made of.
struct StepBack {
  double at = 0;
  bool copied = false;
};
std::optional<StepBack> number_before(const OpSnapshot& op, const OpInfo& info, const ArgSnapshot& out, DType stored,
                                      double at, const Names& names) {
  if (op.inputs.size() != 1 || !op.inputs.front().known || op.inputs.front().stats.numel == 0) return std::nullopt;
  const ValueStats &in = op.inputs.front().stats, &made = out.stats;
  if (info.bound == Bound::kSum) {
    for (const ScalarSnapshot& scalar : op.scalars) {
      if (names.text(scalar.name) != "other") continue;
      if (info.zero == ZeroRule::kAdd) return StepBack{info.has(kSubtracts) ? at + scalar.value : at - scalar.value};
      return is_turned(in, made, scalar.value) ? std::optional(StepBack{scalar.value - at}) : std::nullopt;
    }
    return std::nullopt;
  }
  if (info.zero != ZeroRule::kSame || !info.has(kKeepsMask) || info.pole != Pole::kNone) return std::nullopt;
  const auto rounded = [&](double number) { return is_floating(stored) ? round_to(stored, number) : number; };
  if (rounded(in.min) == made.min && rounded(in.max) == made.max) return StepBack{at, true};
  if (in.min == -made.max && in.max == -made.min) return StepBack{-at};
  return std::nullopt;
}

}  // namespace

RoundedBound find_rounded_bound(const OriginContext& context, const ArgSnapshot& pole, double at, Names& names) {
  const ArgSnapshot* arg = &pole;
  std::optional<DType> copy;  // the format of a copy of what is looked at
  for (std::size_t ops = 0; ops < kMaxSlice && arg->producer >= 0; ++ops) {
    const OpSnapshot& op = context.slice[static_cast<std::size_t>(arg->producer)];
    const ArgSnapshot* out = result_of(op, arg->value);
    if (out == nullptr || !out->known || !out->stats.counted()) return {};
    const OpInfo& info = names.op(op.op);
    const DType stored = dtype_of(*out, names, op.compute_dtype);
    if (info.has(kReplaces)) {
      const DType format = copy.value_or(stored);
      if (!is_floating(stored) || !is_floating(format)) return {};
      for (const ScalarSnapshot& scalar : op.scalars) {
        const std::string& name = names.text(scalar.name);
        const double limit = name == "max" ? out->stats.max : out->stats.min;
        if ((name != "max" && name != "min") || limit != round_to(stored, scalar.value)) continue;
        if (scalar.value != at && round_to(format, limit) == at) return {&op, scalar.name, scalar.value, at, format};
      }
      return {};
    }
    const std::optional<StepBack> step = number_before(op, info, *out, stored, at, names);
    if (!step) return {};
    at = step->at;
    if (!step->copied) {
      copy.reset();
    } else if (!copy) {
      copy = stored;
    }
    arg = &op.inputs.front();
  }
  return {};
}

DType dtype_of(const ArgSnapshot& arg, const Names& names, DType otherwise) {
  const LayoutRecord* layout = names.layout(arg.layout);
  return layout == nullptr ? otherwise : layout->dtype;
}

Guard guard_of(const OpSnapshot& op, const OpInfo& info, const Names& names) {
  const std::string_view wanted = slot_of_guard(info);
  if (wanted.empty()) return {};
  const bool minus = info.has(kSubtracts);
  for (const ScalarSnapshot& scalar : op.scalars) {
    const std::string& name = names.text(scalar.name);
    if (name != wanted && name != "eps") continue;
    const double value = minus ? -scalar.value : scalar.value;
    if (value > 0 && std::isfinite(value)) return {value, true};
  }
  return {};
}

ZeroOrigin find_zero_origin(const OriginContext& context, const ArgSnapshot& arg, Names& names) {
  return Walk(context, arg, names).from(arg, 0);
}

}  // namespace nanhunt::analyze
