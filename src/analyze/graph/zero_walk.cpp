// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/graph/zero_walk.h"

#include <algorithm>
#include <cmath>

namespace nanhunt::analyze {
namespace {

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
    const Guard guard = guard_of(op, info, names_);
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

}  // namespace

DType dtype_of(const ArgSnapshot& arg, const Names& names, DType otherwise) {
  const LayoutRecord* layout = names.layout(arg.layout);
  return layout == nullptr ? otherwise : layout->dtype;
}

Guard guard_of(const OpSnapshot& op, const OpInfo& info, const Names& names) {
  const std::string_view wanted = info.zero == ZeroRule::kAdd ? "other" : info.zero == ZeroRule::kClamp ? "min" : "";
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
