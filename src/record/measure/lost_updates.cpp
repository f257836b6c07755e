// SPDX-License-Identifier: Apache-2.0
#include "src/record/measure/lost_updates.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/cpu/convert.h"
#include "kernels/portable/update_kernels.h"
#include "src/core/op_name.h"
#include "src/core/ops/op_info.h"

namespace nanhunt::record {
namespace {

constexpr std::int64_t kChunk = 512;
constexpr float kFusedSlack = 0.02f;  // state that is stored in 16 bits is up to 2^-9 off what the kernel used
using Floats = float[kChunk];
using Codes = std::uint16_t[kChunk];

bool is_sum(std::string_view op) {
  return plain_op_name(op) == "add" && op_info(op).update == UpdateRule::kSum;
}
bool is_16_bit(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

void widen(DType dtype, const std::uint16_t* from, float* to, std::int64_t count) {
  const auto n = static_cast<std::size_t>(count);
  dtype == DType::kF16 ? kernels::convert_f16_to_f32(from, to, n) : kernels::convert_bf16_to_f32(from, to, n);
}
void narrow(DType dtype, const float* from, std::uint16_t* to, std::int64_t count) {
  const auto n = static_cast<std::size_t>(count);
  dtype == DType::kF16 ? kernels::convert_f32_to_f16(from, to, n) : kernels::convert_f32_to_bf16(from, to, n);
}

// What is needed of an op: its output and operands without gaps, all of one size.
class Call {
 public:
  explicit Call(const OpEvent& event, bool readable = true) : event_(event), readable_(readable) {}

  const TensorView* self() const {
    const bool updates = event_.phase == Phase::kOptimizer || event_.phase == Phase::kUpdate || event_.phase == Phase::kData;
    if (!updates || event_.outputs.empty()) return nullptr;
    const ValueView& out = event_.outputs.front().value;
    const bool in_place = std::any_of(event_.inputs.begin(), event_.inputs.end(), [&](const OpInput& in) {
      return in.role == ArgRole::kOverwritten && in.value.storage == out.storage;
    });
    // Between two steps a sum may be made first and copied then.
    const bool sums = event_.phase == Phase::kUpdate && is_sum(event_.op);
    return (in_place || sums) && is_16_bit(out.tensor.dtype) && is_plain(out.tensor) ? &out.tensor : nullptr;
  }
  // By slot; state that the op writes as well is read as it is now.
  const TensorView* operand(std::string_view slot) const {
    const TensorView* found = nullptr;
    for (const OpInput& in : event_.inputs) {
      if (in.slot == slot && in.role != ArgRole::kOverwritten) found = &in.value.tensor;
    }
    for (const OpOutput& out : event_.outputs) {
      if (out.slot == slot) found = &out.value.tensor;
    }
    if (found == nullptr || !is_plain(*found) || (!is_16_bit(found->dtype) && found->dtype != DType::kF32))
      return nullptr;
    return found->numel() == event_.outputs.front().value.tensor.numel() ? found : nullptr;
  }
  double scalar(std::string_view name, double otherwise) const {
    for (const OpScalar& s : event_.scalars) {
      if (s.name == name) return s.value;
    }
    return otherwise;
  }
  bool has_scalar(std::string_view name) const {
    return std::any_of(event_.scalars.begin(), event_.scalars.end(), [&](const OpScalar& s) { return s.name == name; });
  }

 private:
  bool is_plain(const TensorView& view) const {
    return (view.data != nullptr) == readable_ && view.sizes.size() == view.strides.size() && view.is_contiguous();
  }
  const OpEvent& event_;
  const bool readable_;
};

void read(const TensorView& view, std::int64_t start, std::int64_t count, float* out) {
  if (view.dtype == DType::kF32) {
    std::copy_n(static_cast<const float*>(view.data) + start, count, out);
  } else {
    widen(view.dtype, static_cast<const std::uint16_t*>(view.data) + start, out, count);
  }
}

using kernels::UpdateKind;

struct Update {
  kernels::UpdateFormula formula;
  const TensorView *a = nullptr, *b = nullptr;
};

std::optional<Update> update_of(const Call& call, std::string_view op) {
  Update u;
  kernels::UpdateFormula& f = u.formula;
  if (!plain_op_name(op).ends_with('_') && !is_sum(op)) return std::nullopt;
  const UpdateRule rule = op_info(op).update;
  if (rule == UpdateRule::kNotMeasured) return std::nullopt;
  if (rule == UpdateRule::kSum || rule == UpdateRule::kDifference) {
    const auto alpha = static_cast<float>(call.scalar("alpha", 1));
    f.factor = rule == UpdateRule::kDifference ? -alpha : alpha;
    u.a = call.operand("other");
    return u.a != nullptr ? std::optional(u) : std::nullopt;
  }
  if (rule == UpdateRule::kQuotient) {
    f.kind = UpdateKind::kQuotient;
    f.factor = static_cast<float>(call.scalar("value", 1));
    u.a = call.operand("tensor1");
    u.b = call.operand("tensor2");
    return u.a != nullptr && u.b != nullptr ? std::optional(u) : std::nullopt;
  }
  if (rule == UpdateRule::kDecay) {
    f.kind = UpdateKind::kDecay;
    f.keep = static_cast<float>(call.scalar("other", 1));
    return call.has_scalar("other") ? std::optional(u) : std::nullopt;
  }
  if (rule == UpdateRule::kLerp) {
    f.factor = static_cast<float>(call.scalar("weight", 0));
    f.keep = 1 - f.factor;
    u.a = call.operand("end");
    return u.a != nullptr && call.has_scalar("weight") ? std::optional(u) : std::nullopt;
  }
  f.slack = kFusedSlack;
  const double lr = call.scalar("lr", 0), decay = call.scalar("weight_decay", 0);
  if (rule == UpdateRule::kSgd) {
    f.kind = UpdateKind::kSgd;
    u.a = call.operand("grad");
    f.momentum = static_cast<float>(call.scalar("momentum", 0));
    u.b = f.momentum == 0 ? u.a : call.operand("momentum_buffer");
    f.factor = static_cast<float>(-lr);
    // The decay is in the buffer, where there is one.
    if (f.momentum == 0) f.keep = static_cast<float>(1 - lr * decay);
    return u.a != nullptr && u.b != nullptr ? std::optional(u) : std::nullopt;
  }
  f.kind = UpdateKind::kAdam;
  u.a = call.operand("exp_avg");
  u.b = call.operand("exp_avg_sq");
  const double step = call.scalar("step", 0);
  if (u.a == nullptr || u.b == nullptr || call.operand("grad") == nullptr || !(step >= 1)) return std::nullopt;
  f.factor = static_cast<float>(-lr / (1 - std::pow(call.scalar("beta1", 0.9), step)));
  f.correction = static_cast<float>(std::sqrt(1 - std::pow(call.scalar("beta2", 0.999), step)));
  f.eps = static_cast<float>(call.scalar("eps", 0));
  if (rule == UpdateRule::kAdamW) f.keep = static_cast<float>(1 - lr * decay);
  f.smallest_square = is_16_bit(u.b->dtype) ? format_limits(u.b->dtype).min_normal : 0;
  return u;
}

// The change of each element but for `keep`. false where it is not known.
template <UpdateKind kKind>
void compute_changes(const Update& u, std::int64_t start, std::int64_t count, float* change, bool* known) {
  kernels::UpdateFormula f = u.formula;
  f.kind = kKind;  // known to the compiler, so that the loop has no branch
  Floats a{}, b{};
  if (u.a != nullptr) read(*u.a, start, count, a);
  if (u.b != nullptr) read(*u.b, start, count, b);
  for (std::int64_t i = 0; i < count; ++i) {
    change[i] = kernels::cuda::update_change(f, a[i], b[i]);
    known[i] = kernels::cuda::change_is_known(f, b[i]);
  }
}
void compute_changes(const Update& u, std::int64_t start, std::int64_t count, float* change, bool* known) {
  switch (u.formula.kind) {
    case UpdateKind::kScaled:
      return compute_changes<UpdateKind::kScaled>(u, start, count, change, known);
    case UpdateKind::kQuotient:
      return compute_changes<UpdateKind::kQuotient>(u, start, count, change, known);
    case UpdateKind::kDecay:
      return compute_changes<UpdateKind::kDecay>(u, start, count, change, known);
    case UpdateKind::kSgd:
      return compute_changes<UpdateKind::kSgd>(u, start, count, change, known);
    case UpdateKind::kAdam:
      return compute_changes<UpdateKind::kAdam>(u, start, count, change, known);
  }
}

// unchanged[i] &= the update takes x[i] to itself, and neither of its neighbours to it.
class Judge {
 public:
  Judge(DType dtype, const std::uint16_t* codes, std::int64_t count) : dtype_(dtype), count_(count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const auto magnitude = static_cast<std::uint16_t>(codes[i] & 0x7FFF);
      const auto sign = static_cast<std::uint16_t>(codes[i] & 0x8000);
      above_codes_[i] = static_cast<std::uint16_t>(sign | (magnitude + 1));
      below_codes_[i] = static_cast<std::uint16_t>(magnitude == 0 ? (sign ^ 0x8000) | 1 : sign | (magnitude - 1));
    }
    widen(dtype, codes, x_, count);
    widen(dtype, above_codes_, above_, count);
    widen(dtype, below_codes_, below_, count);
  }
  const float* x() const { return x_; }

  void judge(float keep, const float* change, float factor, bool* unchanged) {
    apply(x_, keep, change, factor);
    for (std::int64_t i = 0; i < count_; ++i) unchanged[i] = unchanged[i] && result_[i] == x_[i];
    apply(above_, keep, change, factor);
    for (std::int64_t i = 0; i < count_; ++i) unchanged[i] = unchanged[i] && result_[i] != x_[i];
    apply(below_, keep, change, factor);
    for (std::int64_t i = 0; i < count_; ++i) unchanged[i] = unchanged[i] && result_[i] != x_[i];
  }

 private:
  void apply(const float* from, float keep, const float* change, float factor) {
    for (std::int64_t i = 0; i < count_; ++i) result_[i] = from[i] * keep + change[i] * factor;
    narrow(dtype_, result_, codes_, count_);
    widen(dtype_, codes_, result_, count_);
  }

  DType dtype_;
  std::int64_t count_;
  Codes above_codes_, below_codes_, codes_;
  Floats x_, above_, below_, result_;
};

}  // namespace

std::optional<DeferredUpdate> deferred_update(const OpEvent& event) {
  const Call call(event, /*readable=*/false);
  const TensorView* self = call.self();
  if (self == nullptr) return std::nullopt;
  const std::optional<Update> update = update_of(call, event.op);
  if (!update) return std::nullopt;
  return DeferredUpdate{update->formula, self, update->a, update->b};
}

std::optional<LostUpdates> count_lost_updates(const OpEvent& event) {
  const Call call(event);
  const TensorView* self = call.self();
  if (self == nullptr) return std::nullopt;
  const std::optional<Update> update = update_of(call, event.op);
  if (!update) return std::nullopt;

  LostUpdates found;
  double all = 0, lost = 0;
  Floats change;
  bool known[kChunk], unchanged[kChunk];
  const std::int64_t numel = self->numel();
  for (std::int64_t start = 0; start < numel; start += kChunk) {
    const std::int64_t count = std::min(kChunk, numel - start);
    Judge judge(self->dtype, static_cast<const std::uint16_t*>(self->data) + start, count);
    compute_changes(*update, start, count, change, known);
    std::fill_n(unchanged, count, true);
    judge.judge(update->formula.keep, change, 1 - update->formula.slack, unchanged);
    if (update->formula.slack != 0) judge.judge(update->formula.keep, change, 1 + update->formula.slack, unchanged);
    for (std::int64_t i = 0; i < count; ++i) {
      const float x = judge.x()[i];
      const bool decays = update->formula.kind == UpdateKind::kDecay;
      // Weight decay alone is no update that was learnt.
      if (!std::isfinite(x) || !std::isfinite(change[i]) || (!decays && change[i] == 0)) continue;
      const double kept = static_cast<double>(x) * (static_cast<double>(update->formula.keep) - 1);
      const double size = std::fabs(static_cast<double>(change[i]) + kept);
      if (size == 0) continue;
      ++found.updates;
      all += size;
      if (!known[i] || !unchanged[i]) continue;
      ++found.lost;
      lost += size;
    }
  }
  found.share = all > 0 ? lost / all : 0;
  return found;
}

}  // namespace nanhunt::record
