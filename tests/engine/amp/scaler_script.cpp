// SPDX-License-Identifier: Apache-2.0
// Runs scripts of scaler calls from standard input, one call a line, and prints one line for each: what came of it,
// then scale bits and growth tracker. torch_scaler_script.py does the same with torch.
//
//   new INIT GROWTH BACKOFF INTERVAL    a fresh scaler and optimizers A and B with three gradients each
//   grads A BITS BITS BITS              fp32 bits of the gradients, or - for none
//   scale BITS | unscale A | step A | update | set VALUE | interval N | growth F | backoff F | reload
//
// Gradients are printed after unscale and step. Numbers are read as doubles; a NaN prints as nan.
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

#include "nanhunt/engine/amp.h"
#include "tests/engine/amp/scaler_fixture.h"

namespace nanhunt::engine::testing {
namespace {

constexpr std::size_t kGradients = 3;

std::string shown(double value) {
  return std::isnan(value) ? std::string("nan") : fmt::format("{:08x}", bits_of(value));
}

float float_of(const std::string& bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(std::stoul(bits, nullptr, 16)));
}

class Script {
 public:
  std::string run(const std::string& line) {
    std::istringstream words(line);
    std::string call, first;
    words >> call;
    if (call == "new") {
      start(words);
      return "new" + state();
    }
    words >> first;
    std::string outcome;
    try {
      outcome = call_scaler(call, first, words);
    } catch (const std::invalid_argument& refused) {
      outcome = std::string("refused: ") + refused.what();
    }
    return outcome + state();
  }

 private:
  void start(std::istringstream& words) {
    GradScalerOptions options;
    words >> options.init_scale >> options.growth_factor >> options.backoff_factor >> options.growth_interval;
    scaler_.emplace(options);
    optimizers_.clear();
    for (const std::string name : {"A", "B"}) optimizers_.try_emplace(name, name, kGradients);
  }

  std::string call_scaler(const std::string& call, const std::string& first, std::istringstream& words) {
    if (call == "grads") return set_gradients(optimizers_.at(first), words);
    if (call == "unscale") {
      scaler_->unscale_(optimizers_.at(first));
      return "unscaled" + gradients(optimizers_.at(first));
    }
    if (call == "step") {
      const bool ran = scaler_->step(optimizers_.at(first));
      return (ran ? "ran" : "skipped") + gradients(optimizers_.at(first));
    }
    if (call == "scale") {
      const float loss = float_of(first);
      return shown(scaler_->scale(Tensor::full({}, loss, DType::kF32)).item());
    }
    if (call == "update") {
      scaler_->update();
    } else if (call == "set") {
      scaler_->update(std::stod(first));
    } else if (call == "interval") {
      scaler_->set_growth_interval(std::stoll(first));
    } else if (call == "growth") {
      scaler_->set_growth_factor(std::stod(first));
    } else if (call == "backoff") {
      scaler_->set_backoff_factor(std::stod(first));
    } else if (call == "reload") {
      GradScaler fresh;
      fresh.load_state(scaler_->state());
      scaler_ = std::move(fresh);
    } else {
      throw std::runtime_error("unknown call '" + call + "'");
    }
    return "done";
  }

  static std::string set_gradients(CountingOptimizer& optimizer, std::istringstream& words) {
    for (std::size_t i = 0; i < kGradients; ++i) {
      std::string bits;
      words >> bits;
      if (bits == "-") {
        Tensor parameter = optimizer.parameters()[i].tensor;
        parameter.set_grad({});
      } else {
        optimizer.set_gradient(i, float_of(bits));
      }
    }
    return "set";
  }

  static std::string gradients(const CountingOptimizer& optimizer) {
    std::string out;
    for (const auto& [path, parameter] : optimizer.parameters()) {
      out.append(" ").append(parameter.grad().defined() ? shown(parameter.grad().item()) : "-");
    }
    return out;
  }

  std::string state() const { return fmt::format(" | {} {}", shown(scaler_->get_scale()), scaler_->growth_tracker()); }

  std::optional<GradScaler> scaler_;
  std::map<std::string, CountingOptimizer> optimizers_;
};

}  // namespace
}  // namespace nanhunt::engine::testing

int main() {
  nanhunt::engine::testing::Script script;
  try {
    for (std::string line; std::getline(std::cin, line);) std::cout << script.run(line) << '\n';
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
  return 0;
}
