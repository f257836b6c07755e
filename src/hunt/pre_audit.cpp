// SPDX-License-Identifier: Apache-2.0
#include "src/hunt/pre_audit.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <type_traits>

#include "kernels/cpu/convert.h"

namespace nanhunt::hunt {
namespace {

constexpr std::int64_t kChunk = 512;
constexpr double kLargestParameter = 0x1p60;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

bool is_computed(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 || dtype == DType::kF64;
}

bool has_data(const TensorView& view) { return view.data != nullptr; }

// What every formula starts from, in double as the optimizer's host code has it.
struct Factors {
  double step_size = 0, correction = 1;
  explicit Factors(const PreAuditOptions& o, std::int64_t step) {
    const auto t = static_cast<double>(step);
    step_size = o.lr / (1 - std::pow(o.beta1, t));
    correction = std::sqrt(1 - std::pow(o.beta2, t));
  }
};

// R of PreAuditMemory::balanced: by Cauchy and Schwarz, if |m| <= R sqrt(v) before a step, then after it. Infinite
// where it does not hold, or rounding is too coarse for it.
double balance(const PreAuditOptions& o) {
  const double rest = 1 - o.beta1 * o.beta1 / o.beta2;
  if (!(rest > 0) || 1 - o.beta2 < 1e-6) return std::numeric_limits<double>::infinity();
  return (1 - o.beta1) / std::sqrt((1 - o.beta2) * rest);
}
constexpr double kBalanceSlack = 1.5;    // for rounding
constexpr double kSquareLost = 1e-16;  // gradients up to this size may be missing in v, for their squares are subnormal

// The largest size of each element's update, and of m after the step; nullopt: elements have to be looked at.
struct Bounds {
  double first, update;
};

std::optional<Bounds> bound_sgd(const PreAuditOptions& o, const PreAuditInput& in, double slope) {
  const double buffer = o.momentum == 0 ? 0 : 1.01 * (o.momentum * in.memory.first + slope);
  const double most = format_limits(in.param.dtype).max_finite;
  if (!(o.momentum >= 0) || buffer > most / 8 || slope > most / 8) return std::nullopt;
  return Bounds{buffer, o.lr * (slope + buffer)};
}

std::optional<Bounds> bound_adam(const PreAuditOptions& o, const PreAuditInput& in, double slope) {
  const DType stored = in.param.dtype;
  const FormatLimits& limits = format_limits(stored);
  if (!(o.beta1 >= 0 && o.beta1 < 1 && o.beta2 >= 0 && o.beta2 < 1)) return std::nullopt;
  if (slope > std::sqrt(limits.max_finite) / 4) return std::nullopt;
  const double eps = round_to(o.fused && stored != DType::kF64 ? DType::kF32 : stored, o.eps);
  if (!(eps >= limits.min_normal) || !std::isfinite(eps)) return std::nullopt;
  const Factors f(o, in.step);
  if (!(std::sqrt(limits.max_finite) / f.correction <= limits.max_finite / 4)) return std::nullopt;
  const double first = std::max(in.memory.first, slope);
  double update = first / eps;
  if (in.memory.balanced && stored != DType::kBF16) {
    update = std::min(update, kBalanceSlack * balance(o) + kSquareLost / eps);
  }
  return Bounds{first, f.step_size * update};
}

// true: no element can go bad; `memory` then holds for the state after the step.
bool is_safe(const PreAuditOptions& o, const PreAuditInput& in, PreAuditMemory& memory) {
  const DType stored = in.param.dtype;
  if (stored == DType::kF16 || (in.grad.dtype == DType::kF64) != (stored == DType::kF64)) return false;
  if (!std::isfinite(in.grad_amax) || !std::isfinite(in.memory.first) || in.step < 1) return false;
  const bool decoupled = o.algorithm == "adamw";
  if (!(o.lr >= 0) || !(o.weight_decay >= 0) || (decoupled && o.lr * o.weight_decay > 1)) return false;
  const double param = std::isfinite(in.memory.param) ? in.memory.param : kLargestParameter;
  if (param > kLargestParameter) return false;
  // 1 % for what rounding to 16 bits adds.
  const double slope = 1.01 * (in.grad_amax + (decoupled ? 0 : o.weight_decay * param));
  const auto bounds = o.algorithm == "sgd" ? bound_sgd(o, in, slope) : bound_adam(o, in, slope);
  if (!bounds || !(bounds->update <= format_limits(stored).max_finite / 4)) return false;
  memory = in.memory;
  memory.first = bounds->first;
  memory.param = 1.0001 * in.memory.param + bounds->update;
  return !in.copied_to || *in.copied_to != DType::kF16 || memory.param < format_limits(DType::kF16).max_finite;
}

// Elements of a view in row-major order, as values of op math.
template <typename T>
class Elements {
 public:
  explicit Elements(const TensorView& view) : view_(view), contiguous_(view.is_contiguous()) {}

  void read(std::int64_t start, std::int64_t count, T* out) const {
    if (!has_data(view_)) {
      std::fill_n(out, count, T{0});
      return;
    }
    const auto n = static_cast<std::size_t>(count);
    const auto* bytes = static_cast<const std::byte*>(view_.data);
    const std::size_t size = dtype_size(view_.dtype);
    if constexpr (std::is_same_v<T, float>) {
      if (contiguous_) {
        const std::byte* at = bytes + static_cast<std::size_t>(start) * size;
        if (view_.dtype == DType::kF32) {
          std::copy_n(reinterpret_cast<const float*>(at), n, out);
          return;
        }
        if (view_.dtype == DType::kF16) {
          kernels::convert_f16_to_f32(reinterpret_cast<const std::uint16_t*>(at), out, n);
          return;
        }
        if (view_.dtype == DType::kBF16) {
          kernels::convert_bf16_to_f32(reinterpret_cast<const std::uint16_t*>(at), out, n);
          return;
        }
      }
    }
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t rest = start + i, offset = 0;
      for (std::size_t d = view_.sizes.size(); d-- > 0;) {
        offset += rest % view_.sizes[d] * view_.strides[d];
        rest /= view_.sizes[d];
      }
      out[i] = static_cast<T>(load_as_f64(view_.dtype, bytes + offset * static_cast<std::int64_t>(size)));
    }
  }

 private:
  const TensorView& view_;
  bool contiguous_;
};

// What is left of values once they were stored.
template <typename T>
void store(DType dtype, T* values, std::int64_t count) {
  if constexpr (std::is_same_v<T, float>) {
    std::uint16_t codes[kChunk];
    const auto n = static_cast<std::size_t>(count);
    if (dtype == DType::kF16) {
      kernels::convert_f32_to_f16(values, codes, n);
      kernels::convert_f16_to_f32(codes, values, n);
    } else if (dtype == DType::kBF16) {
      kernels::convert_f32_to_bf16(values, codes, n);
      kernels::convert_bf16_to_f32(codes, values, n);
    }
  } else if (dtype != DType::kF64) {
    for (std::int64_t i = 0; i < count; ++i) values[i] = round_to(dtype, values[i]);
  }
}

// The step itself, a chunk at a time. for_each_stored() is one op of the for-loop form: compute, store, round.
template <typename T>
class Simulation {
 public:
  Simulation(const PreAuditOptions& options, const PreAuditInput& input)
      : o_(options),
        in_(input),
        factors_(options, input.step),
        dtype_(input.param.dtype),
        grad_(input.grad),
        param_(input.param),
        first_(input.first),
        second_(input.second) {}

  PreAudit run() {
    audit_.read_elements = true;
    audit_.memory = {0, 0, o_.algorithm != "sgd"};
    const std::int64_t n = in_.grad.numel();
    for (start_ = 0; start_ < n; start_ += kChunk) {
      count_ = std::min(kChunk, n - start_);
      grad_.read(start_, count_, g_);
      param_.read(start_, count_, p_);
      first_.read(start_, count_, m_);
      second_.read(start_, count_, v_);
      if (o_.algorithm == "sgd") {
        o_.fused ? sgd_fused() : sgd_loop();
      } else {
        o_.fused ? adam_fused() : adam_loop();
      }
      judge();
    }
    return audit_;
  }

 private:
  template <typename F>
  void each(F f) {
    for (std::int64_t i = 0; i < count_; ++i) f(i);
  }
  template <typename F>
  void for_each_stored(T* out, F f) {
    for (std::int64_t i = 0; i < count_; ++i) out[i] = f(i);
    store(dtype_, out, count_);
  }
  static T cast(double x) { return static_cast<T>(x); }
  void add_decay() {
    if (o_.weight_decay == 0) return;
    const T a = cast(o_.weight_decay);
    for_each_stored(g_, [&](std::int64_t i) { return a == 1 ? g_[i] + p_[i] : g_[i] + a * p_[i]; });
  }

  void sgd_loop() {
    add_decay();
    const T lr = cast(-o_.lr), momentum = cast(o_.momentum);
    const T* direction = g_;
    if (o_.momentum != 0) {
      for_each_stored(m_, [&](std::int64_t i) { return m_[i] * momentum; });
      for_each_stored(m_, [&](std::int64_t i) { return m_[i] + g_[i]; });
      if (o_.nesterov) for_each_stored(g_, [&](std::int64_t i) { return g_[i] + momentum * m_[i]; });
      if (!o_.nesterov) direction = m_;
    }
    for_each_stored(p_, [&](std::int64_t i) { return p_[i] + lr * direction[i]; });
  }

  void sgd_fused() {
    const T lr = cast(o_.lr), decay = cast(o_.weight_decay), momentum = cast(o_.momentum);
    each([&](std::int64_t i) {
      T direction = g_[i];
      if (decay != 0) direction += decay * p_[i];
      if (o_.momentum != 0) {
        m_[i] = momentum * m_[i] + direction;
        direction = o_.nesterov ? direction + momentum * m_[i] : m_[i];
      }
      p_[i] -= lr * direction;
    });
    store(dtype_, p_, count_);
    store(dtype_, m_, count_);
  }

  void adam_loop() {
    if (o_.algorithm != "adamw") {
      add_decay();
    } else if (o_.weight_decay != 0) {
      const T keep = cast(1 - o_.lr * o_.weight_decay);
      for_each_stored(p_, [&](std::int64_t i) { return p_[i] * keep; });
    }
    const double weight = 1 - o_.beta1;
    const T w = cast(weight);
    for_each_stored(m_, [&](std::int64_t i) {
      return weight < 0.5 ? m_[i] + w * (g_[i] - m_[i]) : g_[i] - (g_[i] - m_[i]) * (1 - w);
    });
    const T beta2 = cast(o_.beta2), w2 = cast(1 - o_.beta2), correction = cast(factors_.correction);
    const T eps = cast(o_.eps), rate = cast(-factors_.step_size);
    for_each_stored(v_, [&](std::int64_t i) { return v_[i] * beta2; });
    for_each_stored(v_, [&](std::int64_t i) { return v_[i] + w2 * g_[i] * g_[i]; });
    for_each_stored(d_, [&](std::int64_t i) { return std::sqrt(v_[i]); });
    for_each_stored(d_, [&](std::int64_t i) { return d_[i] / correction; });
    for_each_stored(d_, [&](std::int64_t i) { return d_[i] + eps; });
    judge_denominators();
    for_each_stored(p_, [&](std::int64_t i) { return p_[i] + rate * m_[i] / d_[i]; });
  }

  void adam_fused() {
    const bool decoupled = o_.algorithm == "adamw";
    const T step_size = cast(factors_.step_size), correction = cast(factors_.correction);
    const T decay = cast(decoupled ? 1 - o_.lr * o_.weight_decay : o_.weight_decay);
    const T eps = cast(o_.eps), beta2 = cast(o_.beta2), w1 = cast(1 - o_.beta1), w2 = cast(1 - o_.beta2);
    each([&](std::int64_t i) {
      const T weight = decoupled ? p_[i] * decay : p_[i];
      const T slope = !decoupled && decay != 0 ? g_[i] + decay * weight : g_[i];
      m_[i] += w1 * (slope - m_[i]);
      v_[i] = beta2 * v_[i] + w2 * slope * slope;
      d_[i] = std::sqrt(v_[i]) / correction + eps;
      p_[i] = weight - step_size * m_[i] / d_[i];
    });
    judge_denominators();
    store(dtype_, p_, count_);
    store(dtype_, m_, count_);
    store(dtype_, v_, count_);
  }

  void note(std::int64_t i) {
    const std::int64_t at = start_ + i;
    if (audit_.first_index < 0 || at < audit_.first_index) audit_.first_index = at;
  }

  void judge_denominators() {
    each([&](std::int64_t i) {
      if (d_[i] != 0 && std::isfinite(d_[i])) return;
      ++(!std::isfinite(d_[i]) ? audit_.bad_denominators : m_[i] == 0 ? audit_.zero_over_zero : audit_.x_over_zero);
      note(i);
    });
  }

  void remember() {
    PreAuditMemory& memory = audit_.memory;
    const double most = balance(o_) * 1.0001;
    each([&](std::int64_t i) {
      const double m = std::fabs(static_cast<double>(m_[i])), p = std::fabs(static_cast<double>(p_[i]));
      // Never back to a number from NaN.
      if (!(m <= memory.first)) memory.first = std::isnan(memory.first) ? kNaN : m;
      if (!(p <= memory.param)) memory.param = std::isnan(memory.param) ? kNaN : p;
      if (!(m <= most * std::sqrt(static_cast<double>(v_[i])) + kSquareLost)) memory.balanced = false;
    });
  }

  void judge() {
    remember();
    if (in_.copied_to) store(*in_.copied_to, p_, count_);
    each([&](std::int64_t i) {
      const bool bad_update = !std::isfinite(p_[i]);
      const bool bad_state = !std::isfinite(m_[i]) || !std::isfinite(v_[i]);
      audit_.bad_updates += bad_update;
      audit_.bad_state += bad_state;
      if (bad_update || bad_state) note(i);
    });
  }

  const PreAuditOptions& o_;
  const PreAuditInput& in_;
  Factors factors_;
  DType dtype_;  // of parameter and state
  Elements<T> grad_, param_, first_, second_;
  std::int64_t start_ = 0, count_ = 0;
  alignas(64) T g_[kChunk], p_[kChunk], m_[kChunk], v_[kChunk], d_[kChunk];
  PreAudit audit_;
};

bool can_audit(const PreAuditOptions& o, const PreAuditInput& in) {
  const bool is_sgd = o.algorithm == "sgd";
  if (!is_sgd && o.algorithm != "adam" && o.algorithm != "adamw") return false;
  if (!has_data(in.grad) || in.grad.sizes.size() != in.grad.strides.size() || !is_computed(in.grad.dtype)) return false;
  if (!is_computed(in.param.dtype) || (in.copied_to && !is_computed(*in.copied_to))) return false;
  for (const TensorView* view : {&in.param, &in.first, &in.second}) {
    if (!has_data(*view)) continue;
    const bool alike = std::equal(view->sizes.begin(), view->sizes.end(), in.grad.sizes.begin(), in.grad.sizes.end());
    if (!alike || view->strides.size() != view->sizes.size() || view->dtype != in.param.dtype) return false;
  }
  return is_sgd ? o.momentum == 0 || has_data(in.first) : has_data(in.first) && has_data(in.second);
}

}  // namespace

std::optional<PreAudit> prove_safe(const PreAuditOptions& options, const PreAuditInput& input) {
  PreAudit audit;
  if (!can_audit(options, input) || is_safe(options, input, audit.memory)) return audit;
  return std::nullopt;
}

PreAudit pre_audit(const PreAuditOptions& options, const PreAuditInput& input) {
  if (const std::optional<PreAudit> proved = prove_safe(options, input)) return *proved;
  return input.param.dtype == DType::kF64 ? Simulation<double>(options, input).run()
                                          : Simulation<float>(options, input).run();
}

}  // namespace nanhunt::hunt
