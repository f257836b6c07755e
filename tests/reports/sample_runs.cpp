// SPDX-License-Identifier: Apache-2.0
#include "tests/reports/sample_runs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>

#include "tests/reports/sample_analysis.h"

namespace nanhunt::testing_reports {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr std::uint32_t kTimelineLimit = 4096, kColumnLimit = 512;

// The same numbers on every machine: no library function that may round differently.
class Noise {
 public:
  double next() {  // in [0, 1)
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<double>(state_ >> 40U) / static_cast<double>(1U << 24U);
  }

 private:
  std::uint64_t state_ = 7;
};

TensorSummary make_tensor(std::string role, std::string slot, std::string name, std::vector<std::int64_t> shape,
                          int least_exponent, std::vector<std::int64_t> bins) {
  TensorSummary t;
  t.role = std::move(role);
  t.slot = std::move(slot);
  t.name = std::move(name);
  t.dtype = DType::kF16;
  t.shape = std::move(shape);
  t.has_stats = true;
  TensorStats& s = t.stats;
  s.level = StatsLevel::kHistogram;
  s.histogram_min_exponent = least_exponent;
  for (const std::int64_t n : bins) s.numel += n;
  s.amin_nonzero = std::ldexp(1.25, least_exponent);
  s.amax = std::ldexp(1.5, least_exponent + static_cast<int>(bins.size()) - 1);
  s.min = -s.amax;
  s.max = s.amax;
  s.histogram = std::move(bins);
  return t;
}

ChainNode make_node(std::uint64_t seq, Phase phase, std::string module, std::string op, Lifecycle lifecycle,
                    std::int64_t nan, std::int64_t inf, std::int64_t numel, std::string role) {
  ChainNode n;
  n.seq = seq;
  n.step = 24;
  n.phase = phase;
  n.module = std::move(module);
  n.op = std::move(op);
  n.lifecycle = lifecycle;
  n.nan = nan;
  n.pos_inf = inf;
  n.numel = numel;
  n.role = std::move(role);
  return n;
}

// Forward through a residual branch, the loss, and back into two parameters.
Chain make_branching_chain() {
  Chain chain;
  chain.nodes = {
      make_node(901, Phase::kForward, "blocks.1.mlp.fc2", "addmm", Lifecycle::kAppear, 0, 17, 4096, "origin"),
      make_node(902, Phase::kForward, "blocks.1", "add", Lifecycle::kPropagate, 0, 17, 4096, "carrier"),
      make_node(903, Phase::kForward, "blocks.2.norm", "layer_norm", Lifecycle::kTransform, 128, 0, 4096, "carrier"),
      make_node(904, Phase::kForward, "blocks.2.attn", "addmm", Lifecycle::kPropagate, 384, 0, 12288, "carrier"),
      make_node(905, Phase::kForward, "blocks.2", "add", Lifecycle::kPropagate, 145, 0, 4096, "carrier"),
      make_node(906, Phase::kForward, "head", "addmm", Lifecycle::kPropagate, 640, 0, 640, "carrier"),
      make_node(907, Phase::kLoss, "<loss>", "cross_entropy", Lifecycle::kPropagate, 1, 0, 1, "carrier"),
      make_node(kNoSeq, Phase::kLoss, "loss", "<loss>", Lifecycle::kPropagate, 1, 0, 1, "sink"),
      make_node(940, Phase::kBackward, "head", "addmm_backward", Lifecycle::kPropagate, 640, 0, 640, "carrier"),
      make_node(kNoSeq, Phase::kBackward, "head.weight", "<gradient>", Lifecycle::kPropagate, 640, 0, 640, "sink"),
      make_node(kNoSeq, Phase::kBackward, "head.bias", "<gradient>", Lifecycle::kPropagate, 10, 0, 10, "sink"),
  };
  chain.edges = {{0, 1}, {1, 2}, {2, 3}, {1, 5}, {3, 4}, {1, 4}, {4, 5}, {5, 6}, {6, 7}, {6, 8}, {8, 9}, {8, 10}};
  chain.omitted = 12;
  return chain;
}

ScalerSection make_scaler(std::uint32_t steps) {
  ScalerSection s;
  s.family = "torch.amp";
  s.init_scale = 65536;
  s.growth_factor = 2;
  s.backoff_factor = 0.5;
  s.growth_interval = 20;
  s.steps = steps;
  double scale = s.init_scale;
  std::uint32_t good = 0, streak = 0;
  for (std::uint32_t step = 0; step < steps; ++step) {
    const bool skipped = step < 4 || step == 24;
    s.points.push_back({step, scale, skipped});
    if (skipped) {
      scale *= s.backoff_factor;
      ++s.skipped;
      ++s.backoffs;
      good = 0;
      s.longest_streak = std::max(s.longest_streak, ++streak);
      s.events.push_back({step, step * 100U, "skip", scale * 2, ""});
      s.events.push_back({step, step * 100U + 1, "backoff", scale, ""});
    } else {
      streak = 0;
      if (++good == s.growth_interval) {
        scale *= s.growth_factor;
        good = 0;
        ++s.growths;
        s.events.push_back({step, step * 100U, "growth", scale, ""});
      }
    }
  }
  s.final_scale = scale;
  return s;
}

void add_layers(Analysis& a, std::uint32_t steps, std::size_t count, std::uint32_t bad_from) {
  Noise noise;
  LayerMap& map = a.layer_map;
  map.steps_per_column = std::max<std::uint32_t>(1, (steps + kColumnLimit - 1) / kColumnLimit);
  map.columns = (steps + map.steps_per_column - 1) / map.steps_per_column;
  for (std::size_t i = 0; i < count; ++i) {
    LayerSummary layer;
    static constexpr const char* kParts[] = {"attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2", "norm"};
    layer.module = "blocks." + std::to_string(i / 5) + "." + kParts[i % 5];
    layer.dtype = i % 5 == 4 ? DType::kF32 : DType::kF16;
    layer.ops = std::uint64_t{steps} * 3;
    const double base = i % 5 == 3 ? 5 : i % 5 == 4 ? 40 : 9;
    layer.headroom_forward = base;
    layer.headroom_gradient = base + 14;
    layer.amax_forward = format_limits(layer.dtype).max_finite;
    double worst_share = 0;
    for (std::uint32_t c = 0; c < map.columns; ++c) {
      const double at = static_cast<double>(c) / map.columns;
      const std::uint32_t step = c * map.steps_per_column;
      const bool bad = step >= bad_from && i >= count / 2;
      double headroom = base - at * (i % 5 == 3 ? 5 : 1) + 0.6 * noise.next();
      if (bad) headroom = 0;
      const double share = i % 5 == 4 ? 0 : std::max(0.0, at * 0.2 * noise.next() - 0.02);
      map.headroom.push_back(static_cast<float>(headroom));
      map.underflow.push_back(static_cast<float>(share));
      map.nonfinite.push_back(bad ? 1 : 0);
      layer.headroom_forward = std::min(layer.headroom_forward, headroom);
      worst_share = std::max(worst_share, share);
      if (bad) {
        if (layer.bad_ops == 0) layer.first_bad_step = step;
        layer.bad_ops += 2;
        layer.nan += 145;
        layer.inf += i == count / 2 ? 17 : 0;
      }
    }
    for (double h = layer.headroom_forward; h >= 1; h -= 1) layer.amax_forward /= 2;
    layer.amax_gradient = layer.amax_forward / 16384;
    layer.underflow_forward = worst_share / 8;
    layer.underflow_gradient = worst_share;
    if (i % 7 == 6) layer.headroom_gradient = layer.underflow_gradient = kNaN;  // its gradients were not seen
    a.layers.push_back(std::move(layer));
  }
}

void add_timeline(Analysis& a, std::uint32_t steps, std::uint32_t bad_from) {
  Noise noise;
  const std::uint32_t stride = std::max<std::uint32_t>(1, (steps + kTimelineLimit - 1) / kTimelineLimit);
  for (std::uint32_t step = 0; step < steps; step += stride) {
    TimelineStep t;
    t.step = step;
    const double progress = static_cast<double>(step) / steps;
    t.loss = 0.4 + 1.9 / (1 + 12 * progress) + 0.08 * noise.next();
    t.lr = 0.001;
    t.gradient_norm = 0.2 + 2 / (1 + 9 * progress) + 0.2 * noise.next();
    t.weight_norm = 21 + 3 * progress;
    if (step >= bad_from) {
      t.loss = step == bad_from ? kInf : kNaN;
      t.gradient_norm = kNaN;
      t.bad_ops = 31;
      t.skipped = true;
    }
    a.timeline.push_back(t);
  }
  a.timeline_omitted = steps - a.timeline.size();
}

void set_scale(Analysis& a) {
  for (std::size_t i = 0; i < a.timeline.size() && i < a.scaler->points.size(); ++i) {
    a.timeline[i].scale = a.scaler->points[i].scale;
    if (a.scaler->points[i].skipped) a.timeline[i].skipped = true;
  }
}

}  // namespace

DeviceTime make_device_time() {
  DeviceTime time;
  time.kernels = 69'004;
  time.untimed = 4;
  time.own_kernels = 9'000;
  time.total_ns = 2'000'000'000;
  time.own_ns = 24'000'000;
  time.without_op_ns = 15'000'000;
  time.rows = {
      {"blocks.1.mlp.fc2", "addmm", Phase::kForward, "gemm_f16_128x128_tn", 60, 60, 900'000'000},
      {"blocks.1.mlp.fc2", "addmm_backward", Phase::kBackward, "gemm_f16_128x128_nt", 120, 120, 800'000'000},
      {"", "", Phase::kForward, "fill", 24, 24, 15'000'000},
      {"head", "addmm", Phase::kForward, "", 4, 0, 0},
  };
  time.rows_omitted = 5;
  time.omitted_ns = 260'000'000;
  return time;
}

Analysis make_overflow_analysis() {
  Analysis a;
  a.ranks = make_clean_analysis().ranks;
  RunInfo& info = a.ranks[0].info;
  info.command = {"nanhunt", "train", "gpt-overflow"};
  info.scenario = "gpt-overflow";
  info.attempt = a.ranks[0].attempt = 1;
  constexpr std::uint32_t kSteps = 60, kBadFrom = 24;
  add_timeline(a, kSteps, kBadFrom);
  add_layers(a, kSteps, 20, kBadFrom);
  a.scaler = make_scaler(kSteps);
  set_scale(a);
  a.coverage.steps = kSteps;
  a.coverage.ops = 58'204;
  a.coverage.values = 71'002;
  a.coverage.unwatched = {"The inside of fused attention: only its inputs and outputs were watched."};
  a.verdict = {VerdictStatus::kFault,
               "In step 24 the output of blocks.1.mlp.fc2 passed 65504, the largest fp16 number, in the forward pass.",
               "F1"};
  Finding f;
  f.id = "F1";
  f.cls = FindingClass::kOverflow;
  f.confidence = Confidence::kProved;
  f.place = {kBadFrom, 0, Phase::kForward, "blocks.1.mlp.fc2", "addmm", 901};
  f.call_site = "model.py:118";
  f.scale = 4096;
  f.occurrence_count = 36;
  f.first_step = kBadFrom;
  f.last_step = kSteps - 1;
  f.title = "addmm in blocks.1.mlp.fc2 made 17 Inf from finite inputs";
  f.explanation =
      "Its inputs were finite. Their product reaches 71,300, and fp16 ends at 65504. The loss scale does not touch the "
      "forward pass, so no scale can help.";
  f.lifecycle = Lifecycle::kAppear;
  f.bad_elements = 17;
  f.inputs = {make_tensor("input", "mat1", "", {32, 512}, -14,
                          {3, 9, 40, 120, 300, 720, 1500, 2400, 3100, 3300, 2600, 1300, 600, 280, 80, 24, 6, 2}),
              make_tensor("input", "mat2", "blocks.1.mlp.fc2.weight", {512, 128}, -20,
                          {12, 60, 260, 1000, 3000, 7400, 13000, 17000, 14000, 7000, 2200, 500, 90, 14})};
  f.inputs[0].stats.zero = 402;
  f.inputs[0].stats.numel += 402;
  f.output = make_tensor("output", "out", "", {32, 128}, -6,
                         {2, 8, 30, 88, 210, 420, 680, 790, 710, 520, 330, 170, 74, 27, 9, 5, 2, 1, 1, 1, 1, 0});
  f.output->stats.numel += 17;
  f.output->stats.pos_inf = 17;
  f.output->stats.any_nonfinite = true;
  f.tensor = f.output;
  f.element = ElementEvidence{
      77, {0, 77}, 0, false, std::nullopt, kInf, {{"mat1", "", 312.5}, {"mat2", "blocks.1.mlp.fc2.weight", 0.75}}};
  f.evidence = {"In fp32 the largest result is 71,300, which is finite.",
                "amax of this output doubled every 6 steps from step 0 on."};
  f.first_inf = f.place;
  f.first_nan = OpPlace{kBadFrom, 0, Phase::kForward, "blocks.2.norm", "layer_norm", 903};
  f.sinks = {"loss", "gradient head.weight", "gradient head.bias"};
  f.samples = {4, 8, 15, 16, 23, 42};
  f.chain = make_branching_chain();
  f.advice = {{"bf16", "Train in bf16.", "It reaches 3.39e38.", true, "50 further steps stayed finite."},
              {"lower-scale", "Lower the initial loss scale to 1024.", "Gradients get smaller.", false,
               "Inf again in step 24: the forward pass is not scaled."}};
  Finding calibration;
  calibration.id = "F2";
  calibration.cls = FindingClass::kScalerCalibration;
  calibration.severity = Severity::kInfo;
  calibration.benign = true;
  calibration.place = {0, 0, Phase::kBackward, "head", "addmm_backward", 88};
  calibration.last_step = 3;
  calibration.occurrence_count = 4;
  calibration.title = "The loss scaler skipped steps 0 to 3 while it found its scale";
  a.findings = {f, calibration};
  return a;
}

Analysis make_warning_analysis() {
  Analysis a = make_fault_analysis();
  a.verdict = {VerdictStatus::kWarning, "In step 0 an eps of 1e-8 was 0 in fp16, and no harm came of it.", "F1"};
  a.timeline.resize(2);
  a.timeline[1].loss = -kInf;
  a.timeline[1].lr = kNaN;
  Finding& f = a.findings[0];
  f.severity = Severity::kWarning;
  f.rank = 2;
  f.ranks = {2, 5};
  f.rank_propagation = {{{0, 1}, "allreduce", "dp", 12}, {{3}, "recv", "", 13}};
  f.chain.nodes[0].rank = 2;
  f.chain.nodes[1].label = "weight of fc1";
  f.kernel = "addcdiv_f16";
  f.part_of = "the derivative of sqrt";
  f.related_omitted = 3;
  f.element->operands[1].value = -kInf;
  f.output->stats.level = StatsLevel::kWhatIf;
  f.output->stats.what_if[0] = {5, 6, 7};
  a.findings[1].same_line_as = "F1";
  a.findings[1].ignored = "known";
  a.update_loss = {{"fc1.weight", "add_", DType::kF16, false, 40, 12, 3, 0.25, 0.75},
                   {"fc1.weight", "lerp_", DType::kF16, true, 40, 0, 0, 0.125, 0.5}};
  a.device_time = make_device_time();
  a.ranks[0].health.problems = {"chunk 3: checksum does not match"};
  a.experiments[0].loss_after = kInf;
  return a;
}

Analysis make_calibrating_analysis() {
  Analysis a = make_overflow_analysis();
  a.findings.erase(a.findings.begin());
  a.findings[0].id = "F1";
  a.verdict = {VerdictStatus::kCalibrating, "The loss scaler skipped 4 of 24 steps while it found its scale.", "F1"};
  a.timeline.resize(24);
  a.coverage.steps = 24;
  a.layers.clear();
  a.layer_map = {};
  add_layers(a, 24, 12, 1000);
  a.scaler = make_scaler(24);
  a.ranks[0].info.scenario = "amp-calibration";
  return a;
}

Analysis make_ramp_analysis() {
  Analysis a = make_clean_analysis();
  a.ranks[0].info.scenario = "lr-finder";
  a.timeline.clear();
  LrRange range;
  LrRamp& ramp = a.lr_ramp.emplace();
  double high = 1;
  for (std::uint32_t step = 0; step < 40; ++step) {
    TimelineStep t;
    t.step = step;
    t.lr = std::ldexp(1e-6, static_cast<int>(step));
    const double x = (static_cast<double>(step) - 20) / 4;
    t.loss = step < 28 ? 1.5 - x / (1 + std::abs(x)) : high;
    if (step >= 28) high *= 10;
    if (step == 36) t.loss = kInf;
    if (step > 36) t.loss = kNaN;
    a.timeline.push_back(t);
    if (range.add(step, t.lr, t.loss) && !ramp.stops_at) ramp.stops_at = step;
  }
  ramp.last_step = 39;
  ramp.points = range.points();
  ramp.suggestion = suggest_lr(std::span(ramp.points).first(*ramp.stops_at + 1));
  return a;
}

Analysis make_long_analysis(std::uint32_t steps, std::size_t layers) {
  Analysis a = make_overflow_analysis();
  a.timeline.clear();
  a.layers.clear();
  a.layer_map = {};
  const std::uint32_t bad_from = steps / 10 * 9;
  add_timeline(a, steps, bad_from);
  add_layers(a, steps, layers, bad_from);
  a.coverage.steps = steps;
  a.scaler->points.clear();
  for (const TimelineStep& t : a.timeline) a.scaler->points.push_back({t.step, t.scale, t.skipped});
  a.ranks[0].info.scenario = "long";
  return a;
}

}  // namespace nanhunt::testing_reports
