// SPDX-License-Identifier: Apache-2.0
// Which public function of the engine is behind the name of an op, and how its arguments are called.
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "hooks/engine/replay/engine_ops.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/optimizer.h"

namespace nanhunt::hooks {
namespace {

using engine::Tensor;

NamedResults out(Tensor tensor) { return {{"out", std::move(tensor)}}; }

std::optional<int> dim_of(const OpUse& use) {
  const auto dim = use.find_scalar("dim");
  return dim ? std::optional(static_cast<int>(*dim)) : std::nullopt;
}
std::int64_t integer(const OpUse& use, std::string_view name) { return static_cast<std::int64_t>(use.scalar(name)); }
int dimension(const OpUse& use, std::string_view name) { return static_cast<int>(use.scalar(name)); }
bool keeps_dim(const OpUse& use) { return use.out_sizes.size() == use.input("self").sizes().size(); }
// Autocast lets reductions and softmax store a wider format than they read.
Tensor widened(const OpUse& use) { return engine::to(use.input("self"), use.out_dtype); }

template <Tensor (*F)(const Tensor&)>
NamedResults unary(OpUse& use) {
  return out(F(use.input("self")));
}

template <Tensor (*OfTensors)(const Tensor&, const Tensor&), Tensor (*OfNumber)(const Tensor&, double)>
NamedResults product(OpUse& use) {
  const Tensor other = use.find("other");
  return out(other.defined() ? OfTensors(use.input("self"), other) : OfNumber(use.input("self"), use.scalar("other")));
}

template <Tensor (*OfTensors)(const Tensor&, const Tensor&, double), Tensor (*OfNumber)(const Tensor&, double)>
NamedResults sum_of_two(OpUse& use) {
  const Tensor other = use.find("other");
  return out(other.defined() ? OfTensors(use.input("self"), other, use.scalar("alpha"))
                             : OfNumber(use.input("self"), use.scalar("other")));
}

template <Tensor (*F)(const Tensor&, const Tensor&, const Tensor&, double)>
NamedResults combined(OpUse& use) {
  return out(F(use.input("self"), use.input("tensor1"), use.input("tensor2"), use.scalar("value")));
}

template <Tensor& (*F)(Tensor&, const Tensor&, const Tensor&, double)>
NamedResults combined_in_place(OpUse& use) {
  Tensor self = use.input("self");
  return out(F(self, use.input("tensor1"), use.input("tensor2"), use.scalar("value")));
}

template <Tensor (*F)(const Tensor&, std::optional<int>, bool)>
NamedResults reduction(OpUse& use) {
  const auto dim = dim_of(use);
  return out(F(widened(use), dim, dim && keeps_dim(use)));
}

template <Tensor (*F)(const Tensor&, int)>
NamedResults along(OpUse& use) {
  return out(F(widened(use), dimension(use, "dim")));
}

template <Tensor (*F)(const Tensor&, double)>
NamedResults compared(OpUse& use) {
  return out(F(use.input("self"), use.scalar("other")));
}

template <Tensor (*F)(const Tensor&, const Tensor&)>
NamedResults product_of_matrices(OpUse& use) {
  return out(F(use.input("self"), use.input("mat2")));
}

template <Tensor (*F)(const Tensor&, const Tensor&)>
NamedResults pair_loss(OpUse& use) {
  return out(F(use.input("self"), use.input("target")));
}

NamedResults run_cat(OpUse& use) {
  std::vector<Tensor> tensors;
  for (const auto& [slot, tensor] : use.inputs) tensors.push_back(tensor);
  return out(engine::cat(tensors, dimension(use, "dim")));
}

// In a format of 16 bits only where the run did.
engine::NormStatistics statistics_of(const OpUse& use) {
  return dtype_size(use.arithmetic) < 4 ? engine::NormStatistics::kInput : engine::NormStatistics::kOpMath;
}

NamedResults run_batch_norm(OpUse& use) {
  Tensor mean = use.input("running_mean"), variance = use.input("running_var");
  const bool training = use.scalar("training") != 0;
  Tensor result = engine::batch_norm(use.input("input"), use.input("weight"), use.input("bias"), mean, variance,
                                     training, use.scalar("momentum"), use.scalar("eps"), statistics_of(use));
  if (!training) return out(std::move(result));
  return {{"out", std::move(result)}, {"running_mean", mean}, {"running_var", variance}};
}

NamedResults run_add_in_place(OpUse& use) {
  Tensor self = use.input("self");
  const Tensor other = use.find("other");
  return out(other.defined() ? engine::add_(self, other, use.scalar("alpha"))
                             : engine::add_(self, use.scalar("other")));
}

NamedResults run_mul_in_place(OpUse& use) {
  Tensor self = use.input("self");
  const Tensor other = use.find("other");
  return out(other.defined() ? engine::mul_(self, other) : engine::mul_(self, use.scalar("other")));
}

NamedResults run_unscale(OpUse& use) {
  Tensor self = use.input("self");
  const double inverse = use.scalar("inv_scale");
  return out(inverse == 1 ? self : engine::mul_(self, inverse));
}

// One parameter in an optimizer of its own, with the state it had.
NamedResults run_fused(OpUse& use, const char* algorithm) {
  engine::OptimizerOptions options;
  options.algorithm = algorithm;
  options.impl = engine::OptimizerImpl::kFused;
  options.lr = use.scalar("lr");
  options.weight_decay = use.scalar("weight_decay");
  Tensor self = use.input("self");
  std::vector<std::string_view> slots;
  std::int64_t steps_before = 0;
  if (options.algorithm == "sgd") {
    options.momentum = use.scalar("momentum");
    if (options.momentum != 0) slots = {"momentum_buffer"};
  } else {
    options.beta1 = use.scalar("beta1");
    options.beta2 = use.scalar("beta2");
    options.eps = use.scalar("eps");
    slots = {"exp_avg", "exp_avg_sq"};
    steps_before = integer(use, "step") - 1;
  }
  self.set_requires_grad(true);
  self.set_grad(use.input("grad"));
  const auto optimizer = engine::make_optimizer({{"parameter", self}}, options);
  engine::Optimizer::Snapshot state{.tensors = {}, .counters = {steps_before}};
  for (const std::string_view slot : slots) state.tensors.push_back(use.input(slot));
  optimizer->restore(state);
  optimizer->step();
  NamedResults results{{"self", self.detach()}};
  const auto after = optimizer->named_state();
  for (std::size_t i = 0; i < slots.size(); ++i) results.emplace_back(slots[i], after.at(i).tensor);
  return results;
}

struct Row {
  std::string_view op;
  ForwardFunction run;
};

using engine::Shape;
constexpr Row kRows[] = {
    {"_amp_foreach_non_finite_check_and_unscale_", run_unscale},
    {"_fused_adam_", [](OpUse& u) { return run_fused(u, "adam"); }},
    {"_fused_adamw_", [](OpUse& u) { return run_fused(u, "adamw"); }},
    {"_fused_sgd_", [](OpUse& u) { return run_fused(u, "sgd"); }},
    {"_prelu_kernel", [](OpUse& u) { return out(engine::prelu(u.input("self"), u.input("weight"))); }},
    {"_to_copy", [](OpUse& u) { return out(engine::to(u.input("self"), u.out_dtype)); }},
    {"abs", unary<engine::abs>},
    {"acos", unary<engine::acos>},
    {"add", sum_of_two<engine::add, engine::add>},
    {"add_", run_add_in_place},
    {"addcdiv", combined<engine::addcdiv>},
    {"addcdiv_", combined_in_place<engine::addcdiv_>},
    {"addcmul", combined<engine::addcmul>},
    {"addcmul_", combined_in_place<engine::addcmul_>},
    {"addmm", [](OpUse& u) { return out(engine::addmm(u.input("self"), u.input("mat1"), u.input("mat2"))); }},
    {"addmv", [](OpUse& u) { return out(engine::addmv(u.input("self"), u.input("mat"), u.input("vec"))); }},
    {"addr", [](OpUse& u) { return out(engine::addr(u.input("self"), u.input("vec1"), u.input("vec2"))); }},
    {"amax", [](OpUse& u) { return out(engine::amax(u.input("self"), dimension(u, "dim"), keeps_dim(u))); }},
    {"asin", unary<engine::asin>},
    {"atan2", [](OpUse& u) { return out(engine::atan2(u.input("self"), u.input("other"))); }},
    {"avg_pool2d",
     [](OpUse& u) {
       return out(
           engine::avg_pool2d(u.input("self"), integer(u, "kernel_size"), integer(u, "stride"), integer(u, "padding")));
     }},
    {"baddbmm",
     [](OpUse& u) { return out(engine::baddbmm(u.input("self"), u.input("batch1"), u.input("batch2"))); }},
    {"binary_cross_entropy", pair_loss<engine::binary_cross_entropy>},
    {"binary_cross_entropy_with_logits", pair_loss<engine::binary_cross_entropy_with_logits>},
    {"bmm", product_of_matrices<engine::bmm>},
    {"cat", run_cat},
    {"clamp", [](OpUse& u) { return out(engine::clamp(u.input("self"), u.scalar("min"), u.scalar("max"))); }},
    {"clone", unary<engine::clone>},
    {"convolution",
     [](OpUse& u) {
       const auto groups = static_cast<std::int64_t>(u.find_scalar("groups").value_or(1));  // older traces have none
       return out(engine::conv2d(u.input("input"), u.input("weight"), u.find("bias"), integer(u, "stride"),
                                 integer(u, "padding"), groups));
     }},
    {"copy_",
     [](OpUse& u) {
       Tensor self = u.input("self");
       return out(engine::copy_(self, u.input("src")));
     }},
    {"cosh", unary<engine::cosh>},
    {"div", product<engine::div, engine::div>},
    {"dot", [](OpUse& u) { return out(engine::dot(u.input("self"), u.input("tensor"))); }},
    {"embedding", [](OpUse& u) { return out(engine::embedding(u.input("weight"), u.input("indices"))); }},
    {"eq", compared<engine::eq>},
    {"exp", unary<engine::exp>},
    {"expand", [](OpUse& u) { return out(engine::expand(u.input("self"), u.out_sizes)); }},
    {"expm1", unary<engine::expm1>},
    {"fill_",
     [](OpUse& u) {
       Tensor self = u.input("self");
       return out(engine::fill_(self, u.scalar("value")));
     }},
    {"gelu",
     [](OpUse& u) {
       const bool tanh = u.scalar("approximate") != 0;
       return out(engine::gelu(u.input("self"), tanh ? engine::GeluForm::kTanh : engine::GeluForm::kErf));
     }},
    {"gt", compared<engine::gt>},
    {"huber_loss",
     [](OpUse& u) { return out(engine::huber_loss(u.input("self"), u.input("target"), u.scalar("delta"))); }},
    {"lerp_",
     [](OpUse& u) {
       Tensor self = u.input("self");
       return out(engine::lerp_(self, u.input("end"), u.scalar("weight")));
     }},
    {"log", unary<engine::log>},
    {"log10", unary<engine::log10>},
    {"log1p", unary<engine::log1p>},
    {"log2", unary<engine::log2>},
    {"log_softmax", along<engine::log_softmax>},
    {"logsumexp", [](OpUse& u) { return out(engine::logsumexp(u.input("self"), dimension(u, "dim"), keeps_dim(u))); }},
    {"masked_fill",
     [](OpUse& u) { return out(engine::masked_fill(u.input("self"), u.input("mask"), u.scalar("value"))); }},
    {"max_pool2d_with_indices",
     [](OpUse& u) {
       return out(
           engine::max_pool2d(u.input("self"), integer(u, "kernel_size"), integer(u, "stride"), integer(u, "padding")));
     }},
    {"mean", reduction<engine::mean>},
    {"mm", product_of_matrices<engine::matmul>},
    {"mse_loss", pair_loss<engine::mse_loss>},
    {"mul", product<engine::mul, engine::mul>},
    {"mul_", run_mul_in_place},
    {"mv", [](OpUse& u) { return out(engine::mv(u.input("self"), u.input("vec"))); }},
    {"narrow",
     [](OpUse& u) {
       return out(engine::narrow(u.input("self"), dimension(u, "dim"), integer(u, "start"), integer(u, "length")));
     }},
    {"native_batch_norm", run_batch_norm},
    {"native_layer_norm",
     [](OpUse& u) {
       return out(engine::layer_norm(u.input("input"), u.find("weight"), u.find("bias"), u.scalar("eps"),
                                     statistics_of(u)));
     }},
    {"neg", unary<engine::neg>},
    {"nll_loss",
     [](OpUse& u) { return out(engine::nll_loss(u.input("self"), u.input("target"), integer(u, "ignore_index"))); }},
    {"norm", reduction<engine::norm>},
    {"pow", [](OpUse& u) { return out(engine::pow(u.input("self"), u.scalar("exponent"))); }},
    {"reciprocal", unary<engine::reciprocal>},
    {"relu", unary<engine::relu>},
    {"rsqrt", unary<engine::rsqrt>},
    {"select", [](OpUse& u) { return out(engine::select(u.input("self"), dimension(u, "dim"), integer(u, "index"))); }},
    {"sigmoid", unary<engine::sigmoid>},
    {"silu", unary<engine::silu>},
    {"sinh", unary<engine::sinh>},
    {"smooth_l1_loss",
     [](OpUse& u) { return out(engine::smooth_l1_loss(u.input("self"), u.input("target"), u.scalar("beta"))); }},
    {"softmax", along<engine::softmax>},
    {"softplus",
     [](OpUse& u) { return out(engine::softplus(u.input("self"), u.scalar("beta"), u.scalar("threshold"))); }},
    {"sqrt", unary<engine::sqrt>},
    {"sub", sum_of_two<engine::sub, engine::sub>},
    {"sum", reduction<engine::sum>},
    {"t", unary<engine::t>},
    {"tan", unary<engine::tan>},
    {"tanh", unary<engine::tanh>},
    {"transpose",
     [](OpUse& u) { return out(engine::transpose(u.input("self"), dimension(u, "dim0"), dimension(u, "dim1"))); }},
    {"upsample_nearest2d",
     [](OpUse& u) { return out(engine::upsample_nearest2d(u.input("self"), integer(u, "scale"))); }},
    {"view", [](OpUse& u) { return out(engine::reshape(u.input("self"), u.out_sizes)); }},
    {"where", [](OpUse& u) { return out(engine::where(u.input("condition"), u.input("self"), u.input("other"))); }},
};
static_assert(std::is_sorted(std::begin(kRows), std::end(kRows),
                             [](const Row& a, const Row& b) { return a.op < b.op; }));

}  // namespace

Tensor OpUse::find(std::string_view slot) const {
  for (const auto& [name, tensor] : inputs) {
    if (name == slot) return tensor;
  }
  return {};
}

Tensor OpUse::input(std::string_view slot) const {
  Tensor tensor = find(slot);
  if (!tensor.defined())
    throw std::invalid_argument("[" + std::string(op) + "] expected an input '" + std::string(slot) + "', got none");
  return tensor;
}

std::optional<double> OpUse::find_scalar(std::string_view name) const {
  for (const auto& [known, value] : scalars) {
    if (known == name) return value;
  }
  return std::nullopt;
}

double OpUse::scalar(std::string_view name) const {
  if (const auto value = find_scalar(name)) return *value;
  throw std::invalid_argument("[" + std::string(op) + "] expected a scalar '" + std::string(name) + "', got none");
}

ForwardFunction forward_function(std::string_view op) {
  const auto* row = std::lower_bound(std::begin(kRows), std::end(kRows), op,
                                     [](const Row& r, std::string_view wanted) { return r.op < wanted; });
  return row != std::end(kRows) && row->op == op ? row->run : nullptr;
}

}  // namespace nanhunt::hooks
