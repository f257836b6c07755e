// SPDX-License-Identifier: Apache-2.0
// Cases of what transformers are made of.
#include "nanhunt/engine/random.h"
#include "tests/engine/ops/op_cases.h"

namespace nanhunt::engine::testing {
namespace {

using Inputs = std::vector<Tensor>;

Tensor leaf(const Shape& sizes, double low = -2, double high = 2) {
  return spread_tensor(sizes, low, high).set_requires_grad(true);
}
Tensor strided_leaf(const Shape& sizes, double low = -2, double high = 2) {
  return strided_copy(spread_tensor(sizes, low, high)).set_requires_grad(true);
}

// Everything after position t, as a causal model hides it.
Tensor later(std::int64_t length) {
  Tensor mask = Tensor::zeros({length, length}, DType::kBool);
  for (std::int64_t t = 0; t < length; ++t) {
    for (std::int64_t s = t + 1; s < length; ++s) mask.data<std::uint8_t>()[t * length + s] = 1;
  }
  return mask;
}

}  // namespace

std::vector<OpCase> transformer_op_cases() {
  std::vector<OpCase> list;
  const auto add_case = [&list](const std::string& op, const std::string& variant, Inputs inputs, GradFunction call) {
    list.push_back({op, op + "_" + variant, std::move(inputs), std::move(call)});
  };
  const auto elementwise = [&](const std::string& op, const std::string& variant, double low, double high,
                               const GradFunction& f) {
    add_case(op, variant + "dense", {leaf({2, 3}, low, high)}, f);
    add_case(op, variant + "strided", {strided_leaf({3, 2, 2}, low, high)}, f);
    add_case(op, variant + "empty", {leaf({0, 3}, low, high)}, f);
  };
  elementwise("reciprocal", "", 0.5, 2, [](const Inputs& in) { return reciprocal(in[0]); });
  elementwise("silu", "", -3, 3, [](const Inputs& in) { return silu(in[0]); });
  elementwise("gelu", "", -3, 3, [](const Inputs& in) { return gelu(in[0]); });
  elementwise("gelu", "tanh_", -3, 3, [](const Inputs& in) { return gelu(in[0], GeluForm::kTanh); });

  const GradFunction batched = [](const Inputs& in) { return bmm(in[0], in[1]); };
  add_case("bmm", "dense", {leaf({2, 2, 3}), leaf({2, 3, 4})}, batched);
  add_case("bmm", "strided", {strided_leaf({2, 2, 3}), strided_leaf({2, 3, 4})}, batched);
  add_case("bmm", "transposed", {leaf({2, 3, 2}), leaf({2, 4, 3})}, [](const Inputs& in) {
    return bmm(transpose(in[0], 1, 2), transpose(in[1], 1, 2));
  });
  add_case("bmm", "one_wanted", {spread_tensor({2, 2, 3}, -2, 2), leaf({2, 3, 4})}, batched);
  add_case("bmm", "empty", {leaf({2, 2, 0}), leaf({2, 0, 4})}, batched);

  const GradFunction product = [](const Inputs& in) { return matmul(in[0], in[1]); };
  add_case("matmul", "batch", {leaf({2, 2, 3}), leaf({2, 3, 4})}, product);
  add_case("matmul", "two_batch_dims", {leaf({2, 3, 1, 2}), strided_leaf({2, 3, 2, 2})}, product);
  add_case("matmul", "batch_broadcast", {leaf({2, 1, 2, 3}), leaf({3, 3, 2})}, product);
  add_case("matmul", "batch_times_matrix", {leaf({2, 2, 3}), leaf({3, 4})}, product);
  add_case("linear", "batch", {leaf({2, 2, 3}), leaf({4, 3}), leaf({4})},
           [](const Inputs& in) { return linear(in[0], in[1], in[2]); });

  add_case("transpose", "ends", {leaf({2, 3, 2})}, [](const Inputs& in) { return transpose(in[0], 0, -1); });
  add_case("permute", "last_first", {strided_leaf({2, 3, 4})}, [](const Inputs& in) {
    return permute(in[0], {2, 0, -2});
  });
  add_case("expand", "rows", {leaf({2, 1})}, [](const Inputs& in) { return expand(in[0], {3, 2, 4}); });

  const GradFunction normalise = [](const Inputs& in) { return layer_norm(in[0], in[1], in[2], 1e-3); };
  add_case("layer_norm", "affine", {leaf({2, 3, 5}), leaf({5}), leaf({5})}, normalise);
  add_case("layer_norm", "strided", {strided_leaf({3, 4}), strided_leaf({4}), leaf({4})}, normalise);
  add_case("layer_norm", "no_bias", {leaf({3, 4}), leaf({4})},
           [](const Inputs& in) { return layer_norm(in[0], in[1], {}); });
  add_case("layer_norm", "plain", {leaf({3, 4})}, [](const Inputs& in) { return layer_norm(in[0], {}, {}); });
  add_case("layer_norm", "bias_wanted", {spread_tensor({3, 4}, -2, 2), spread_tensor({4}, 1, 2), leaf({4})}, normalise);
  const GradFunction by_root = [](const Inputs& in) { return rms_norm(in[0], in[1], 1e-3); };
  add_case("rms_norm", "weight", {leaf({2, 3, 5}), leaf({5})}, by_root);
  add_case("rms_norm", "strided", {strided_leaf({3, 4}), strided_leaf({4})}, by_root);
  add_case("rms_norm", "plain", {leaf({3, 4})}, [](const Inputs& in) { return rms_norm(in[0], {}); });
  add_case("layer_norm", "long", {leaf({2, 1100}), leaf({1100}), leaf({1100})}, normalise);

  // A fresh stream each time: finite differences must see one mask.
  const auto drop = [](double p) {
    return [p](const Inputs& in) {
      RandomStream random(7, 3);
      return dropout(in[0], p, random);
    };
  };
  add_case("dropout", "some", {leaf({3, 4})}, drop(0.3));
  add_case("dropout", "strided", {strided_leaf({3, 4})}, drop(0.5));
  add_case("dropout", "all", {leaf({3, 4})}, drop(1));
  add_case("dropout", "none", {leaf({3, 4})}, drop(0));

  const auto attend = [](AttentionOptions options) {
    return [options](const Inputs& in) {
      RandomStream random(7, 4);
      AttentionOptions with_stream = options;
      with_stream.random = &random;
      if (in.size() > 3) with_stream.mask = in[3];
      return scaled_dot_product_attention(in[0], in[1], in[2], with_stream);
    };
  };
  const std::string attention = "scaled_dot_product_attention";
  const auto qkv = [] { return Inputs{leaf({2, 3, 4}), leaf({2, 3, 4}), leaf({2, 3, 2})}; };
  add_case(attention, "plain", qkv(), attend({}));
  add_case(attention, "causal", qkv(), attend({.mask = later(3), .key_mask = {}}));
  add_case(attention, "added", {leaf({2, 3, 4}), leaf({2, 3, 4}), leaf({2, 3, 2}), leaf({3, 3})}, attend({}));
  Tensor padded = Tensor::zeros({2, 1, 3}, DType::kBool);
  padded.data<std::uint8_t>()[2] = 1;
  add_case(attention, "everything", qkv(), attend({.mask = later(3), .key_mask = padded, .dropout = 0.25}));
  return list;
}

std::vector<std::pair<std::string, std::vector<std::string>>> transformer_op_lines() {
  const std::string bmm_backward =
      "backward bmm_backward/fp64 grad_output:0 self:0(saved) mat2:0(saved) -> grad_self:0 grad_mat2:0";
  return {
      {"reciprocal_dense",
       {"forward reciprocal/fp64 self:0 -> out:0",
        "backward reciprocal_backward/fp64 grad_output:0 result:0(saved) -> grad_self:0"}},
      {"silu_dense",
       {"forward silu/fp64 self:0 -> out:0",
        "backward silu_backward/fp64 grad_output:0 self:0(saved) -> grad_self:0"}},
      {"gelu_dense",
       {"forward gelu/fp64 self:0 -> out:0 {approximate=0}",
        "backward gelu_backward/fp64 grad_output:0 self:0(saved) -> grad_self:0 {approximate=0}"}},
      {"gelu_tanh_dense",
       {"forward gelu/fp64 self:0 -> out:0 {approximate=1}",
        "backward gelu_backward/fp64 grad_output:0 self:0(saved) -> grad_self:0 {approximate=1}"}},
      {"bmm_dense", {"forward bmm/fp64 self:0 mat2:0 -> out:0", bmm_backward}},
      {"bmm_one_wanted",
       {"forward bmm/fp64 self:0 mat2:0 -> out:0",
        "backward bmm_backward/fp64 grad_output:0 self:0(saved) -> grad_mat2:0"}},
      {"matmul_batch", {"forward bmm/fp64 self:0 mat2:0 -> out:0", bmm_backward}},
      {"matmul_batch_times_matrix",
       {"forward view/fp64 self:0 -> out:0", "forward mm/fp64 self:0 mat2:0 -> out:0",
        "forward view/fp64 self:0 -> out:0", "backward view_backward/fp64 grad_output:0 -> grad_self:0",
        "backward mm_backward/fp64 grad_output:0 self:0(saved) mat2:0(saved) -> grad_self:0 grad_mat2:0",
        "backward view_backward/fp64 grad_output:0 -> grad_self:0"}},
      {"linear_batch",
       {"forward view/fp64 self:0 -> out:0", "forward t/fp64 self:0 -> out:0",
        "forward addmm/fp64 self:0 mat1:0 mat2:0 -> out:0", "forward view/fp64 self:0 -> out:0",
        "backward view_backward/fp64 grad_output:0 -> grad_self:0",
        "backward addmm_backward/fp64 grad_output:0 mat1:0(saved) mat2:0(saved) -> grad_self:0 grad_mat1:0 grad_mat2:0",
        "backward t_backward/fp64 grad_output:0 -> grad_self:0",
        "backward view_backward/fp64 grad_output:0 -> grad_self:0"}},
      {"transpose_ends",
       {"forward transpose/fp64 self:0 -> out:0 {dim0=0 dim1=2}",
        "backward transpose_backward/fp64 grad_output:0 -> grad_self:0 {dim0=0 dim1=2}"}},
      {"permute_last_first",
       {"forward permute/fp64 self:1 -> out:1", "backward permute_backward/fp64 grad_output:0 -> grad_self:0"}},
      {"expand_rows",
       {"forward expand/fp64 self:0 -> out:0", "backward expand_backward/fp64 grad_output:0 -> grad_self:0"}},
      {"layer_norm_affine",
       {"forward native_layer_norm/fp64 input:0 weight:0 bias:0 -> out:0 mean:0 rstd:0 {eps=0.001}",
        "backward native_layer_norm_backward/fp64 grad_output:0 input:0(saved) mean:0(saved) rstd:0(saved) "
        "weight:0(saved) -> grad_input:0 grad_weight:0 grad_bias:0 {eps=0.001}"}},
      {"layer_norm_plain",
       {"forward native_layer_norm/fp64 input:0 -> out:0 mean:0 rstd:0 {eps=1e-05}",
        "backward native_layer_norm_backward/fp64 grad_output:0 input:0(saved) mean:0(saved) rstd:0(saved) -> "
        "grad_input:0 {eps=1e-05}"}},
      {"dropout_strided",
       {"forward native_dropout/fp64 input:1 -> out:0 mask:0 {p=0.5 scale=2}",
        "backward native_dropout_backward/fp64 grad_output:0 mask:0(mask) -> grad_input:0 {p=0.5 scale=2}"}},
      {"scaled_dot_product_attention_causal",
       {"forward transpose/fp64 self:0 -> out:0 {dim0=1 dim1=2}", "forward bmm/fp64 self:0 mat2:0 -> out:0",
        "forward mul/fp64 self:0 -> out:0 {other=0.5}",
        "forward masked_fill/fp64 self:0 mask:0(mask) -> out:0 {value=-inf}",
        "forward softmax/fp64 self:0 -> out:0 {dim=2}", "forward bmm/fp64 self:0 mat2:0 -> out:0",
        bmm_backward, "backward softmax_backward/fp64 grad_output:0 result:0(saved) -> grad_self:0 {dim=2}",
        "backward masked_fill_backward/fp64 grad_output:0 mask:0(mask) -> grad_self:0 {value=-inf}",
        "backward mul_backward/fp64 grad_output:0 -> grad_self:0 {other=0.5}", bmm_backward,
        "backward transpose_backward/fp64 grad_output:0 -> grad_self:0 {dim0=1 dim1=2}"}},
  };
}

}  // namespace nanhunt::engine::testing
