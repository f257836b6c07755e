// SPDX-License-Identifier: Apache-2.0
#include "src/hunt/counterfactual.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "nanhunt/tensor_stats.h"

namespace nanhunt::hunt {
namespace {

using Results = std::vector<std::optional<Array>>;

TensorStats stats_of(const Array& array, StatsLevel level) {
  std::vector<std::int64_t> strides(array.sizes.size(), 1);
  for (std::size_t i = strides.size(); i-- > 1;) strides[i - 1] = strides[i] * array.sizes[i];
  return compute_stats({array.bytes.data(), array.dtype, array.sizes, strides}, level);
}

// Sums that a device took were added in another order: kernels/CONTRACTS.md bounds what that changes.
bool same_stats(TensorStats a, const TensorStats& b) {
  constexpr double kOrder = 1e-13;
  const double most = kOrder * static_cast<double>(a.numel) * a.amax;
  const auto near = [](double x, double y, double apart) { return x == y || std::fabs(x - y) <= apart; };
  if (!near(a.sum, b.sum, most) || !near(a.sum_sq, b.sum_sq, most * a.amax)) return false;
  a.sum = b.sum;
  a.sum_sq = b.sum_sq;
  return a == b;
}

bool same_numbers(const PlannedValue& planned, const Array& array) {
  return array.dtype == planned.dtype && array.sizes == planned.sizes && planned.has_stats &&
         same_stats(stats_of(array, planned.stats.level), planned.stats);
}

// Bit for bit, but for which NaN it is.
bool equal(const Array& a, const Array& b) {
  if (a.dtype != b.dtype || a.bytes.size() != b.bytes.size()) return false;
  if (a.bytes == b.bytes) return true;
  const std::size_t size = dtype_size(a.dtype);
  for (std::size_t at = 0; at < a.bytes.size(); at += size) {
    if (std::memcmp(&a.bytes[at], &b.bytes[at], size) == 0) continue;
    if (!std::isnan(load_as_f64(a.dtype, &a.bytes[at])) || !std::isnan(load_as_f64(b.dtype, &b.bytes[at])))
      return false;
  }
  return true;
}

class Prober {
 public:
  Prober(const OriginPlan& plan, const Reenactment& seen, OpRunner& runner)
      : plan_(plan), seen_(seen), runner_(runner) {}

  std::vector<ProbeRecord> run(std::vector<std::string>& texts) {
    same(texts);
    if (probes_.back().ran && bad(probes_.back())) wider(texts);
    return std::move(probes_);
  }

 private:
  static bool bad(const ProbeRecord& probe) { return probe.nan + probe.pos_inf + probe.neg_inf > 0; }

  const PlannedOp& origin() const { return plan_.ops[0]; }
  const PlannedValue& bad_output() const { return origin().outputs[plan_.bad_output]; }

  void add(std::vector<std::string>& texts, ProbeMode mode, DType dtype, std::uint32_t ops, const Array* out,
           std::string text) {
    ProbeRecord probe;
    probe.seq = origin().seq;
    probe.step = plan_.step;
    probe.mode = mode;
    probe.dtype = dtype;
    probe.ops = ops;
    probe.ran = out != nullptr;
    probe.flat_index = plan_.flat_index;
    if (out != nullptr) {
      const TensorStats stats = stats_of(*out, StatsLevel::kCounts);
      probe.nan = stats.nan;
      probe.pos_inf = stats.pos_inf;
      probe.neg_inf = stats.neg_inf;
      if (probe.flat_index >= 0 && probe.flat_index < out->numel()) probe.number = out->at(probe.flat_index);
    }
    probes_.push_back(probe);
    texts.push_back(std::move(text));
  }

  // Did the replay meet the origin with the same numbers, and does the op alone do it again?
  void same(std::vector<std::string>& texts) {
    const DType dtype = bad_output().dtype;
    const auto refuse = [&](std::string why) { add(texts, ProbeMode::kSame, dtype, 1, nullptr, std::move(why)); };
    if (seen_.ops.empty() || !seen_.ops[0].seen) return refuse("The replay did not come to this op again.");
    const CapturedOp& captured = seen_.ops[0];
    for (std::size_t i = 0; i < origin().inputs.size(); ++i) {
      const PlannedValue& planned = origin().inputs[i];
      if (!planned.has_stats)
        return refuse("The contents of " + planned.slot + " were not read in the run, so they cannot be compared.");
      if (!captured.inputs[i]) return refuse("The contents of " + planned.slot + " were gone when the op had run.");
      if (!same_numbers(planned, *captured.inputs[i]))
        return refuse("The replay came to this op with another " + planned.slot + " than the run.");
    }
    if (!captured.outputs[plan_.bad_output]) return refuse("The result of the op was gone when it had run.");
    const Array& replayed = *captured.outputs[plan_.bad_output];
    if (!same_numbers(bad_output(), replayed)) {
      if (replayed.sizes == bad_output().sizes && !stats_of(replayed, StatsLevel::kFinite).any_nonfinite)
        return add(texts, ProbeMode::kSame, dtype, 1, &replayed,
                   "The replay gave the op the same inputs, and its result was finite.");
      return refuse("From the same inputs the replay got other numbers, which are not finite either.");
    }
    std::string why;
    const auto again = compute(0, captured, std::nullopt, why);
    if (!again) return refuse(why);
    if (!equal(*again, replayed))
      return refuse("Computed apart from the run, the op gave other bits: nothing is concluded.");
    add(texts, ProbeMode::kSame, dtype, 1, &*again, "");
  }

  void wider(std::vector<std::string>& texts) {
    std::size_t slice = 0;  // ops of the shortest slice found finite so far
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      if (dtype_size(dtype) <= dtype_size(bad_output().dtype)) continue;
      std::string why;
      const auto alone = compute(0, seen_.ops[0], dtype, why);
      add(texts, ProbeMode::kWider, dtype, 1, alone ? &*alone : nullptr, why);
      if (alone && bad(probes_.back())) slice = probe_slice(texts, dtype, slice);
    }
  }

  // Tries longer and longer slices until one is finite; 0: none was.
  std::size_t probe_slice(std::vector<std::string>& texts, DType dtype, std::size_t known) {
    std::optional<Array> last;
    std::size_t ops = 0;
    for (std::size_t n = std::max<std::size_t>(known, 2); n <= plan_.ops.size(); ++n) {
      auto result = compute_slice(n, dtype);
      if (!result) break;
      last = std::move(result);
      ops = n;
      if (!stats_of(*last, StatsLevel::kFinite).any_nonfinite) break;
    }
    if (!last) return 0;
    const OpPosition& from = plan_.ops[ops - 1].at;
    add(texts, ProbeMode::kWider, dtype, static_cast<std::uint32_t>(ops), &*last,
        "from " + from.op + (from.module.empty() ? "" : " in " + from.module) + " on");
    return bad(probes_.back()) ? 0 : ops;
  }

  // The first n ops of the plan, in the order in which they ran.
  std::optional<Array> compute_slice(std::size_t n, DType dtype) {
    std::vector<std::size_t> order(n);
    for (std::size_t i = 0; i < n; ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return plan_.ops[a].seq < plan_.ops[b].seq; });
    std::vector<Results> results(n);
    for (const std::size_t at : order) {
      const PlannedOp& op = plan_.ops[at];
      if (!seen_.ops[at].seen) return std::nullopt;
      CapturedOp inputs{true, seen_.ops[at].inputs, {}};
      for (std::size_t i = 0; i < op.inputs.size(); ++i) {
        const PlannedValue& input = op.inputs[i];
        if (input.producer < 0 || static_cast<std::size_t>(input.producer) >= n) continue;
        inputs.inputs[i] = results[static_cast<std::size_t>(input.producer)].at(input.output);
      }
      std::string why;
      auto out = compute_all(at, inputs, dtype, why);
      if (!out) return std::nullopt;
      results[at] = std::move(*out);
    }
    return results[0].at(plan_.bad_output);
  }

  std::optional<Array> compute(std::size_t index, const CapturedOp& inputs, std::optional<DType> dtype,
                               std::string& why) {
    auto all = compute_all(index, inputs, dtype, why);
    if (!all) return std::nullopt;
    if (!all->at(plan_.bad_output)) why = "The result that was bad cannot be computed apart from the run.";
    return std::move(all->at(plan_.bad_output));
  }

  std::optional<Results> compute_all(std::size_t index, const CapturedOp& captured, std::optional<DType> dtype,
                                     std::string& why) {
    const PlannedOp& op = plan_.ops[index];
    std::vector<Array> arrays;
    for (const auto& input : captured.inputs) {
      if (!input) {
        why = "An input of " + op.at.op + " was gone.";
        return std::nullopt;
      }
      arrays.push_back(dtype ? converted(*input, *dtype) : *input);
    }
    RunnerCall call;
    call.op = op.at.op;
    call.arithmetic = dtype.value_or(op.arithmetic);
    for (std::size_t i = 0; i < arrays.size(); ++i) call.inputs.push_back({op.inputs[i].slot, &arrays[i]});
    for (const auto& [name, value] : op.scalars) call.scalars.emplace_back(name, value);
    for (const PlannedValue& out : op.outputs)
      call.outputs.push_back({out.slot, dtype && is_floating(out.dtype) ? *dtype : out.dtype, out.sizes});
    auto results = runner_.run(call);
    if (results) return std::move(*results);
    why = results.status().message();
    return std::nullopt;
  }

  const OriginPlan& plan_;
  const Reenactment& seen_;
  OpRunner& runner_;
  std::vector<ProbeRecord> probes_;
};

std::uint64_t bytes_of(const PlannedValue& value) {
  double n = static_cast<double>(dtype_size(value.dtype));
  for (const std::int64_t size : value.sizes) n *= static_cast<double>(std::max<std::int64_t>(size, 0));
  return n > 1e18 ? std::uint64_t{1} << 60 : static_cast<std::uint64_t>(n);
}

}  // namespace

Array converted(const Array& array, DType dtype) {
  if (array.dtype == dtype || !is_floating(array.dtype)) return array;
  Array out{dtype, array.sizes, array.order, {}};
  const std::size_t from = dtype_size(array.dtype), to = dtype_size(dtype);
  const std::size_t n = array.bytes.size() / from;
  out.bytes.resize(n * to);
  for (std::size_t i = 0; i < n; ++i)
    store_from_f64(dtype, &out.bytes[i * to], load_as_f64(array.dtype, &array.bytes[i * from]));
  return out;
}

void limit_plan(OriginPlan& plan, std::uint64_t max_bytes) {
  std::uint64_t total = 0;
  std::size_t kept = 0;
  for (; kept < plan.ops.size(); ++kept) {
    for (const PlannedValue& input : plan.ops[kept].inputs) total += bytes_of(input);
    if (total > max_bytes) break;
  }
  plan.ops.resize(kept);
  for (PlannedOp& op : plan.ops) {
    for (PlannedValue& input : op.inputs) {
      if (input.producer >= static_cast<int>(kept)) input.producer = -1;
    }
  }
}

std::vector<ProbeRecord> probe_origin(const OriginPlan& plan, const Reenactment& seen, OpRunner& runner,
                                      Recorder& recorder) {
  if (plan.ops.empty()) return {};
  std::vector<std::string> texts;
  std::vector<ProbeRecord> probes = Prober(plan, seen, runner).run(texts);
  for (std::size_t i = 0; i < probes.size(); ++i) {
    const ProbeRecord& p = probes[i];
    recorder.on_probe(
        {p.seq, p.step, p.mode, p.dtype, p.ops, p.ran, p.nan, p.pos_inf, p.neg_inf, p.flat_index, p.number, texts[i]});
  }
  return probes;
}

}  // namespace nanhunt::hunt
