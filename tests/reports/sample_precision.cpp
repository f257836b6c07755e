// SPDX-License-Identifier: Apache-2.0
#include "tests/reports/sample_precision.h"

#include <cmath>
#include <limits>

namespace nanhunt::testing_reports {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::uint32_t kSteps = 40, kLostFrom = 20;

std::vector<PrecisionStep> course(double floor, std::uint32_t lost_from = kSteps) {
  std::vector<PrecisionStep> steps;
  for (std::uint32_t i = 0; i < kSteps; ++i) {
    PrecisionStep step{i, floor + 2.0 * std::exp2(-static_cast<double>(i) / 8)};
    if (i >= lost_from) step = {i, i % 2 == 0 ? std::nan("") : kInfinity, true, 1024};
    steps.push_back(step);
  }
  return steps;
}

StepMemory memory(std::uint64_t parameters, std::uint64_t masters, std::uint64_t activations) {
  StepMemory out;
  out.at_peak = {parameters, 128, masters, 2 * parameters, parameters, 0, 8192, activations, 0};
  for (const std::uint64_t bytes : out.at_peak) out.peak += bytes;
  out.largest = out.at_peak;
  out.largest[static_cast<std::size_t>(MemoryKind::kTemporaries)] = 4096;
  out.scratch = 65536;
  return out;
}

LayerPrecision layer(const char* name, double alone, double kept, double output) {
  LayerPrecision out;
  out.layer = name;
  out.output_error = output;
  out.gradient_error = 2 * output;
  out.elements = 40960;
  out.alone_error = alone;
  out.kept_error = kept;
  return out;
}

PrecisionRun run(const char* recipe, const char* dtype, double floor) {
  PrecisionRun out;
  out.recipe = recipe;
  out.summary = std::string("made up: ") + recipe;
  out.dtype = dtype;
  out.steps = course(floor);
  out.final_loss = floor + 0.07;
  out.accuracy = 0.96875;
  out.validation = ValidationResult{floor + 0.1, 0.95};
  out.validation_in_fp32 = ValidationResult{floor + 0.1005, 0.9475};
  out.time = {36, 0.00125, 0.0012, 0.0019};
  out.memory = memory(16384, 0, 65536);
  return out;
}

}  // namespace

PrecisionComparison make_good_comparison() {
  PrecisionComparison c;
  c.workload = "made-up";
  c.summary = "a training that never was";
  c.seed = 7;
  c.steps = kSteps;
  c.batch_size = 32;
  c.tolerance = 0.05;
  c.allowed_loss = 0.27;
  c.other_seed_loss = 0.11;
  c.runs.push_back(run("fp32", "fp32", 0.1));
  c.runs.push_back(run("torch-amp-bf16", "bf16", 0.102));
  PrecisionRun& bf16 = c.runs.back();
  bf16.memory = memory(16384, 0, 32768);
  bf16.probed = {13, 26, 39};
  bf16.layers = {layer("encoder.fc1", 0.0125, 0.009, 0.004), layer("head", 0.011, 0.0091, 0.006)};
  bf16.layers.back().gradient_error = std::nan("");
  return c;
}

PrecisionComparison make_precision_comparison() {
  PrecisionComparison c = make_good_comparison();
  PrecisionRun fp16 = run("torch-amp-fp16", "fp16", 0.1);
  fp16.outcome = PrecisionOutcome::kNonFinite;
  fp16.steps = course(0.1, kLostFrom);
  fp16.final_loss = std::nan("");
  fp16.nonfinite = fp16.skipped = kSteps - kLostFrom;
  fp16.validation = ValidationResult{kInfinity, 0.1};
  fp16.probed = {13, 20, 26, 39};
  fp16.layers = {layer("ffn.wo", kInfinity, 0.002, kInfinity), layer("ffn", kInfinity, 0.002, kInfinity),
                 layer("encoder.fc1", 0.0011, kInfinity, 0.0009)};
  fp16.layers[0].overflowed = fp16.layers[1].overflowed = 12;
  fp16.layers[0].first_overflow = fp16.layers[1].first_overflow = kLostFrom;
  fp16.layers[2].flushed = 3;
  KeptTrial all, one;
  all.all_layers = all.restored = one.restored = true;
  all.final_loss = 0.1701;
  one.layers = fp16.keep = {"ffn.wo"};
  one.final_loss = 0.1704;
  one.skipped = 2;
  fp16.trials = {all, one};
  c.runs.insert(c.runs.begin() + 1, fp16);
  PrecisionRun refused;
  refused.recipe = "apex-o2";
  refused.summary = "made up: apex-o2";
  refused.dtype = "fp16";
  refused.outcome = PrecisionOutcome::kRefused;
  refused.why = "[addmm] expected fp16, got fp32";
  c.runs.push_back(refused);
  for (const std::int64_t size : {8, 64}) {
    BatchSizeRow row;
    row.batch_size = size;
    row.recipe = "fp32";
    row.memory = memory(16384, 0, 2048 * static_cast<std::uint64_t>(size));
    row.time = {10, 0.0001 * static_cast<double>(size), 0.00009 * static_cast<double>(size),
                0.0002 * static_cast<double>(size)};
    c.sweep.push_back(row);
    row.recipe = "apex-o2";
    row.memory.reset();
    row.time = {};
    row.why = refused.why;
    c.sweep.push_back(row);
  }
  return c;
}

PrecisionComparison make_hostile_comparison() {
  PrecisionComparison c = make_precision_comparison();
  const std::string name =
      "</script><script>window.pwned=1</script><img src=x onerror=alert(1)>\"'\x1b[31m\xff{{body}}";
  c.workload = c.summary = name;
  for (PrecisionRun& run : c.runs) {
    if (&run != &c.runs.front()) run.recipe = name;
    run.summary = run.dtype = run.why = name;
    for (LayerPrecision& one : run.layers) one.layer += name;
    for (KeptTrial& trial : run.trials) {
      for (std::string& one : trial.layers) one += name;
      trial.refused = name;
    }
    for (std::string& one : run.keep) one += name;
  }
  for (BatchSizeRow& row : c.sweep) row.recipe = row.why = name;
  return c;
}

}  // namespace nanhunt::testing_reports
