// SPDX-License-Identifier: Apache-2.0
// Cases of what image models are made of, and of the losses between two tensors.
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

class Cases {
 public:
  std::vector<OpCase> list;

  void add(const std::string& op, const std::string& variant, Inputs inputs, GradFunction call) {
    const std::string label = op + (variant.empty() ? "" : "_" + variant);
    list.push_back({op, label, std::move(inputs), std::move(call)});
  }
};

void add_convolutions(Cases& c) {
  const auto conv = [](std::int64_t stride, std::int64_t padding, std::int64_t groups = 1) {
    return [=](const Inputs& in) {
      return conv2d(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), stride, padding, groups);
    };
  };
  c.add("conv2d", "same_size", {leaf({2, 3, 5, 4}), leaf({4, 3, 3, 3}), leaf({4})}, conv(1, 1));
  c.add("conv2d", "no_bias", {leaf({2, 2, 4, 4}), leaf({3, 2, 3, 3})}, conv(1, 0));
  c.add("conv2d", "one_by_one", {leaf({3, 2, 2, 3}), leaf({4, 2, 1, 1}), leaf({4})}, conv(1, 0));
  c.add("conv2d", "with_steps", {leaf({2, 2, 5, 6}), leaf({3, 2, 3, 3}), leaf({3})}, conv(2, 1));
  c.add("conv2d", "steps_over_pixels", {leaf({1, 1, 7, 7}), leaf({1, 1, 2, 2})}, conv(3, 0));
  c.add("conv2d", "wide_padding", {leaf({1, 2, 2, 3}), leaf({2, 2, 3, 3}), leaf({2})}, conv(1, 3));
  c.add("conv2d", "window_not_square", {leaf({2, 1, 4, 5}), leaf({2, 1, 1, 3})}, conv(1, 1));
  c.add("conv2d", "strided", {strided_leaf({2, 2, 4, 4}), strided_leaf({3, 2, 3, 3}), strided_leaf({3})}, conv(1, 1));
  c.add("conv2d", "groups", {leaf({2, 4, 5, 4}), leaf({6, 2, 3, 3}), leaf({6})}, conv(1, 1, 2));
  c.add("conv2d", "groups_of_one_channel", {strided_leaf({2, 3, 4, 4}), strided_leaf({6, 1, 2, 2})}, conv(2, 1, 3));
  c.add("conv2d", "groups_input_not_wanted", {spread_tensor({1, 4, 3, 3}, -2, 2), leaf({4, 2, 3, 3}), leaf({4})},
        conv(1, 1, 2));
  c.add("conv2d", "input_not_wanted", {spread_tensor({2, 2, 4, 4}, -2, 2), leaf({3, 2, 3, 3}), leaf({3})}, conv(1, 1));
  c.add("conv2d", "weight_not_wanted", {leaf({2, 2, 4, 4}), spread_tensor({3, 2, 3, 3}, -2, 2)}, conv(1, 1));
  c.add("conv2d", "empty_batch", {leaf({0, 2, 4, 4}), leaf({3, 2, 3, 3}), leaf({3})}, conv(1, 1));
}

void add_normalisations(Cases& c) {
  const auto norm = [](bool training) {
    return [=](const Inputs& in) {
      Tensor mean = in[3], var = in[4];
      return batch_norm(in[0], in[1], in[2], mean, var, training, 0.2, 1e-3);
    };
  };
  const auto statistics = [](Inputs inputs) {
    const Shape sizes = inputs[1].sizes();
    inputs.push_back(spread_tensor(sizes, -1, 1));
    inputs.push_back(spread_tensor(sizes, 0.5, 2));
    return inputs;
  };
  c.add("batch_norm", "training", statistics({leaf({3, 2, 2, 3}), leaf({2}, 0.5, 2), leaf({2})}), norm(true));
  c.add("batch_norm", "training_strided", statistics({strided_leaf({3, 2, 4}), strided_leaf({2}, 0.5, 2), leaf({2})}),
        norm(true));
  c.add("batch_norm", "training_rows", statistics({leaf({4, 3}), leaf({3}, 0.5, 2), leaf({3})}), norm(true));
  c.add("batch_norm", "only_parameters_wanted",
        statistics({spread_tensor({3, 2, 2, 2}, -2, 2), leaf({2}, 0.5, 2), leaf({2})}), norm(true));
  c.add("batch_norm", "statistics_of_the_input", statistics({leaf({3, 2, 4}), leaf({2}, 0.5, 2), leaf({2})}),
        [](const Inputs& in) {
          Tensor mean = in[3], var = in[4];
          return batch_norm(in[0], in[1], in[2], mean, var, true, 0.2, 1e-3, NormStatistics::kInput);
        });
  c.add("batch_norm", "evaluation", statistics({leaf({3, 2, 2, 3}), leaf({2}, 0.5, 2), leaf({2})}), norm(false));
  c.add("batch_norm", "evaluation_of_one", statistics({leaf({1, 2}), leaf({2}, 0.5, 2), leaf({2})}), norm(false));
}

void add_pooling(Cases& c) {
  const auto max = [](std::int64_t k, std::int64_t s, std::int64_t p) {
    return [=](const Inputs& in) { return max_pool2d(in[0], k, s, p); };
  };
  const auto avg = [](std::int64_t k, std::int64_t s, std::int64_t p) {
    return [=](const Inputs& in) { return avg_pool2d(in[0], k, s, p); };
  };
  c.add("max_pool2d", "halves", {leaf({2, 2, 4, 6})}, max(2, 0, 0));
  c.add("max_pool2d", "overlapping", {leaf({1, 2, 5, 5})}, max(3, 2, 1));
  c.add("max_pool2d", "rest_is_left_out", {strided_leaf({1, 2, 5, 3})}, max(2, 0, 0));
  c.add("avg_pool2d", "halves", {leaf({2, 2, 4, 6})}, avg(2, 0, 0));
  c.add("avg_pool2d", "overlapping", {leaf({1, 2, 5, 5})}, avg(3, 2, 1));
  c.add("avg_pool2d", "whole_image", {strided_leaf({2, 3, 4, 4})}, avg(4, 0, 0));
  for (std::int64_t scale : {1, 2, 3}) {
    c.add("upsample_nearest2d", "by_" + std::to_string(scale), {strided_leaf({2, 2, 2, 3})},
          [=](const Inputs& in) { return upsample_nearest2d(in[0], scale); });
  }
}

void add_losses(Cases& c) {
  const auto both = [&c](const std::string& op, const std::string& variant, const GradFunction& f) {
    // Some differences on either side of 0, none near it.
    const std::string start = variant.empty() ? "" : variant + "_";
    c.add(op, variant, {leaf({2, 3}, -2, 2), leaf({2, 3}, -1.7, 1.9)}, f);
    c.add(op, start + "strided", {strided_leaf({2, 3, 2}, -2, 2), strided_leaf({2, 3, 2}, -1.7, 1.9)}, f);
    c.add(op, start + "target_fixed", {leaf({5}, -2, 2), spread_tensor({5}, -1.7, 1.9)}, f);
  };
  both("l1_loss", "", [](const Inputs& in) { return l1_loss(in[0], in[1]); });
  both("mse_loss", "", [](const Inputs& in) { return mse_loss(in[0], in[1]); });
  both("smooth_l1_loss", "", [](const Inputs& in) { return smooth_l1_loss(in[0], in[1]); });
  both("smooth_l1_loss", "narrow", [](const Inputs& in) { return smooth_l1_loss(in[0], in[1], 0.15); });
  both("huber_loss", "", [](const Inputs& in) { return huber_loss(in[0], in[1]); });
  both("huber_loss", "narrow", [](const Inputs& in) { return huber_loss(in[0], in[1], 0.15); });
  const auto labels = [](std::vector<double> values) {
    const auto n = static_cast<std::int64_t>(values.size());
    return Tensor::from_values(values, {n}, DType::kF64);
  };
  c.add("margin_ranking_loss", "", {leaf({4}, -2, 2), leaf({4}, -1.7, 1.9), labels({1, -1, -1, 1})},
        [](const Inputs& in) { return margin_ranking_loss(in[0], in[1], in[2], 0.3); });
  c.add("hinge_embedding_loss", "", {strided_leaf({4}, -2, 2), labels({1, -1, -1, 1})},
        [](const Inputs& in) { return hinge_embedding_loss(in[0], in[1]); });
  c.add("triplet_margin_loss", "", {leaf({3, 2}, -2, 2), leaf({3, 2}, -1.7, 1.9), leaf({3, 2}, -1, 2)},
        [](const Inputs& in) { return triplet_margin_loss(in[0], in[1], in[2]); });
  c.add("cosine_embedding_loss", "", {leaf({4, 3}, -2, 2), leaf({4, 3}, -1.7, 1.9), labels({1, -1, -1, 1})},
        [](const Inputs& in) { return cosine_embedding_loss(in[0], in[1], in[2], -0.2); });
  c.add("poisson_nll_loss", "", {leaf({2, 3}, -2, 2), leaf({2, 3}, 0, 3)},
        [](const Inputs& in) { return poisson_nll_loss(in[0], in[1]); });
  for (const int dim : {0, 1}) {
    c.add("cosine_similarity", "dim" + std::to_string(dim), {leaf({3, 4}, -2, 2), strided_leaf({3, 4}, -1.7, 1.9)},
          [dim](const Inputs& in) { return cosine_similarity(in[0], in[1], dim); });
  }
  const GradFunction of_probabilities = [](const Inputs& in) { return binary_cross_entropy(in[0], in[1]); };
  c.add("binary_cross_entropy", "", {leaf({2, 3}, 0.05, 0.95), leaf({2, 3}, 0.1, 0.9)}, of_probabilities);
  c.add("binary_cross_entropy", "target_fixed",
        {strided_leaf({4}, 0.05, 0.95), Tensor::from_values(std::vector<double>{0, 1, 1, 0}, {4}, DType::kF64)},
        of_probabilities);
  const GradFunction bce = [](const Inputs& in) { return binary_cross_entropy_with_logits(in[0], in[1]); };
  c.add("binary_cross_entropy_with_logits", "", {leaf({2, 3}, -3, 3), leaf({2, 3}, 0.1, 0.9)}, bce);
  c.add("binary_cross_entropy_with_logits", "target_fixed",
        {leaf({4}, -3, 3), Tensor::from_values(std::vector<double>{0, 1, 1, 0}, {4}, DType::kF64)}, bce);
}

void add_joins(Cases& c) {
  c.add("cat", "rows", {leaf({2, 3}), leaf({1, 3})}, [](const Inputs& in) { return cat(in); });
  c.add("cat", "channels", {leaf({2, 1, 2, 2}), strided_leaf({2, 3, 2, 2}), leaf({2, 2, 2, 2})},
        [](const Inputs& in) { return cat(in, 1); });
  c.add("cat", "last", {leaf({2, 2}), leaf({2, 0}), spread_tensor({2, 1}, -2, 2)},
        [](const Inputs& in) { return cat(in, -1); });
  c.add("cat", "one", {leaf({2, 2})}, [](const Inputs& in) { return cat(in, 0); });
  c.add("flatten", "", {leaf({2, 3, 2})}, [](const Inputs& in) { return flatten(in[0], 1); });
  c.add("flatten", "scalar", {leaf({}, 1, 2)}, [](const Inputs& in) { return flatten(in[0]); });
}

}  // namespace

std::vector<OpCase> vision_op_cases() {
  Cases c;
  add_convolutions(c);
  add_normalisations(c);
  add_pooling(c);
  add_losses(c);
  add_joins(c);
  return std::move(c.list);
}

std::vector<std::pair<std::string, std::vector<std::string>>> vision_op_lines() {
  return {
      {"conv2d_same_size",
       {"forward convolution/fp64 input:0 weight:0 bias:0 -> out:0 {stride=1 padding=1 groups=1}",
        "backward convolution_backward/fp64 grad_output:0 input:0(saved) weight:0(saved) -> grad_input:0 grad_weight:0 "
        "grad_bias:0 {stride=1 padding=1 groups=1}"}},
      {"conv2d_groups_input_not_wanted",
       {"forward convolution/fp64 input:0 weight:0 bias:0 -> out:0 {stride=1 padding=1 groups=2}",
        "backward convolution_backward/fp64 grad_output:0 input:0(saved) -> grad_weight:0 grad_bias:0 "
        "{stride=1 padding=1 groups=2}"}},
      {"conv2d_input_not_wanted",
       {"forward convolution/fp64 input:0 weight:0 bias:0 -> out:0 {stride=1 padding=1 groups=1}",
        "backward convolution_backward/fp64 grad_output:0 input:0(saved) -> grad_weight:0 grad_bias:0 "
        "{stride=1 padding=1 groups=1}"}},
      {"conv2d_weight_not_wanted",
       {"forward convolution/fp64 input:0 weight:0 -> out:0 {stride=1 padding=1 groups=1}",
        "backward convolution_backward/fp64 grad_output:0 weight:0(saved) -> grad_input:0 "
        "{stride=1 padding=1 groups=1}"}},
      {"batch_norm_training",
       {"forward native_batch_norm/fp64 input:0 weight:0 bias:0 running_mean:0(overwritten) running_var:0(overwritten) "
        "-> out:0 save_mean:0 save_invstd:0 running_mean:1 running_var:1 {training=1 momentum=0.2 eps=0.001}",
        "backward native_batch_norm_backward/fp64 grad_output:0 input:0(saved) weight:0(saved) save_mean:0(saved) "
        "save_invstd:0(saved) -> grad_input:0 grad_weight:0 grad_bias:0 {training=1 momentum=0.2 eps=0.001}"}},
      {"batch_norm_evaluation",
       {"forward native_batch_norm/fp64 input:0 weight:0 bias:0 running_mean:0 running_var:0 -> out:0 "
        "{training=0 momentum=0.2 eps=0.001}",
        "backward native_batch_norm_backward/fp64 grad_output:0 input:0(saved) weight:0(saved) running_mean:0(saved) "
        "running_var:0(saved) -> grad_input:0 grad_weight:0 grad_bias:0 {training=0 momentum=0.2 eps=0.001}"}},
      {"max_pool2d_overlapping",
       {"forward max_pool2d_with_indices/fp64 self:0 -> out:0 indices:0 {kernel_size=3 stride=2 padding=1}",
        "backward max_pool2d_with_indices_backward/fp64 grad_output:0 indices:0(index) -> grad_self:0 "
        "{kernel_size=3 stride=2 padding=1}"}},
      {"avg_pool2d_halves",
       {"forward avg_pool2d/fp64 self:0 -> out:0 {kernel_size=2 stride=2 padding=0}",
        "backward avg_pool2d_backward/fp64 grad_output:0 -> grad_self:0 {kernel_size=2 stride=2 padding=0}"}},
      {"upsample_nearest2d_by_2",
       {"forward upsample_nearest2d/fp64 self:1 -> out:0 {scale=2}",
        "backward upsample_nearest2d_backward/fp64 grad_output:0 -> grad_self:0 {scale=2}"}},
      {"l1_loss",
       {"forward sub/fp64 self:0 other:0 -> out:0 {alpha=1}", "forward abs/fp64 self:0 -> out:0",
        "forward mean/fp64 self:0 -> out:0", "backward mean_backward/fp64 grad_output:0 -> grad_self:0",
        "backward abs_backward/fp64 grad_output:0 self:0(saved) -> grad_self:0",
        "backward sub_backward/fp64 grad_output:0 -> grad_self:0 grad_other:0 {alpha=1}"}},
      {"mse_loss",
       {"forward mse_loss/fp64 self:0 target:0 -> out:0",
        "backward mse_loss_backward/fp64 grad_output:0 self:0(saved) target:0(saved) -> grad_self:0 grad_target:0"}},
      {"smooth_l1_loss",
       {"forward smooth_l1_loss/fp64 self:0 target:0 -> out:0 {beta=1}",
        "backward smooth_l1_loss_backward/fp64 grad_output:0 self:0(saved) target:0(saved) -> grad_self:0 "
        "grad_target:0 {beta=1}"}},
      {"margin_ranking_loss",
       {"forward sub/fp64 self:0 other:0 -> out:0 {alpha=1}",
        "forward neg/fp64 self:0 -> out:0",
        "forward mul/fp64 self:0 other:0 -> out:0",
        "forward add/fp64 self:0 -> out:0 {other=0.3}",
        "forward clamp/fp64 self:0 -> out:0 {min=0 max=inf}",
        "forward mean/fp64 self:0 -> out:0",
        "backward mean_backward/fp64 grad_output:0 -> grad_self:0",
        "backward clamp_backward/fp64 grad_output:0 self:0(mask) -> grad_self:0 {min=0 max=inf}",
        "backward add_backward/fp64 grad_output:0 -> grad_self:0 {other=0.3}",
        "backward mul_backward/fp64 grad_output:0 self:0(saved) -> grad_other:0",
        "backward sub_backward/fp64 grad_output:0 -> grad_self:0 grad_other:0 {alpha=1}"}},
      {"hinge_embedding_loss",
       {"forward neg/fp64 self:1 -> out:0",
        "forward add/fp64 self:0 -> out:0 {other=1}",
        "forward clamp/fp64 self:0 -> out:0 {min=0 max=inf}",
        "forward eq/fp64 self:0 -> out:0 {other=1}",
        "forward masked_fill/fp64 self:0 mask:0(mask) -> out:0 {value=0}",
        "forward eq/fp64 self:0 -> out:0 {other=-1}",
        "forward masked_fill/fp64 self:1 mask:0(mask) -> out:0 {value=0}",
        "forward add/fp64 self:0 other:0 -> out:0 {alpha=1}",
        "forward mean/fp64 self:0 -> out:0",
        "backward mean_backward/fp64 grad_output:0 -> grad_self:0",
        "backward add_backward/fp64 grad_output:0 -> grad_self:0 grad_other:0 {alpha=1}",
        "backward masked_fill_backward/fp64 grad_output:0 mask:0(mask) -> grad_self:0 {value=0}",
        "backward masked_fill_backward/fp64 grad_output:0 mask:0(mask) -> grad_self:0 {value=0}",
        "backward clamp_backward/fp64 grad_output:0 self:0(mask) -> grad_self:0 {min=0 max=inf}",
        "backward add_backward/fp64 grad_output:0 -> grad_self:0 {other=1}",
        "backward neg_backward/fp64 grad_output:0 -> grad_self:0",
        "backward add/fp64 self:0 other:0 -> out:0 {alpha=1}"}},
      {"triplet_margin_loss",
       {"forward sub/fp64 self:0 other:0 -> out:0 {alpha=1}",
        "forward add/fp64 self:0 -> out:0 {other=1e-06}",
        "forward norm/fp64 self:0 -> out:0 {dim=1}",
        "forward sub/fp64 self:0 other:0 -> out:0 {alpha=1}",
        "forward add/fp64 self:0 -> out:0 {other=1e-06}",
        "forward norm/fp64 self:0 -> out:0 {dim=1}",
        "forward add/fp64 self:0 -> out:0 {other=1}",
        "forward sub/fp64 self:0 other:0 -> out:0 {alpha=1}",
        "forward clamp/fp64 self:0 -> out:0 {min=0 max=inf}",
        "forward mean/fp64 self:0 -> out:0",
        "backward mean_backward/fp64 grad_output:0 -> grad_self:0",
        "backward clamp_backward/fp64 grad_output:0 self:0(mask) -> grad_self:0 {min=0 max=inf}",
        "backward sub_backward/fp64 grad_output:0 -> grad_self:0 grad_other:0 {alpha=1}",
        "backward add_backward/fp64 grad_output:0 -> grad_self:0 {other=1}",
        "backward norm_backward/fp64 grad_output:0 self:0(saved) result:0(saved) -> grad_self:0 {dim=1}",
        "backward add_backward/fp64 grad_output:0 -> grad_self:0 {other=1e-06}",
        "backward sub_backward/fp64 grad_output:0 -> grad_self:0 grad_other:0 {alpha=1}",
        "backward norm_backward/fp64 grad_output:0 self:0(saved) result:0(saved) -> grad_self:0 {dim=1}",
        "backward add_backward/fp64 grad_output:0 -> grad_self:0 {other=1e-06}",
        "backward sub_backward/fp64 grad_output:0 -> grad_self:0 grad_other:0 {alpha=1}",
        "backward add/fp64 self:0 other:0 -> out:0 {alpha=1}"}},
      {"cosine_embedding_loss",
       {"forward mul/fp64 self:0 other:0 -> out:0",
        "forward sum/fp64 self:0 -> out:0 {dim=1}",
        "forward mul/fp64 self:0 other:0 -> out:0",
        "forward sum/fp64 self:0 -> out:0 {dim=1}",
        "forward add/fp64 self:0 -> out:0 {other=1e-12}",
        "forward mul/fp64 self:0 other:0 -> out:0",
        "forward sum/fp64 self:0 -> out:0 {dim=1}",
        "forward add/fp64 self:0 -> out:0 {other=1e-12}",
        "forward mul/fp64 self:0 other:0 -> out:0",
        "forward sqrt/fp64 self:0 -> out:0",
        "forward div/fp64 self:0 other:0 -> out:0",
        "forward neg/fp64 self:0 -> out:0",
        "forward add/fp64 self:0 -> out:0 {other=1}",
        "forward eq/fp64 self:0 -> out:0 {other=-1}",
        "forward masked_fill/fp64 self:0 mask:0(mask) -> out:0 {value=0}",
        "forward sub/fp64 self:0 -> out:0 {other=-0.2}",
        "forward clamp/fp64 self:0 -> out:0 {min=0 max=inf}",
        "forward eq/fp64 self:0 -> out:0 {other=1}",
        "forward masked_fill/fp64 self:0 mask:0(mask) -> out:0 {value=0}",
        "forward add/fp64 self:0 other:0 -> out:0 {alpha=1}",
        "forward mean/fp64 self:0 -> out:0",
        "backward mean_backward/fp64 grad_output:0 -> grad_self:0",
        "backward add_backward/fp64 grad_output:0 -> grad_self:0 grad_other:0 {alpha=1}",
        "backward masked_fill_backward/fp64 grad_output:0 mask:0(mask) -> grad_self:0 {value=0}",
        "backward clamp_backward/fp64 grad_output:0 self:0(mask) -> grad_self:0 {min=0 max=inf}",
        "backward sub_backward/fp64 grad_output:0 -> grad_self:0 {other=-0.2}",
        "backward masked_fill_backward/fp64 grad_output:0 mask:0(mask) -> grad_self:0 {value=0}",
        "backward add_backward/fp64 grad_output:0 -> grad_self:0 {other=1}",
        "backward neg_backward/fp64 grad_output:0 -> grad_self:0",
        "backward add/fp64 self:0 other:0 -> out:0 {alpha=1}",
        "backward div_backward/fp64 grad_output:0 self:0(saved) other:0(saved) -> grad_self:0 grad_other:0",
        "backward sqrt_backward/fp64 grad_output:0 result:0(saved) -> grad_self:0",
        "backward mul_backward/fp64 grad_output:0 self:0(saved) other:0(saved) -> grad_self:0 grad_other:0",
        "backward add_backward/fp64 grad_output:0 -> grad_self:0 {other=1e-12}",
        "backward sum_backward/fp64 grad_output:0 -> grad_self:0 {dim=1}",
        "backward mul_backward/fp64 grad_output:0 self:0(saved) other:0(saved) -> grad_self:0 grad_other:0",
        "backward add/fp64 self:0 other:0 -> out:0 {alpha=1}",
        "backward add_backward/fp64 grad_output:0 -> grad_self:0 {other=1e-12}",
        "backward sum_backward/fp64 grad_output:0 -> grad_self:0 {dim=1}",
        "backward mul_backward/fp64 grad_output:0 self:0(saved) other:0(saved) -> grad_self:0 grad_other:0",
        "backward add/fp64 self:0 other:0 -> out:0 {alpha=1}",
        "backward sum_backward/fp64 grad_output:0 -> grad_self:0 {dim=1}",
        "backward mul_backward/fp64 grad_output:0 self:0(saved) other:0(saved) -> grad_self:0 grad_other:0",
        "backward add/fp64 self:0 other:0 -> out:0 {alpha=1}",
        "backward add/fp64 self:0 other:0 -> out:0 {alpha=1}"}},
      {"poisson_nll_loss",
       {"forward mul/fp64 self:0 other:0 -> out:0",
        "forward exp/fp64 self:0 -> out:0",
        "forward sub/fp64 self:0 other:0 -> out:0 {alpha=1}",
        "forward mean/fp64 self:0 -> out:0",
        "backward mean_backward/fp64 grad_output:0 -> grad_self:0",
        "backward sub_backward/fp64 grad_output:0 -> grad_self:0 grad_other:0 {alpha=1}",
        "backward exp_backward/fp64 grad_output:0 result:0(saved) -> grad_self:0",
        "backward mul_backward/fp64 grad_output:0 self:0(saved) other:0(saved) -> grad_self:0 grad_other:0",
        "backward add/fp64 self:0 other:0 -> out:0 {alpha=1}"}},
      {"cosine_similarity_dim1",
       {"forward norm/fp64 self:0 -> out:0 {dim=1}",
        "forward clamp/fp64 self:0 -> out:0 {min=1e-08 max=inf}",
        "forward div/fp64 self:0 other:0 -> out:0",
        "forward norm/fp64 self:1 -> out:0 {dim=1}",
        "forward clamp/fp64 self:0 -> out:0 {min=1e-08 max=inf}",
        "forward div/fp64 self:1 other:0 -> out:0",
        "forward mul/fp64 self:0 other:0 -> out:0",
        "forward sum/fp64 self:0 -> out:0 {dim=1}",
        "backward sum_backward/fp64 grad_output:0 -> grad_self:0 {dim=1}",
        "backward mul_backward/fp64 grad_output:0 self:0(saved) other:0(saved) -> grad_self:0 grad_other:0",
        "backward div_backward/fp64 grad_output:0 self:1(saved) other:0(saved) -> grad_self:0 grad_other:0",
        "backward clamp_backward/fp64 grad_output:0 self:0(mask) -> grad_self:0 {min=1e-08 max=inf}",
        "backward norm_backward/fp64 grad_output:0 self:1(saved) result:0(saved) -> grad_self:0 {dim=1}",
        "backward add/fp64 self:0 other:0 -> out:0 {alpha=1}",
        "backward div_backward/fp64 grad_output:0 self:0(saved) other:0(saved) -> grad_self:0 grad_other:0",
        "backward clamp_backward/fp64 grad_output:0 self:0(mask) -> grad_self:0 {min=1e-08 max=inf}",
        "backward norm_backward/fp64 grad_output:0 self:0(saved) result:0(saved) -> grad_self:0 {dim=1}",
        "backward add/fp64 self:0 other:0 -> out:0 {alpha=1}"}},
      {"rms_norm_weight",
       {"forward pow/fp64 self:0 -> out:0 {exponent=2}",
        "forward mean/fp64 self:0 -> out:0 {dim=2}",
        "forward add/fp64 self:0 -> out:0 {other=0.001}",
        "forward rsqrt/fp64 self:0 -> out:0",
        "forward mul/fp64 self:0 other:0 -> out:0",
        "forward mul/fp64 self:0 other:0 -> out:0",
        "backward mul_backward/fp64 grad_output:0 self:0(saved) other:0(saved) -> grad_self:0 grad_other:0",
        "backward mul_backward/fp64 grad_output:0 self:0(saved) other:0(saved) -> grad_self:0 grad_other:0",
        "backward rsqrt_backward/fp64 grad_output:0 result:0(saved) -> grad_self:0",
        "backward add_backward/fp64 grad_output:0 -> grad_self:0 {other=0.001}",
        "backward mean_backward/fp64 grad_output:0 -> grad_self:0 {dim=2}",
        "backward pow_backward/fp64 grad_output:0 self:0(saved) -> grad_self:0 {exponent=2}",
        "backward add/fp64 self:0 other:0 -> out:0 {alpha=1}"}},
      {"huber_loss",
       {"forward huber_loss/fp64 self:0 target:0 -> out:0 {delta=1}",
        "backward huber_loss_backward/fp64 grad_output:0 self:0(saved) target:0(saved) -> grad_self:0 grad_target:0 "
        "{delta=1}"}},
      {"binary_cross_entropy",
       {"forward binary_cross_entropy/fp64 self:0 target:0 -> out:0",
        "backward binary_cross_entropy_backward/fp64 grad_output:0 self:0(saved) target:0(saved) -> grad_self:0 "
        "grad_target:0"}},
      {"binary_cross_entropy_with_logits",
       {"forward binary_cross_entropy_with_logits/fp64 self:0 target:0 -> out:0",
        "backward binary_cross_entropy_with_logits_backward/fp64 grad_output:0 self:0(saved) target:0(saved) -> "
        "grad_self:0 grad_target:0"}},
      {"cat_channels",
       {"forward cat/fp64 tensors0:0 tensors1:1 tensors2:0 -> out:0 {dim=1}",
        "backward cat_backward/fp64 grad_output:0 -> grad_tensors0:0 grad_tensors1:0 grad_tensors2:0 {dim=1}"}},
      {"flatten", {"forward view/fp64 self:0 -> out:0", "backward view_backward/fp64 grad_output:0 -> grad_self:0"}},
  };
}

}  // namespace nanhunt::engine::testing
