// SPDX-License-Identifier: Apache-2.0
// consumer_cpp RUN: the same step from C++.
#include <nanhunt/analyzer.h>
#include <nanhunt/recorder.h>
#include <nanhunt/reporter.h>

#include <array>
#include <cstdio>
#include <limits>

int main(int argc, char** argv) {
  const std::string run = argc > 1 ? argv[1] : "run";
  const std::array<float, 2> x = {1, 0}, y = {0, -std::numeric_limits<float>::infinity()};
  const std::array<std::int64_t, 1> sizes = {2}, strides = {1};
  const nanhunt::OpInput in{"self", {{x.data(), nanhunt::DType::kF32, sizes, strides}, 1, 0, 0}};
  const nanhunt::OpOutput out{"out", {{y.data(), nanhunt::DType::kF32, sizes, strides}, 2, 0, 0}};
  auto recorder = nanhunt::Recorder::open({.run_dir = run}, {.framework = "a C++ loop", .device = "cpu"});
  if (!recorder) return std::puts(recorder.status().message().c_str()), 1;
  (*recorder)->on_op(
      {.phase = nanhunt::Phase::kLoss, .module = "<loss>", .op = "log", .inputs = {&in, 1}, .outputs = {&out, 1}});
  (*recorder)->on_mark({.kind = nanhunt::TensorRole::kLoss, .path = "loss", .value = out.value});
  if (auto closed = (*recorder)->close(); !closed) return std::puts(closed.message().c_str()), 1;
  auto analysis = nanhunt::analyze_run(run);
  if (!analysis) return std::puts(analysis.status().message().c_str()), 1;
  std::puts(nanhunt::render_json(*analysis).c_str());
}
