// SPDX-License-Identifier: Apache-2.0
// An observer that writes down everything it is told, one line each, in order: "step 0", "batch 0 [3 1]",
// "enter fc1", "op forward fc1 addmm", "mark parameter fc1.weight", "scaler unscale", "boundary", "stepped", "end 0".
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "nanhunt/engine/hooks.h"
#include "tests/support/bytes_of.h"

namespace nanhunt::engine::testing {

class EventLog : public Observer {
 public:
  std::vector<std::string> lines;

  std::vector<std::string> starting_with(const std::string& prefix) const {
    std::vector<std::string> found;
    std::copy_if(lines.begin(), lines.end(), std::back_inserter(found),
                 [&](const std::string& line) { return line.starts_with(prefix); });
    return found;
  }
  // Position of a line; fails the test if there is none.
  std::size_t index_of(const std::string& line) const {
    const auto found = std::find(lines.begin(), lines.end(), line);
    EXPECT_NE(found, lines.end()) << "no line '" << line << "'";
    return static_cast<std::size_t>(found - lines.begin());
  }

  void on_op(const OpCall& call) noexcept override {
    lines.push_back("op " + std::string(phase_name(call.phase)) + " " + std::string(call.module) + " " +
                    std::string(call.op));
  }
  void on_module_enter(std::string_view path) noexcept override { lines.push_back("enter " + std::string(path)); }
  void on_module_exit(std::string_view path) noexcept override { lines.push_back("exit " + std::string(path)); }
  void on_step_begin(std::uint32_t step) noexcept override { lines.push_back("step " + std::to_string(step)); }
  void on_micro_batch(std::uint32_t micro_batch, std::span<const std::int64_t> ids) noexcept override {
    std::string line = "batch " + std::to_string(micro_batch) + " [";
    for (std::size_t i = 0; i < ids.size(); ++i) line += (i ? " " : "") + std::to_string(ids[i]);
    lines.push_back(line + "]");
  }
  void on_mark(TensorRole kind, std::string_view path, const Tensor&) noexcept override {
    lines.push_back("mark " + std::string(tensor_role_name(kind)) + " " + std::string(path));
  }
  void on_scaler(const ScalerEvent& event) noexcept override {
    lines.push_back("scaler " + std::string(scaler_action_name(event.action)));
  }
  void on_optimizer_begin() noexcept override { lines.push_back("boundary"); }
  void on_optimizer_end(bool skipped) noexcept override { lines.push_back(skipped ? "skipped" : "stepped"); }
  void on_step_given_up(std::uint32_t step, StepEnding ending, std::string_view message) noexcept override {
    lines.push_back("gave up " + std::to_string(step) + " " + std::string(step_ending_name(ending)) + " " +
                    std::string(message));
  }
  void on_step_end(std::uint32_t step, double loss, double lr, double scale, bool skipped) noexcept override {
    lines.push_back("end " + std::to_string(step));
    last_loss = loss;
    last_lr = lr;
    last_scale = scale;
    last_skipped = skipped;
  }
  double last_loss = 0, last_lr = 0, last_scale = 0;
  bool last_skipped = false;
};

using testing_support::bytes_of;

}  // namespace nanhunt::engine::testing
