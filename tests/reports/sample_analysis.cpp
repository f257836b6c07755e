// SPDX-License-Identifier: Apache-2.0
#include "tests/reports/sample_analysis.h"

#include <cmath>
#include <limits>

namespace nanhunt::testing_reports {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TensorSummary make_tensor(std::string role, std::string slot, std::string name, std::vector<std::int64_t> shape) {
  TensorSummary t;
  t.role = std::move(role);
  t.slot = std::move(slot);
  t.name = std::move(name);
  t.dtype = DType::kF16;
  t.shape = std::move(shape);
  t.has_stats = true;
  t.stats.level = StatsLevel::kSums;
  t.stats.numel = 1;
  for (const std::int64_t size : t.shape) t.stats.numel *= size;
  return t;
}

RankSummary make_rank() {
  RankSummary rank;
  rank.info.command = {"nanhunt", "train", "adam-eps", "-o", "run"};
  rank.info.nanhunt_version = "0.1.0";
  rank.info.framework = "nanhunt-engine";
  rank.info.device = "cpu";
  rank.info.level = "ops";
  rank.info.scenario = "adam-eps";
  rank.info.dtypes = {"fp16"};
  rank.info.options = {{"seed", "1"}, {"steps", "40"}};
  rank.info.packages = {{"torch", "2.13.0"}, {"numpy", "2.3.4"}};
  rank.info.commit = "0123456789abcdef0123456789abcdef01234567";
  rank.info.tree = "changed";
  rank.info.started = "2026-01-02T03:04:05Z";
  rank.info.host = "machine";
  rank.info.pid = 4242;
  rank.health.clean_end = true;
  rank.health.segments = 1;
  rank.health.chunks = 14;
  rank.health.rows = 5210;
  rank.health.bytes = 190'123;
  return rank;
}

Finding make_eps_finding() {
  Finding f;
  f.id = "F1";
  f.cls = FindingClass::kEpsUnderflow;
  f.severity = Severity::kFault;
  f.confidence = Confidence::kProved;
  f.place = {0, 0, Phase::kOptimizer, "fc1.weight", "addcdiv_", 214};
  f.call_site = "adam.py:88";
  f.module_class = "Linear";
  f.frames = {{"/data/me/my project/adam.py", 88, "Adam.step", 87, {"for p in group:", "\tp.addcdiv_(m, v.sqrt() + eps)"}},
              {"/data/me/train.py", 12, "<module>", 12, {"optimizer.step()"}}};
  f.related = {{FindingClass::kUnderflow, Severity::kWarning, f.place, f.call_site, "v is 0 where the gradient is not"}};
  f.occurrence_count = 6;
  f.last_step = 5;
  f.bad_steps = {.count = 40, .anew = 6, .unwatched = 0, .first = 0, .last = 39};
  f.title = "addcdiv_ divided 0 by 0 in fc1.weight: eps 1e-8 is 0 in fp16";
  f.explanation =
      "Adam adds eps = 1e-8 to the square root of v, but the smallest fp16 number is 5.96e-8, so eps rounds to 0. "
      "Weights that have no gradient have m = 0 and v = 0: their update is 0 / 0, which is NaN.";
  f.lifecycle = Lifecycle::kAppear;
  f.bad_elements = 1984;
  TensorSummary m = make_tensor("input", "tensor1", "fc1.weight.exp_avg", {128, 64});
  m.stats.zero = 1984;
  m.stats.subnormal = 301;
  m.stats.amax = 0.0021;
  m.stats.amin_nonzero = 5.960464477539063e-08;
  m.stats.min = -0.0019;
  m.stats.max = 0.0021;
  TensorSummary denom = make_tensor("input", "tensor2", "", {128, 64});
  denom.index = 1;
  denom.stats.zero = 1984;
  denom.stats.amax = 0.0148;
  denom.stats.amin_nonzero = 0.000244140625;
  denom.stats.max = 0.0148;
  denom.flushed = 17;
  TensorSummary old_value = make_tensor("input", "self", "fc1.weight", {128, 64});
  old_value.index = 2;
  old_value.arg_role = ArgRole::kOverwritten;
  old_value.has_stats = false;
  f.inputs = {m, denom, old_value};
  TensorSummary out = make_tensor("output", "out", "fc1.weight", {128, 64});
  out.stats.any_nonfinite = true;
  out.stats.first_nonfinite = 0;
  out.stats.nan = 1984;
  out.stats.amax = 0.125;
  out.stats.amin_nonzero = 0.0000152587890625;
  out.stats.min = -0.125;
  out.stats.max = 0.1248;
  f.output = out;
  f.tensor = out;
  ElementEvidence element;
  element.flat_index = 0;
  element.coords = {0, 0};
  element.value = kNaN;
  element.operands = {{"tensor1", "fc1.weight.exp_avg", 0}, {"tensor2", "", 0}};
  f.element = element;
  f.evidence = {"eps is 1e-8; in fp16 it becomes 0.", "1,984 of 8,192 denominators were 0 after eps was added.",
                "In every one of them the numerator was 0 too: 0 / 0 is NaN."};
  f.first_nan = f.place;
  f.sinks = {"parameter fc1.weight", "parameter fc1.bias", "loss"};
  f.also = {"fc2.weight", "fc2.bias"};

  const auto node = [](std::uint64_t seq, std::uint32_t step, Phase phase, std::string module, std::string op,
                       Lifecycle lifecycle, std::int64_t nan, std::int64_t numel, std::string role) {
    ChainNode n;
    n.seq = seq;
    n.step = step;
    n.phase = phase;
    n.module = std::move(module);
    n.op = std::move(op);
    n.lifecycle = lifecycle;
    n.nan = nan;
    n.numel = numel;
    n.role = std::move(role);
    return n;
  };
  f.chain.nodes = {
      node(214, 0, Phase::kOptimizer, "fc1.weight", "addcdiv_", Lifecycle::kAppear, 1984, 8192, "origin"),
      node(kNoSeq, 0, Phase::kOptimizer, "fc1.weight", "<parameter>", Lifecycle::kPropagate, 1984, 8192, "sink"),
      node(301, 1, Phase::kForward, "fc1", "addmm", Lifecycle::kPropagate, 4096, 4096, "carrier"),
      node(302, 1, Phase::kForward, "act1", "relu", Lifecycle::kPropagate, 4096, 4096, "carrier"),
      node(303, 1, Phase::kForward, "fc2", "addmm", Lifecycle::kPropagate, 320, 320, "carrier"),
      node(304, 1, Phase::kLoss, "<loss>", "cross_entropy", Lifecycle::kPropagate, 1, 1, "carrier"),
      node(kNoSeq, 1, Phase::kLoss, "loss", "<loss>", Lifecycle::kPropagate, 1, 1, "sink"),
  };
  for (int i = 0; i + 1 < 7; ++i) f.chain.edges.push_back({i, i + 1});
  f.advice = {
      {"fp32-masters", "Keep fp32 master weights and optimizer state.", "eps 1e-8 is a normal number in fp32.", true,
       "The failing step and 50 further steps stayed finite; loss 2.30 → 0.41; updates within 1.02 × of fp64."},
      {"bf16", "Train in bf16.", "Its smallest number is far below eps.", std::nullopt, ""},
      {"raise-eps", "Raise Adam's eps to 1e-4.", "It no longer rounds to 0.", false,
       "The run stayed finite, but its updates were 54 times those of an fp64 optimizer."}};
  return f;
}

}  // namespace

Analysis make_fault_analysis() {
  Analysis a;
  a.ranks = {make_rank()};
  a.coverage = {40,
                5210,
                6100,
                0,
                0,
                true,
                {"Kernels inside BLAS calls were watched only by their inputs and outputs."},
                {},
                {"split-K reduction in fp16", "TF32 input rounding"}};
  a.verdict = {VerdictStatus::kFault,
               "In step 0 the optimizer's addcdiv_ turned fc1.weight into NaN, because eps 1e-8 is 0 in fp16.", "F1"};
  Finding second;
  second.id = "F2";
  second.cls = FindingClass::kUnderflow;
  second.severity = Severity::kWarning;
  second.confidence = Confidence::kObserved;
  second.place = {0, 0, Phase::kOptimizer, "fc1.weight", "addcmul_", 209};
  second.occurrence_count = 40;
  second.last_step = 39;
  second.title = "addcmul_ stored 0 for 17 second moments that are not 0";
  second.explanation = "The square of a gradient below 2.4e-4 is below the smallest fp16 number.";
  second.lifecycle = Lifecycle::kUnknown;
  a.findings = {make_eps_finding(), second};
  a.eps_audit = {{"optimizer add_ (fc1.weight)", Phase::kOptimizer, 1e-8, DType::kF16, 0, "zero", 40, 1984},
                 {"layer_norm (norm1)", Phase::kForward, 1e-5, DType::kF32, 1e-5, "ok", 40, 0}};
  for (std::uint32_t step = 0; step < 40; ++step) {
    TimelineStep t;
    t.step = step;
    t.loss = step == 0 ? 2.302585 : kNaN;
    t.lr = 0.001;
    t.bad_ops = step == 0 ? 6 : 31;
    a.timeline.push_back(t);
  }
  a.experiments = {{"raise-eps", "Adam eps 1e-4", 0, true, 50, 2.3026, 1.91, 54.2, false},
                   {"fp32-masters", "fp32 master weights and optimizer state", 0, true, 50, 2.3026, 0.41, 1.02, true}};
  return a;
}

Analysis make_clean_analysis() {
  Analysis a;
  a.ranks = {make_rank()};
  a.ranks[0].info.scenario = "adam-eps-fixed";
  a.coverage.steps = 40;
  a.coverage.ops = 5210;
  a.coverage.values = 6100;
  a.verdict = {VerdictStatus::kClean, "40 steps and 5,210 operations were watched, and nothing did harm.",
               std::nullopt};
  for (std::uint32_t step = 0; step < 40; ++step) {
    TimelineStep t;
    t.step = step;
    t.loss = 2.302585 * std::pow(0.95, step);
    t.lr = 0.001;
    a.timeline.push_back(t);
  }
  return a;
}

Analysis make_hostile_analysis() {
  // Leaves an element, an attribute, a comment, a terminal, a line, and UTF-8.
  const std::string evil =
      "</script></style><img src=x "
      "onerror=alert(1)>\"'><!--{{body}}{{style}}\x1b[31m\r\n\t\x7f\xe2\x80\xae\xe2\x81\xa6\xff\xfe"
      "\xc2\x9b]]>&amp;javascript:";
  Analysis a = make_fault_analysis();
  a.verdict.headline = evil;
  a.coverage.unwatched = {evil};
  a.coverage.not_modelled = {evil};
  RunInfo& info = a.ranks[0].info;
  info.command = {evil, evil};
  info.nanhunt_version = info.framework = info.device = info.level = info.scenario = info.started = info.host = evil;
  info.dtypes = {evil};
  info.options = info.packages = {{evil, evil}, {evil, evil}};
  info.commit = info.tree = evil;
  a.ranks[0].health.problems = {evil};
  a.verdict.origin = evil;
  for (Finding& f : a.findings) {
    f.id = f.title = f.explanation = f.call_site = f.module_class = evil;
    f.frames = {{"/" + evil, 12, evil, 11, {evil, evil + "\n" + evil}}, {evil, 0, evil, 0, {}}};
    f.related = {{FindingClass::kOverflow, Severity::kFault, f.place, evil, evil}};
    f.place.module = f.place.op = evil;
    f.place.seq = kNoSeq - 1;
    f.evidence = f.sinks = f.also = f.also_at = {evil, evil};
    f.samples = {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
    f.scale = kInf;
    f.occurrence_count = std::numeric_limits<std::uint64_t>::max();
    f.first_inf = f.place;
    for (TensorSummary& t : f.inputs) t.role = t.slot = t.name = evil;
    if (f.output) f.output->role = f.output->slot = f.output->name = evil;
    if (f.tensor) f.tensor->shape.assign(1000, std::numeric_limits<std::int64_t>::max());
    if (f.element) {
      f.element->flat_index = std::numeric_limits<std::int64_t>::min();
      for (auto& operand : f.element->operands) operand = {evil, evil, -kInf};
    }
    for (ChainNode& n : f.chain.nodes) n.module = n.op = n.label = evil;
    f.chain.edges.push_back({-1, 1 << 20});
    for (Advice& advice : f.advice) advice.id = advice.text = advice.why = advice.evidence = evil;
  }
  for (EpsAuditRow& row : a.eps_audit) row.where = evil;
  for (ExperimentRecord& e : a.experiments) {
    e.fix = e.description = evil;
    e.loss_after = kInf;
  }
  a.timeline[3].loss = -kInf;
  a.timeline[4].loss = kInf;
  a.timeline[5].skipped = true;
  a.timeline[6].lr = kNaN;
  return a;
}

}  // namespace nanhunt::testing_reports
