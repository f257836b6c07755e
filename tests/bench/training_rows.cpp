// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/training_rows.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace nanhunt::bench {
namespace {

constexpr std::int64_t kBatch = 64;
constexpr std::array<std::pair<std::int64_t, std::int64_t>, 3> kLayers = {{{64, 256}, {256, 128}, {128, 10}}};
constexpr std::uint32_t kOverflowEvery = 97;

}  // namespace

TrainingRows::TrainingRows(std::uint64_t seed, bool marks) : random_(seed), marks_(marks) {
  build();
  for (Variable& v : variables_) {
    // Parameters and optimizer state live from the start; all else is allocated when it is made.
    v.storage = next_storage_++;
  }
}

StringId TrainingRows::text(const std::string& content) {
  if (content.empty()) return 0;
  const auto [at, fresh] = texts_.emplace(content, static_cast<StringId>(texts_.size() + 1));
  if (fresh) tables_.strings.push_back({at->second, content});
  return at->second;
}

std::size_t TrainingRows::variable(const std::string& name, DType dtype, std::int64_t rows, std::int64_t columns,
                                   double log2_scale, double zero_share, bool from_zero) {
  Variable v;
  v.name = name;
  v.dtype = dtype;
  v.numel = rows * columns;
  v.log2_scale = log2_scale;
  v.zero_share = zero_share;
  v.from_zero = from_zero;
  LayoutRecord layout{0, dtype, {rows, columns}, {columns, 1}};
  for (const LayoutRecord& known : tables_.layouts) {
    if (known.dtype == dtype && known.sizes == layout.sizes) v.layout = known.id;
  }
  if (v.layout == 0) {
    v.layout = layout.id = static_cast<LayoutId>(tables_.layouts.size() + 1);
    tables_.layouts.push_back(layout);
  }
  by_name_[name] = variables_.size();
  variables_.push_back(v);
  return variables_.size() - 1;
}

// An input written "saved:x", "old:x" or "index:x" has that role.
void TrainingRows::op(Phase phase, const std::string& module, const std::string& name,
                      const std::vector<std::string>& inputs, const std::string& output,
                      std::vector<ScalarArg> scalars) {
  static const std::array<std::string, 4> kSlots = {"self", "other", "mat1", "mat2"};
  Op made;
  made.phase = phase;
  made.module = text(module);
  made.name = text(name);
  made.call_site = text("train.cpp:" + std::to_string(40 + ops_.size() % 23));
  made.output = by_name_.at(output);
  made.measures_flush = name.starts_with("mul") || name.starts_with("div") || name.starts_with("addc");
  made.scalars = std::move(scalars);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Argument argument;
    std::string source = inputs[i];
    if (const auto colon = source.find(':'); colon != std::string::npos) {
      const std::string role = source.substr(0, colon);
      argument.role = role == "saved" ? ArgRole::kSaved : role == "index" ? ArgRole::kIndex : ArgRole::kOverwritten;
      source = source.substr(colon + 1);
      made.in_place = made.in_place || argument.role == ArgRole::kOverwritten;
    }
    argument.variable = by_name_.at(source);
    argument.slot = text(kSlots[i]);
    made.inputs.push_back(argument);
  }
  ops_.push_back(std::move(made));
}

void TrainingRows::build() {
  const auto f16 = DType::kF16, f32 = DType::kF32;
  variable("images", f32, kBatch, 64, 2, 0.48, true);
  variable("labels", DType::kI64, kBatch, 1, 2, 0.1, true);
  variable("x0", f16, kBatch, 64, 2, 0.48, true);
  for (std::size_t i = 0; i < kLayers.size(); ++i) {
    const auto [in, out] = kLayers[i];
    const std::string n = std::to_string(i + 1);
    for (const auto& [suffix, rows, columns] :
         {std::tuple{".weight", out, in}, std::tuple{".bias", std::int64_t{1}, out}}) {
      const std::string p = "fc" + n + suffix;
      variable(p, f32, rows, columns, -4);
      variable(p + ".half", f16, rows, columns, -4);
      variable(p + ".grad16", f16, rows, columns, 2, 0.02);
      variable(p + ".grad", f32, rows, columns, -8, 0.02);
      variable(p + ".m", f32, rows, columns, -9);
      variable(p + ".v", f32, rows, columns, -18, 0, true);
      variable(p + ".root", f32, rows, columns, -9, 0, true);
      variable(p + ".denom", f32, rows, columns, -9, 0, true);
    }
    variable("z" + n, f16, kBatch, out, 0);
    variable("x" + n, f16, kBatch, out, 0, 0.5, true);
    variable("z" + n + ".grad", f16, kBatch, out, -2, 0.3);
    variable("x" + n + ".grad", f16, kBatch, out, -2, 0.05);
  }
  for (const char* name : {"logits", "logp", "logits.grad", "logp.grad"}) variable(name, f32, kBatch, 10, 1);
  for (const char* name : {"loss", "scaled", "loss.grad"}) variable(name, f32, 1, 1, 1);

  using enum Phase;
  op(kForward, "", "to", {"images"}, "x0");
  std::string input = "x0";
  for (int i = 1; i <= 3; ++i) {
    const std::string n = std::to_string(i), fc = "fc" + n;
    op(kForward, fc, "addmm", {fc + ".bias.half", input, fc + ".weight.half"}, "z" + n,
       {{text("beta"), 1}, {text("alpha"), 1}});
    if (i < 3) op(kForward, "relu" + n, "relu", {"z" + n}, "x" + n);
    input = "x" + n;
  }
  op(kLoss, "<loss>", "to", {"z3"}, "logits");
  op(kLoss, "<loss>", "log_softmax", {"logits"}, "logp");
  op(kLoss, "<loss>", "nll_loss", {"logp", "index:labels"}, "loss");
  op(kScale, "<loss>", "mul", {"loss"}, "scaled", {{text("other"), 65536}});
  op(kBackward, "<loss>", "mul_backward", {"scaled"}, "loss.grad", {{text("other"), 65536}});
  op(kBackward, "<loss>", "nll_loss_backward", {"loss.grad", "index:labels"}, "logp.grad");
  op(kBackward, "<loss>", "log_softmax_backward", {"logp.grad", "saved:logp"}, "logits.grad");
  op(kBackward, "<loss>", "to_backward", {"logits.grad"}, "z3.grad");
  for (int i = 3; i >= 1; --i) {
    const std::string n = std::to_string(i), before = std::to_string(i - 1), fc = "fc" + n;
    op(kBackward, fc, "addmm_backward", {"z" + n + ".grad", "saved:x" + before}, fc + ".weight.grad16");
    op(kBackward, fc, "addmm_backward", {"z" + n + ".grad"}, fc + ".bias.grad16");
    if (i == 1) continue;
    op(kBackward, fc, "addmm_backward", {"z" + n + ".grad", "saved:" + fc + ".weight.half"}, "x" + before + ".grad");
    op(kBackward, "relu" + before, "relu_backward", {"x" + before + ".grad", "saved:z" + before},
       "z" + before + ".grad");
  }
  for (int i = 1; i <= 3; ++i) {
    for (const char* suffix : {".weight", ".bias"}) {
      const std::string p = "fc" + std::to_string(i) + suffix;
      op(kUnscale, p, "mul", {p + ".grad16"}, p + ".grad", {{text("inv_scale"), 1.0 / 65536}});
      op(kOptimizer, p, "lerp_", {"old:" + p + ".m", p + ".grad"}, p + ".m", {{text("weight"), 0.1}});
      op(kOptimizer, p, "addcmul_", {"old:" + p + ".v", p + ".grad", p + ".grad"}, p + ".v",
         {{text("beta2"), 0.999}, {text("value"), 0.001}});
      op(kOptimizer, p, "sqrt", {p + ".v"}, p + ".root");
      op(kOptimizer, p, "add", {p + ".root"}, p + ".denom", {{text("eps"), 1e-8}});
      op(kOptimizer, p, "addcdiv_", {"old:" + p, p + ".m", p + ".denom"}, p, {{text("value"), -1e-3}});
    }
  }
}

TensorStats TrainingRows::stats(const Variable& of, bool overflowed) {
  TensorStats s;
  s.level = StatsLevel::kSums;
  s.numel = of.numel;
  const auto n = static_cast<double>(of.numel);
  const double scale = std::exp2(of.log2_scale + 0.1 * normal());
  const double reach = std::sqrt(2 * std::log(n + 1));
  s.max = round_to(of.dtype, scale * (reach + 0.3 * std::abs(normal())));
  s.min = of.from_zero ? 0 : round_to(of.dtype, -scale * (reach + 0.3 * std::abs(normal())));
  const double share = std::uniform_real_distribution<>(0.01, 1)(random_);
  const double floor = is_floating(of.dtype) ? format_limits(of.dtype).min_subnormal : 1;
  s.amin_nonzero = std::min(round_to(of.dtype, std::max(scale * share / n, floor)), s.max);
  s.amax = std::max(std::abs(s.min), std::abs(s.max));
  if (of.zero_share > 0 && of.numel > 1) {
    const double zeros = n * of.zero_share + std::sqrt(n * of.zero_share * (1 - of.zero_share)) * normal();
    s.zero = static_cast<std::int64_t>(std::clamp(zeros, 0.0, n - 1));
  }
  if (of.dtype == DType::kF16 && s.amin_nonzero < format_limits(DType::kF16).min_normal) {
    s.subnormal = static_cast<std::int64_t>(1 + std::abs(normal()) * n * 0.01);
  }
  s.sum = n * scale * (of.from_zero ? 0.4 + 0.01 * normal() : normal() / std::sqrt(n));
  s.sum_sq = n * scale * scale * (1 + normal() * std::sqrt(2 / n));
  if (of.dtype == DType::kF16) {  // every element is a multiple of 2^-24, so its square is one of 2^-48
    s.sum = std::ldexp(std::round(std::ldexp(s.sum, 24)), -24);
    s.sum_sq = std::ldexp(std::round(std::ldexp(s.sum_sq, 48)), -48);
  }
  if (overflowed) {
    s.any_nonfinite = true;
    s.pos_inf = 1 + static_cast<std::int64_t>(std::abs(normal()) * 5);
    s.neg_inf = static_cast<std::int64_t>(std::abs(normal()) * 5);
    s.first_nonfinite = static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(of.numel));
  }
  return s;
}

void TrainingRows::new_value(RecordBatch& batch, Variable& made, bool in_place, std::uint64_t producer,
                             bool measures_flush) {
  if (in_place) {
    ++made.version;
  } else {
    if (marks_ && made.value != 0) batch.ends_of_life.push_back({made.storage, seq_});
    made.storage = next_storage_++;
    made.version = 0;
  }
  made.value = next_value_++;
  made.log2_scale += 0.005 * normal();
  ValueRecord row;
  row.id = made.value;
  row.storage = made.storage;
  row.version = made.version;
  row.layout = made.layout;
  row.producer = producer;
  row.has_stats = true;
  const bool overflowed = step_ % kOverflowEvery == kOverflowEvery - 1 && made.name.ends_with("grad16");
  row.stats = stats(made, overflowed);
  if (measures_flush) {
    row.flushed = made.dtype == DType::kF16 ? static_cast<std::int64_t>(std::abs(normal()) * 3) : 0;
  }
  batch.values.push_back(row);
}

void TrainingRows::begin_step(RecordBatch& batch) {
  for (const char* name : {"images", "labels"}) {
    Variable& v = variables_[by_name_.at(name)];
    new_value(batch, v, /*in_place=*/false, kNoSeq, /*measures_flush=*/false);
    if (marks_) {
      const TensorRole kind = v.name == "images" ? TensorRole::kBatch : TensorRole::kLabel;
      batch.marks.push_back({seq_, step_, 0, kind, text(v.name), v.value});
    }
  }
  if (!marks_) return;
  SampleIdsRecord samples{step_, 0, {}};
  for (std::int64_t i = 0; i < kBatch; ++i) samples.sample_ids.push_back(static_cast<std::int64_t>(random_() % 1797));
  batch.sample_ids.push_back(std::move(samples));
}

void TrainingRows::end_step(RecordBatch& batch) {
  if (marks_) {
    for (const Variable& v : variables_) {
      const bool state = v.name.ends_with(".m") || v.name.ends_with(".v");
      const bool parameter = v.name.ends_with(".weight") || v.name.ends_with(".bias");
      if (!state && !parameter && !v.name.ends_with("t.grad") && !v.name.ends_with("s.grad")) continue;
      const TensorRole kind = state ? TensorRole::kState : parameter ? TensorRole::kParameter : TensorRole::kBoundaryGradient;
      batch.marks.push_back({seq_, step_, 0, kind, text(v.name), v.value});
    }
    batch.steps.push_back({step_, false, std::exp2(normal()), 1e-3, 65536, seq_,
                           1000000 + static_cast<std::int64_t>(random_() % 100000)});
  }
  ++step_;
}

RecordBatch TrainingRows::next(std::size_t ops) {
  RecordBatch batch;
  for (std::size_t done = 0; done < ops; ++done) {
    if (at_op_ == 0) begin_step(batch);
    const Op& source = ops_[at_op_];
    Variable& output = variables_[source.output];
    OpRecord row;
    row.seq = seq_++;
    row.step = step_;
    row.phase = source.phase;
    row.module = source.module;
    row.op = source.name;
    row.call_site = source.call_site;
    row.first_input = static_cast<std::uint32_t>(batch.inputs.size());
    row.input_count = static_cast<std::uint32_t>(source.inputs.size());
    for (const Argument& input : source.inputs) {
      batch.inputs.push_back({variables_[input.variable].value, input.slot, input.role});
    }
    row.first_scalar = static_cast<std::uint32_t>(batch.scalars.size());
    row.scalar_count = static_cast<std::uint32_t>(source.scalars.size());
    batch.scalars.insert(batch.scalars.end(), source.scalars.begin(), source.scalars.end());
    new_value(batch, output, source.in_place, row.seq, source.measures_flush);
    row.first_output = static_cast<std::uint32_t>(batch.outputs.size());
    row.output_count = 1;
    batch.outputs.push_back({output.value, 0, ArgRole::kRead});
    batch.ops.push_back(row);
    if (++at_op_ == ops_.size()) {
      at_op_ = 0;
      end_step(batch);
    }
  }
  batch.strings = std::exchange(tables_.strings, {});
  batch.layouts = std::exchange(tables_.layouts, {});
  return batch;
}

}  // namespace nanhunt::bench
