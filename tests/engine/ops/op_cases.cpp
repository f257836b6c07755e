// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/ops/op_cases.h"

namespace nanhunt::engine::testing {
namespace {

using Inputs = std::vector<Tensor>;

Tensor leaf(const Shape& sizes, double low, double high) {
  Tensor out = spread_tensor(sizes, low, high);
  out.set_requires_grad(true);
  return out;
}

Tensor strided_leaf(const Shape& sizes, double low, double high) {
  Tensor out = strided_copy(spread_tensor(sizes, low, high));
  out.set_requires_grad(true);
  return out;
}

Tensor bools(const Shape& sizes) { return gt(spread_tensor(sizes, -1, 1), 0.0); }
Tensor indices(std::vector<std::int64_t> values) {
  const auto n = static_cast<std::int64_t>(values.size());
  return Tensor::from_indices(values, {n});
}

class Cases {
 public:
  std::vector<OpCase> list;

  void add_case(std::string op, const std::string& variant, Inputs inputs, GradFunction call,
                bool differentiable = true) {
    std::string label = op + (variant.empty() ? "" : "_" + variant);
    list.push_back({std::move(op), std::move(label), std::move(inputs), std::move(call), differentiable});
  }

  // One input between low and high: dense, strided, 0-dim, empty, and longer than a chunk.
  void unary(const std::string& op, double low, double high, Tensor (*f)(const Tensor&)) {
    unary_with(op, "", low, high, [f](const Inputs& in) { return f(in[0]); });
  }
  void unary_with(const std::string& op, const std::string& variant, double low, double high, const GradFunction& f) {
    const std::string start = variant.empty() ? "" : variant + "_";
    add_case(op, start + "dense", {leaf({2, 3}, low, high)}, f);
    add_case(op, start + "strided", {strided_leaf({3, 2, 2}, low, high)}, f);
    add_case(op, start + "scalar", {leaf({}, low, high)}, f);
    add_case(op, start + "empty", {leaf({0, 3}, low, high)}, f);
  }

  void binary(const std::string& op, double low, double high, const GradFunction& f) {
    add_case(op, "same_shape", {leaf({2, 3}, -2, 2), leaf({2, 3}, low, high)}, f);
    add_case(op, "row", {leaf({2, 3}, -2, 2), leaf({3}, low, high)}, f);
    add_case(op, "column", {leaf({2, 1}, -2, 2), leaf({2, 3}, low, high)}, f);
    add_case(op, "outer", {leaf({3, 1}, -2, 2), strided_leaf({1, 4}, low, high)}, f);
    add_case(op, "scalar_tensor", {strided_leaf({2, 3}, -2, 2), leaf({}, low, high)}, f);
    add_case(op, "strided", {strided_leaf({2, 3}, -2, 2), strided_leaf({2, 2, 3}, low, high)}, f);
    Tensor constant = spread_tensor({2, 3}, low, high);
    add_case(op, "one_wanted", {leaf({2, 3}, -2, 2), constant}, f);
    add_case(op, "empty", {leaf({0, 3}, -2, 2), leaf({3}, low, high)}, f);
  }
};

void add_elementwise(Cases& c) {
  c.binary("add", -2, 2, [](const Inputs& in) { return add(in[0], in[1], 0.75); });
  c.binary("sub", -2, 2, [](const Inputs& in) { return sub(in[0], in[1], 1.5); });
  c.binary("mul", -2, 2, [](const Inputs& in) { return mul(in[0], in[1]); });
  c.binary("div", 0.5, 2, [](const Inputs& in) { return div(in[0], in[1]); });
  c.unary_with("add", "number", -2, 2, [](const Inputs& in) { return add(in[0], 1.5); });
  c.unary_with("sub", "number", -2, 2, [](const Inputs& in) { return sub(in[0], 1.5); });
  c.unary_with("mul", "number", -2, 2, [](const Inputs& in) { return mul(in[0], 1.5); });
  c.unary_with("div", "number", -2, 2, [](const Inputs& in) { return div(in[0], 1.5); });
  c.unary_with("div", "number_over", 0.5, 2, [](const Inputs& in) { return div(1.5, in[0]); });
  const GradFunction addcmul_of = [](const Inputs& in) { return addcmul(in[0], in[1], in[2], 0.75); };
  const GradFunction addcdiv_of = [](const Inputs& in) { return addcdiv(in[0], in[1], in[2], 0.75); };
  c.add_case("addcmul", "", {leaf({2, 3}, -2, 2), leaf({2, 3}, -2, 2), leaf({2, 3}, -2, 2)}, addcmul_of);
  c.add_case("addcmul", "broadcast", {leaf({3}, -2, 2), strided_leaf({2, 1}, -2, 2), leaf({}, 1, 2)}, addcmul_of);
  c.add_case("addcmul", "one_wanted", {spread_tensor({3}, -2, 2), leaf({3}, -2, 2), spread_tensor({3}, 1, 2)},
             addcmul_of);
  c.add_case("addcdiv", "", {leaf({2, 3}, -2, 2), leaf({2, 3}, -2, 2), leaf({2, 3}, 0.5, 2)}, addcdiv_of);
  c.add_case("addcdiv", "broadcast", {leaf({3}, -2, 2), strided_leaf({2, 1}, -2, 2), leaf({}, 1, 2)}, addcdiv_of);
  for (double p : {-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 1.7}) {
    std::string name = "exponent" + std::to_string(static_cast<int>(p * 10));
    std::replace(name.begin(), name.end(), '-', 'm');
    c.unary_with("pow", name, 0.5, 2, [p](const Inputs& in) { return pow(in[0], p); });
  }
  c.unary("neg", -2, 2, neg);
  c.unary("abs", -2, 2, abs);
  c.unary("exp", -2, 2, exp);
  c.unary("log", 0.5, 3, log);
  c.unary("expm1", -2, 2, expm1);
  c.unary("log10", 0.5, 3, log10);
  c.unary("log2", 0.5, 3, log2);
  c.unary("log1p", -0.5, 3, log1p);
  c.unary("sinh", -2, 2, sinh);
  c.unary("cosh", -2, 2, cosh);
  c.unary("tan", -1, 1, tan);
  c.unary("asin", -0.9, 0.9, asin);
  c.unary("acos", -0.9, 0.9, acos);
  c.unary_with("softplus", "", -2, 2, [](const Inputs& in) { return softplus(in[0]); });
  c.unary_with("softplus", "linear", -2, 2, [](const Inputs& in) { return softplus(in[0], 1.5, 1); });
  c.binary("atan2", 0.5, 2, [](const Inputs& in) { return atan2(in[0], in[1]); });
  const GradFunction prelu_of = [](const Inputs& in) { return prelu(in[0], in[1]); };
  c.add_case("prelu", "one", {strided_leaf({2, 3}, -2, 2), leaf({1}, 0.1, 0.3)}, prelu_of);
  c.add_case("prelu", "channels", {leaf({2, 3, 2}, -2, 2), leaf({3}, 0.1, 0.9)}, prelu_of);
  c.add_case("prelu", "vector", {leaf({4}, -2, 2), leaf({1}, 0.1, 0.3)}, prelu_of);
  c.unary("sqrt", 0.5, 3, sqrt);
  c.unary("rsqrt", 0.5, 3, rsqrt);
  c.unary("relu", -2, 2, relu);
  c.unary("tanh", -2, 2, tanh);
  c.unary("sigmoid", -2, 2, sigmoid);
  c.unary_with("clamp", "", -2, 2, [](const Inputs& in) { return clamp(in[0], -0.7, 0.9); });
  // Only fp64 -> fp64 has differences fine enough; the conversions themselves have their own tests.
  c.unary_with("to", "", -2, 2, [](const Inputs& in) { return to(in[0], DType::kF64); });
  c.add_case("where", "same_shape", {bools({2, 3}), leaf({2, 3}, -2, 2), leaf({2, 3}, 1, 2)},
             [](const Inputs& in) { return where(in[0], in[1], in[2]); });
  c.add_case("where", "broadcast", {bools({3}), strided_leaf({2, 1}, -2, 2), leaf({}, 1, 2)},
             [](const Inputs& in) { return where(in[0], in[1], in[2]); });
  c.add_case("masked_fill", "row", {strided_leaf({2, 3}, -2, 2), bools({3})},
             [](const Inputs& in) { return masked_fill(in[0], in[1], -3); });
  c.add_case("masked_fill", "grows", {leaf({3}, -2, 2), bools({2, 3})},
             [](const Inputs& in) { return masked_fill(in[0], in[1], -3); });
  c.add_case(
      "eq", "", {leaf({2, 3}, -2, 2)}, [](const Inputs& in) { return eq(in[0], 1.0); }, false);
  c.add_case(
      "gt", "", {leaf({2, 3}, -2, 2)}, [](const Inputs& in) { return gt(in[0], 0.0); }, false);
}

void add_reductions(Cases& c) {
  const auto reductions = [&c](const std::string& op, auto f) {
    for (bool keepdim : {false, true}) {
      const std::string kept = keepdim ? "_kept" : "";
      c.add_case(op, "all" + kept, {strided_leaf({2, 3}, -2, 2)},
                 [=](const Inputs& in) { return f(in[0], std::optional<int>(), keepdim); });
      for (int dim : {0, 1, -1}) {
        const std::string name = "dim" + std::to_string(dim < 0 ? 9 : dim) + kept;
        c.add_case(op, name, {leaf({2, 3, 2}, -2, 2)},
                   [=](const Inputs& in) { return f(in[0], std::optional<int>(dim), keepdim); });
      }
    }
    c.add_case(op, "scalar", {leaf({}, 1, 2)}, [=](const Inputs& in) { return f(in[0], std::optional<int>(), false); });
    c.add_case(op, "long", {leaf({1100}, -2, 2)},
               [=](const Inputs& in) { return f(in[0], std::optional<int>(), false); });
  };
  reductions("sum", [](const Tensor& x, std::optional<int> d, bool k) { return sum(x, d, k); });
  reductions("mean", [](const Tensor& x, std::optional<int> d, bool k) { return mean(x, d, k); });
  reductions("norm", [](const Tensor& x, std::optional<int> d, bool k) { return norm(x, d, k); });
  c.add_case(
      "amax", "", {leaf({2, 3}, -2, 2)}, [](const Inputs& in) { return amax(in[0], 1); }, false);
  for (int dim : {0, 1}) {
    const std::string name = "dim" + std::to_string(dim);
    c.add_case("logsumexp", name, {strided_leaf({3, 4}, -2, 2)},
               [dim](const Inputs& in) { return logsumexp(in[0], dim); });
    c.add_case("logsumexp", name + "_kept", {leaf({3, 4, 2}, -2, 2)},
               [dim](const Inputs& in) { return logsumexp(in[0], dim, true); });
    c.add_case("softmax", name, {strided_leaf({3, 4}, -2, 2)}, [dim](const Inputs& in) { return softmax(in[0], dim); });
    c.add_case("log_softmax", name, {strided_leaf({3, 4}, -2, 2)},
               [dim](const Inputs& in) { return log_softmax(in[0], dim); });
  }
  c.add_case("nll_loss", "", {strided_leaf({3, 4}, -2, -1), indices({2, 0, 3})},
             [](const Inputs& in) { return nll_loss(in[0], in[1]); });
  c.add_case("nll_loss", "ignored", {leaf({3, 4}, -2, -1), indices({2, -100, 3})},
             [](const Inputs& in) { return nll_loss(in[0], in[1]); });
  c.add_case("cross_entropy", "", {leaf({3, 4}, -2, 2), indices({2, 0, 3})},
             [](const Inputs& in) { return cross_entropy(in[0], in[1]); });
}

void add_linear_algebra(Cases& c) {
  const GradFunction mm = [](const Inputs& in) { return matmul(in[0], in[1]); };
  const GradFunction with_bias = [](const Inputs& in) { return addmm(in[0], in[1], in[2]); };
  c.add_case("matmul", "dense", {leaf({2, 3}, -2, 2), leaf({3, 4}, -2, 2)}, mm);
  c.add_case("matmul", "strided", {strided_leaf({2, 3}, -2, 2), strided_leaf({3, 4}, -2, 2)}, mm);
  c.add_case("matmul", "thin", {leaf({4, 1}, -2, 2), leaf({1, 3}, -2, 2)}, mm);
  c.add_case("matmul", "one_wanted", {spread_tensor({2, 3}, -2, 2), leaf({3, 4}, -2, 2)}, mm);
  c.add_case("matmul", "nothing_inside", {leaf({2, 0}, -2, 2), leaf({0, 4}, -2, 2)}, mm);
  c.add_case("matmul", "vectors", {leaf({3}, -2, 2), strided_leaf({3}, -2, 2)}, mm);
  c.add_case("matmul", "vector_on_the_right", {strided_leaf({2, 3}, -2, 2), leaf({3}, -2, 2)}, mm);
  c.add_case("matmul", "batch_with_vector", {leaf({2, 2, 3}, -2, 2), leaf({3}, -2, 2)}, mm);
  c.add_case("matmul", "vector_on_the_left", {leaf({3}, -2, 2), leaf({3, 4}, -2, 2)}, mm);
  c.add_case("matmul", "vector_with_batch", {leaf({3}, -2, 2), leaf({2, 3, 4}, -2, 2)}, mm);
  const GradFunction mv_of = [](const Inputs& in) { return mv(in[0], in[1]); };
  const GradFunction dot_of = [](const Inputs& in) { return dot(in[0], in[1]); };
  c.add_case("mv", "", {leaf({2, 3}, -2, 2), strided_leaf({3}, -2, 2)}, mv_of);
  c.add_case("mv", "one_wanted", {spread_tensor({2, 3}, -2, 2), leaf({3}, -2, 2)}, mv_of);
  const GradFunction addmv_of = [](const Inputs& in) { return addmv(in[0], in[1], in[2]); };
  const GradFunction addr_of = [](const Inputs& in) { return addr(in[0], in[1], in[2]); };
  const GradFunction baddbmm_of = [](const Inputs& in) { return baddbmm(in[0], in[1], in[2]); };
  c.add_case("addmv", "", {leaf({2}, -2, 2), strided_leaf({2, 3}, -2, 2), leaf({3}, -2, 2)}, addmv_of);
  c.add_case("addmv", "broadcast", {leaf({}, 1, 2), leaf({2, 3}, -2, 2), spread_tensor({3}, -2, 2)}, addmv_of);
  c.add_case("addr", "", {leaf({2, 3}, -2, 2), leaf({2}, -2, 2), strided_leaf({3}, -2, 2)}, addr_of);
  c.add_case("addr", "broadcast", {leaf({3}, -2, 2), leaf({2}, -2, 2), spread_tensor({3}, -2, 2)}, addr_of);
  c.add_case("baddbmm", "", {leaf({2, 3, 2}, -2, 2), leaf({2, 3, 4}, -2, 2), strided_leaf({2, 4, 2}, -2, 2)},
             baddbmm_of);
  c.add_case("baddbmm", "broadcast", {leaf({3, 1}, -2, 2), leaf({2, 3, 4}, -2, 2), spread_tensor({2, 4, 2}, -2, 2)},
             baddbmm_of);
  c.add_case("dot", "", {leaf({3}, -2, 2), strided_leaf({3}, -2, 2)}, dot_of);
  c.add_case("dot", "one_wanted", {leaf({3}, -2, 2), spread_tensor({3}, -2, 2)}, dot_of);
  c.add_case("dot", "of_nothing", {leaf({0}, -2, 2), leaf({0}, -2, 2)}, dot_of);
  c.add_case("addmm", "row", {leaf({4}, -2, 2), leaf({2, 3}, -2, 2), leaf({3, 4}, -2, 2)}, with_bias);
  c.add_case("addmm", "column", {leaf({2, 1}, -2, 2), strided_leaf({2, 3}, -2, 2), leaf({3, 4}, -2, 2)}, with_bias);
  c.add_case("linear", "", {leaf({2, 3}, -2, 2), leaf({4, 3}, -2, 2), leaf({4}, -2, 2)},
             [](const Inputs& in) { return linear(in[0], in[1], in[2]); });
  c.add_case("linear", "no_bias", {leaf({2, 3}, -2, 2), leaf({4, 3}, -2, 2)},
             [](const Inputs& in) { return linear(in[0], in[1], Tensor()); });
  c.add_case("embedding", "", {leaf({4, 3}, -2, 2), indices({1, 3, 1})},
             [](const Inputs& in) { return embedding(in[0], in[1]); });
  c.add_case("embedding", "strided_2d",
             {strided_leaf({4, 3}, -2, 2), Tensor::from_indices(std::vector<std::int64_t>{0, 0, 2, 3}, {2, 2})},
             [](const Inputs& in) { return embedding(in[0], in[1]); });
}

void add_views(Cases& c) {
  c.add_case("t", "", {leaf({2, 3}, -2, 2)}, [](const Inputs& in) { return t(in[0]); });
  c.add_case("clone", "", {strided_leaf({2, 3}, -2, 2)}, [](const Inputs& in) { return clone(in[0]); });
  c.add_case("reshape", "dense", {leaf({2, 3}, -2, 2)}, [](const Inputs& in) { return reshape(in[0], {3, -1}); });
  c.add_case("reshape", "strided", {strided_leaf({2, 3}, -2, 2)}, [](const Inputs& in) { return reshape(in[0], {6}); });
  c.add_case("reshape", "of_transposed_gradient", {leaf({2, 3}, -2, 2)}, [](const Inputs& in) {
    return t(reshape(in[0], {3, 2}));
  });
  c.add_case("narrow", "", {strided_leaf({4, 3}, -2, 2)}, [](const Inputs& in) { return narrow(in[0], 0, 1, 2); });
  c.add_case("narrow", "empty", {leaf({4, 3}, -2, 2)}, [](const Inputs& in) { return narrow(in[0], -1, 3, 0); });
  c.add_case("select", "", {leaf({4, 3}, -2, 2)}, [](const Inputs& in) { return select(in[0], 1, -1); });
  c.add_case("select", "to_scalar", {leaf({4}, -2, 2)}, [](const Inputs& in) { return select(in[0], 0, 2); });
}

}  // namespace

std::vector<OpCase> op_cases() {
  Cases c;
  add_elementwise(c);
  add_reductions(c);
  add_linear_algebra(c);
  add_views(c);
  for (OpCase& more : transformer_op_cases()) c.list.push_back(std::move(more));
  for (OpCase& more : vision_op_cases()) c.list.push_back(std::move(more));
  return std::move(c.list);
}

std::vector<OpCase> inplace_cases() {
  const auto tensor = [](double low) { return strided_copy(spread_tensor({2, 3}, low, 2)); };
  Cases c;
  c.add_case(
      "fill_", "", {tensor(-2)}, [](Inputs in) { return fill_(in[0], 3); }, false);
  c.add_case(
      "copy_", "", {tensor(-2), tensor(-1)}, [](Inputs in) { return copy_(in[0], in[1]); }, false);
  c.add_case(
      "add_", "", {tensor(-2), tensor(-1)}, [](Inputs in) { return add_(in[0], in[1], 0.5); }, false);
  c.add_case(
      "add_", "number", {tensor(-2)}, [](Inputs in) { return add_(in[0], 0.5); }, false);
  c.add_case(
      "mul_", "", {tensor(-2)}, [](Inputs in) { return mul_(in[0], 0.5); }, false);
  c.add_case(
      "mul_", "tensor", {tensor(-2), tensor(-1)}, [](Inputs in) { return mul_(in[0], in[1]); }, false);
  c.add_case(
      "lerp_", "", {tensor(-2), tensor(-1)}, [](Inputs in) { return lerp_(in[0], in[1], 0.1); }, false);
  c.add_case(
      "addcmul_", "", {tensor(-2), tensor(-1), tensor(0.5)},
      [](Inputs in) { return addcmul_(in[0], in[1], in[2], 0.5); }, false);
  c.add_case(
      "addcdiv_", "", {tensor(-2), tensor(-1), tensor(0.5)},
      [](Inputs in) { return addcdiv_(in[0], in[1], in[2], 0.5); }, false);
  return std::move(c.list);
}

}  // namespace nanhunt::engine::testing
