// SPDX-License-Identifier: Apache-2.0
// Runs scripts of autocast regions on the CPU's lists from standard input, one call a line, and prints one line for
// each: what came of it, how many casts it made, then whether autocast is on, its format and whether casts are cached.
// torch_autocast_script.py does the same with torch.
//
//   new                                 fresh tensors, nothing open
//   region ENABLED FORMAT CACHE         opens one; - for a format or cache that is not given
//   exit | no_grad | grad | clear       closes the last region; switches gradients off and on; empties the cache
//   op NAME TENSOR ...                  the result's format, its sum where that is exact, and whether it is tracked
//   function CAST RESTORES TENSOR TENSOR    a custom product of matrices, as op; what its forward sees
//   backward                            of the sum of all tracked results; then the gradients of the parameters
//   write TENSOR VALUE                  fills it, without gradients
//
// Tensors: parameters w and v (fp32), h (fp16), u (a view); a (fp32), b (bf16), c (fp16), d (fp64), without gradients.
#include <fmt/format.h>

#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/custom_function.h"
#include "nanhunt/engine/ops.h"
#include "tests/engine/ops/op_recorder.h"

namespace nanhunt::engine::testing {
namespace {

std::optional<DType> format_of(const std::string& name) {
  if (name == "fp16") return DType::kF16;
  if (name == "bf16") return DType::kBF16;
  if (name == "fp32") return DType::kF32;
  return std::nullopt;
}

struct CastCounter : Observer {
  int casts = 0;
  void on_op(const OpCall& call) noexcept override {
    if (call.op == "_to_copy") ++casts;
  }
};

constexpr const char* kParameters[] = {"w", "v", "h", "u"};

class Script {
 public:
  std::string run(const std::string& line) {
    std::istringstream words(line);
    std::string call;
    words >> call;
    counter_.casts = 0;
    std::string outcome;
    try {
      const HookHandle handle = add_observer(counter_);
      outcome = execute(call, words);
    } catch (const std::invalid_argument&) {
      outcome = "refused";
      for (const char* name : kParameters) tensors_.at(name).set_grad(Tensor());
    }
    const std::string casts = outcome != "refused" && call == "op" ? fmt::format(" casts {}", counter_.casts) : "";
    // The engine uses graphs up, casts too; and torch's gradients of products go through the cache in a region.
    if (call == "backward") clear_autocast_cache();
    const AutocastState state = autocast_state();
    constexpr auto kCpu = static_cast<std::size_t>(AutocastDevice::kCpu);
    return fmt::format("{}{} | {} {} {}", outcome, casts, state.enabled[kCpu] ? "on" : "off",
                       dtype_name(state.dtypes[kCpu]), state.cache ? "cached" : "uncached");
  }

 private:
  std::string execute(const std::string& call, std::istringstream& words) {
    if (call == "new") return start();
    if (call == "region") return enter(words);
    if (call == "op") return run_op(words);
    if (call == "function") return run_function(words);
    if (call == "backward") return run_backward();
    if (call == "write") {
      std::string name;
      double value = 0;
      words >> name >> value;
      const NoGradGuard no_grad;
      fill_(tensors_.at(name), value);
    } else if (call == "exit") {
      regions_.pop_back();
    } else if (call == "no_grad") {
      no_grad_.emplace();
    } else if (call == "grad") {
      no_grad_.reset();
    } else {
      clear_autocast_cache();
    }
    return "done";
  }

  std::string start() {
    while (!regions_.empty()) regions_.pop_back();
    no_grad_.reset();
    results_.clear();
    tensors_.clear();
    const auto of = [](DType dtype, double value) { return Tensor::full({2, 2}, value, dtype); };
    tensors_ = {{"w", of(DType::kF32, 1)},
                {"v", of(DType::kF32, 2)},
                {"h", of(DType::kF16, 1)},
                {"u", narrow(Tensor::full({3, 2}, 1, DType::kF32), 0, 0, 2)},
                {"a", of(DType::kF32, 1)},
                {"b", of(DType::kBF16, 2)},
                {"c", of(DType::kF16, 1)},
                {"d", of(DType::kF64, 1)}};
    for (const char* name : kParameters) tensors_.at(name).set_requires_grad(true);
    return "new";
  }

  std::string enter(std::istringstream& words) {
    int enabled = 0;
    std::string format, cache;
    words >> enabled >> format >> cache;
    AutocastOptions options{.enabled = enabled != 0, .dtype = format_of(format), .device = AutocastDevice::kCpu};
    if (cache != "-") options.cache = cache == "1";
    regions_.push_back(std::make_unique<Autocast>(options));
    return regions_.back()->warning().empty() ? "entered" : "warned: " + regions_.back()->warning().substr(0, 50);
  }

  std::string run_op(std::istringstream& words) {
    std::string op, name;
    words >> op;
    std::vector<Tensor> in;
    while (words >> name) in.push_back(tensors_.at(name));
    if (op == "matmul") return kept(matmul(in[0], in[1]));
    if (op == "linear") return kept(linear(in[0], in[1], Tensor()));
    if (op == "mse_loss") return kept(mse_loss(in[0], in[1]));
    if (op == "l1_loss") return kept(l1_loss(in[0], in[1]));
    if (op == "binary_cross_entropy") return kept(binary_cross_entropy(in[0], in[1]), false);
    if (op == "prelu") return kept(prelu(in[0], select(in[1], 0, 0)));
    if (op == "cat") return kept(cat(in));
    if (op == "add") return kept(add(in[0], in[1]));
    if (op == "softmax") return kept(softmax(in[0], 1), false);
    if (op == "exp") return kept(exp(in[0]), false);
    return kept(sum(in[0]));
  }

  std::string run_function(std::istringstream& words) {
    std::string cast, left, right;
    int restores = 0;
    words >> cast >> restores >> left >> right;
    std::string seen;
    const CustomFunction function{
        .name = "Product",
        .forward =
            [&seen](FunctionContext& context, const std::vector<Tensor>& in) {
              seen = fmt::format("forward {} {} ", autocast_enabled(), dtype_name(in[0].dtype()));
              context.save_for_backward(in);
              return matmul(in[0], in[1]);
            },
        .backward = [this](FunctionContext& context, const Tensor& g) -> std::vector<Tensor> {
          const std::vector<Tensor>& saved = context.saved_tensors();
          const Tensor left_gradient = matmul(g, t(saved[1])), right_gradient = matmul(t(saved[0]), g);
          backward_ += fmt::format(" backward {} {}", autocast_enabled(), dtype_name(left_gradient.dtype()));
          return {left_gradient, right_gradient};
        },
        .cast_inputs = format_of(cast),
        .backward_as_forward = restores != 0};
    const Tensor out = function({tensors_.at(left), tensors_.at(right)});
    return seen + kept(out);
  }

  std::string run_backward() {
    backward_.clear();
    clear_autocast_cache();
    std::vector<Tensor> results = std::move(results_);
    results_.clear();
    if (!results.empty()) {
      Tensor total = sum(to(results[0], DType::kF64));
      for (std::size_t i = 1; i < results.size(); ++i) total = add(total, sum(to(results[i], DType::kF64)));
      total.backward();
    }
    std::string gradients;
    for (const char* name : kParameters) {
      Tensor& parameter = tensors_.at(name);
      const Tensor& gradient = parameter.grad();
      const double total = gradient.defined() ? sum(to(gradient, DType::kF64)).item() : 0;
      gradients += gradient.defined() ? fmt::format(" {} {} {}", name, dtype_name(gradient.dtype()), total)
                                      : fmt::format(" {} none", name);
      parameter.set_grad(Tensor());
    }
    return "gradients" + gradients + backward_;
  }

  std::string kept(const Tensor& result, bool exact = true) {
    if (result.requires_grad() && exact) results_.push_back(result);
    const int casts = counter_.casts;
    const std::string total = exact ? fmt::format(" {}", sum(to(result.detach(), DType::kF64)).item()) : "";
    counter_.casts = casts;
    return fmt::format("{}{} {}", dtype_name(result.dtype()), total, result.requires_grad() ? "tracked" : "free");
  }

  CastCounter counter_;
  std::map<std::string, Tensor> tensors_;
  std::vector<std::unique_ptr<Autocast>> regions_;
  std::optional<NoGradGuard> no_grad_;
  std::vector<Tensor> results_;
  std::string backward_;
};

}  // namespace
}  // namespace nanhunt::engine::testing

int main() {
  nanhunt::engine::testing::Script script;
  std::string line;
  while (std::getline(std::cin, line)) std::cout << script.run(line) << "\n";
}
