// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <map>
#include <set>

#include "tests/engine/ops/op_cases.h"
#include "tests/engine/ops/op_recorder.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

// What observers are told about a call and its backward. Inputs with a version of 1 are strided copies.
std::vector<std::pair<std::string, std::vector<std::string>>> expected_lines() {
  std::vector<std::pair<std::string, std::vector<std::string>>> all = {
      {"add_row",
       {"forward add/fp64 self:0 other:0 -> out:0 {alpha=0.75}",
        "backward add_backward/fp64 grad_output:0 -> grad_self:0 grad_other:0 {alpha=0.75}"}},
      {"add_one_wanted",
       {"forward add/fp64 self:0 other:0 -> out:0 {alpha=0.75}",
        "backward add_backward/fp64 grad_output:0 -> grad_self:0 {alpha=0.75}"}},
      {"add_number_dense",
       {"forward add/fp64 self:0 -> out:0 {other=1.5}",
        "backward add_backward/fp64 grad_output:0 -> grad_self:0 {other=1.5}"}},
      {"sub_same_shape",
       {"forward sub/fp64 self:0 other:0 -> out:0 {alpha=1.5}",
        "backward sub_backward/fp64 grad_output:0 -> grad_self:0 grad_other:0 {alpha=1.5}"}},
      {"sub_number_dense",
       {"forward sub/fp64 self:0 -> out:0 {other=1.5}",
        "backward sub_backward/fp64 grad_output:0 -> grad_self:0 {other=1.5}"}},
      {"mul_same_shape",
       {"forward mul/fp64 self:0 other:0 -> out:0",
        "backward mul_backward/fp64 grad_output:0 self:0(saved) other:0(saved) -> grad_self:0 grad_other:0"}},
      {"mul_one_wanted",
       {"forward mul/fp64 self:0 other:0 -> out:0",
        "backward mul_backward/fp64 grad_output:0 other:0(saved) -> grad_self:0"}},
      {"mul_number_dense",
       {"forward mul/fp64 self:0 -> out:0 {other=1.5}",
        "backward mul_backward/fp64 grad_output:0 -> grad_self:0 {other=1.5}"}},
      {"div_same_shape",
       {"forward div/fp64 self:0 other:0 -> out:0",
        "backward div_backward/fp64 grad_output:0 self:0(saved) other:0(saved) -> grad_self:0 grad_other:0"}},
      {"div_one_wanted",
       {"forward div/fp64 self:0 other:0 -> out:0",
        "backward div_backward/fp64 grad_output:0 other:0(saved) -> grad_self:0"}},
      {"div_number_dense",
       {"forward div/fp64 self:0 -> out:0 {other=1.5}",
        "backward div_backward/fp64 grad_output:0 -> grad_self:0 {other=1.5}"}},
      {"div_number_over_dense",
       {"forward reciprocal/fp64 self:0 -> out:0", "forward mul/fp64 self:0 -> out:0 {other=1.5}",
        "backward mul_backward/fp64 grad_output:0 -> grad_self:0 {other=1.5}",
        "backward reciprocal_backward/fp64 grad_output:0 result:0(saved) -> grad_self:0"}},
      {"addcmul",
       {"forward addcmul/fp64 self:0 tensor1:0 tensor2:0 -> out:0 {value=0.75}",
        "backward addcmul_backward/fp64 grad_output:0 tensor1:0(saved) tensor2:0(saved) -> grad_self:0 grad_tensor1:0 "
        "grad_tensor2:0 {value=0.75}"}},
      {"addcmul_one_wanted",
       {"forward addcmul/fp64 self:0 tensor1:0 tensor2:0 -> out:0 {value=0.75}",
        "backward addcmul_backward/fp64 grad_output:0 tensor2:0(saved) -> grad_tensor1:0 {value=0.75}"}},
      {"addcdiv",
       {"forward addcdiv/fp64 self:0 tensor1:0 tensor2:0 -> out:0 {value=0.75}",
        "backward addcdiv_backward/fp64 grad_output:0 tensor1:0(saved) tensor2:0(saved) -> grad_self:0 grad_tensor1:0 "
        "grad_tensor2:0 {value=0.75}"}},
      {"pow_exponent17_dense",
       {"forward pow/fp64 self:0 -> out:0 {exponent=1.7}",
        "backward pow_backward/fp64 grad_output:0 self:0(saved) -> grad_self:0 {exponent=1.7}"}},
      {"neg_dense", {"forward neg/fp64 self:0 -> out:0", "backward neg_backward/fp64 grad_output:0 -> grad_self:0"}},
      {"abs_dense",
       {"forward abs/fp64 self:0 -> out:0", "backward abs_backward/fp64 grad_output:0 self:0(saved) -> grad_self:0"}},
      {"exp_dense",
       {"forward exp/fp64 self:0 -> out:0", "backward exp_backward/fp64 grad_output:0 result:0(saved) -> grad_self:0"}},
      {"log_dense",
       {"forward log/fp64 self:0 -> out:0", "backward log_backward/fp64 grad_output:0 self:0(saved) -> grad_self:0"}},
      {"expm1_dense",
       {"forward expm1/fp64 self:0 -> out:0",
        "backward expm1_backward/fp64 grad_output:0 result:0(saved) -> grad_self:0"}},
      {"log10_dense",
       {"forward log10/fp64 self:0 -> out:0",
        "backward log10_backward/fp64 grad_output:0 self:0(saved) -> grad_self:0"}},
      {"log2_dense",
       {"forward log2/fp64 self:0 -> out:0",
        "backward log2_backward/fp64 grad_output:0 self:0(saved) -> grad_self:0"}},
      {"log1p_dense",
       {"forward log1p/fp64 self:0 -> out:0",
        "backward log1p_backward/fp64 grad_output:0 self:0(saved) -> grad_self:0"}},
      {"sinh_dense",
       {"forward sinh/fp64 self:0 -> out:0",
        "backward sinh_backward/fp64 grad_output:0 self:0(saved) -> grad_self:0"}},
      {"cosh_dense",
       {"forward cosh/fp64 self:0 -> out:0",
        "backward cosh_backward/fp64 grad_output:0 self:0(saved) -> grad_self:0"}},
      {"tan_dense",
       {"forward tan/fp64 self:0 -> out:0",
        "backward tan_backward/fp64 grad_output:0 result:0(saved) -> grad_self:0"}},
      {"asin_dense",
       {"forward asin/fp64 self:0 -> out:0",
        "backward asin_backward/fp64 grad_output:0 self:0(saved) -> grad_self:0"}},
      {"acos_dense",
       {"forward acos/fp64 self:0 -> out:0",
        "backward acos_backward/fp64 grad_output:0 self:0(saved) -> grad_self:0"}},
      {"softplus_dense",
       {"forward softplus/fp64 self:0 -> out:0 {beta=1 threshold=20}",
        "backward softplus_backward/fp64 grad_output:0 self:0(saved) -> grad_self:0 {beta=1 threshold=20}"}},
      {"atan2_same_shape",
       {"forward atan2/fp64 self:0 other:0 -> out:0",
        "backward atan2_backward/fp64 grad_output:0 self:0(saved) other:0(saved) -> grad_self:0 grad_other:0"}},
      {"prelu_channels",
       {"forward view/fp64 self:0 -> out:0", "forward _prelu_kernel/fp64 self:0 weight:0 -> out:0",
        "backward _prelu_kernel_backward/fp64 grad_output:0 self:0(saved) weight:0(saved) -> grad_self:0 grad_weight:0",
        "backward view_backward/fp64 grad_output:0 -> grad_self:0"}},
      {"sqrt_dense",
       {"forward sqrt/fp64 self:0 -> out:0",
        "backward sqrt_backward/fp64 grad_output:0 result:0(saved) -> grad_self:0"}},
      {"rsqrt_dense",
       {"forward rsqrt/fp64 self:0 -> out:0",
        "backward rsqrt_backward/fp64 grad_output:0 result:0(saved) -> grad_self:0"}},
      {"relu_dense",
       {"forward relu/fp64 self:0 -> out:0",
        "backward relu_backward/fp64 grad_output:0 result:0(mask) -> grad_self:0"}},
      {"tanh_dense",
       {"forward tanh/fp64 self:0 -> out:0",
        "backward tanh_backward/fp64 grad_output:0 result:0(saved) -> grad_self:0"}},
      {"sigmoid_dense",
       {"forward sigmoid/fp64 self:0 -> out:0",
        "backward sigmoid_backward/fp64 grad_output:0 result:0(saved) -> grad_self:0"}},
      {"clamp_dense",
       {"forward clamp/fp64 self:0 -> out:0 {min=-0.7 max=0.9}",
        "backward clamp_backward/fp64 grad_output:0 self:0(mask) -> grad_self:0 {min=-0.7 max=0.9}"}},
      {"where_same_shape",
       {"forward where/fp64 condition:0(mask) self:0 other:0 -> out:0",
        "backward where_backward/fp64 grad_output:0 condition:0(mask) -> grad_self:0 grad_other:0"}},
      {"masked_fill_row",
       {"forward masked_fill/fp64 self:1 mask:0(mask) -> out:0 {value=-3}",
        "backward masked_fill_backward/fp64 grad_output:0 mask:0(mask) -> grad_self:0 {value=-3}"}},
      {"eq", {"forward eq/fp64 self:0 -> out:0 {other=1}"}},
      {"gt", {"forward gt/fp64 self:0 -> out:0 {other=0}"}},
      {"sum_all", {"forward sum/fp64 self:1 -> out:0", "backward sum_backward/fp64 grad_output:0 -> grad_self:0"}},
      {"sum_dim1",
       {"forward sum/fp64 self:0 -> out:0 {dim=1}", "backward sum_backward/fp64 grad_output:0 -> grad_self:0 {dim=1}"}},
      {"mean_all", {"forward mean/fp64 self:1 -> out:0", "backward mean_backward/fp64 grad_output:0 -> grad_self:0"}},
      {"mean_dim1",
       {"forward mean/fp64 self:0 -> out:0 {dim=1}",
        "backward mean_backward/fp64 grad_output:0 -> grad_self:0 {dim=1}"}},
      {"norm_all",
       {"forward norm/fp64 self:1 -> out:0",
        "backward norm_backward/fp64 grad_output:0 self:1(saved) result:0(saved) -> grad_self:0"}},
      {"norm_dim1",
       {"forward norm/fp64 self:0 -> out:0 {dim=1}",
        "backward norm_backward/fp64 grad_output:0 self:0(saved) result:0(saved) -> grad_self:0 {dim=1}"}},
      {"amax", {"forward amax/fp64 self:0 -> out:0 {dim=1}"}},
      {"logsumexp_dim1",
       {"forward logsumexp/fp64 self:1 -> out:0 {dim=1}",
        "backward logsumexp_backward/fp64 grad_output:0 self:1(saved) result:0(saved) -> grad_self:0 {dim=1}"}},
      {"softmax_dim1",
       {"forward softmax/fp64 self:1 -> out:0 {dim=1}",
        "backward softmax_backward/fp64 grad_output:0 result:0(saved) -> grad_self:0 {dim=1}"}},
      {"log_softmax_dim1",
       {"forward log_softmax/fp64 self:1 -> out:0 {dim=1}",
        "backward log_softmax_backward/fp64 grad_output:0 result:0(saved) -> grad_self:0 {dim=1}"}},
      {"nll_loss",
       {"forward nll_loss/fp64 self:1 target:0(index) -> out:0 {ignore_index=-100}",
        "backward nll_loss_backward/fp64 grad_output:0 target:0(index) -> grad_self:0 {ignore_index=-100}"}},
      {"cross_entropy",
       {"forward log_softmax/fp64 self:0 -> out:0 {dim=1}",
        "forward nll_loss/fp64 self:0 target:0(index) -> out:0 {ignore_index=-100}",
        "backward nll_loss_backward/fp64 grad_output:0 target:0(index) -> grad_self:0 {ignore_index=-100}",
        "backward log_softmax_backward/fp64 grad_output:0 result:0(saved) -> grad_self:0 {dim=1}"}},
      {"matmul_dense",
       {"forward mm/fp64 self:0 mat2:0 -> out:0",
        "backward mm_backward/fp64 grad_output:0 self:0(saved) mat2:0(saved) -> grad_self:0 grad_mat2:0"}},
      {"matmul_one_wanted",
       {"forward mm/fp64 self:0 mat2:0 -> out:0",
        "backward mm_backward/fp64 grad_output:0 self:0(saved) -> grad_mat2:0"}},
      {"mv",
       {"forward mv/fp64 self:0 vec:1 -> out:0",
        "backward mv_backward/fp64 grad_output:0 self:0(saved) vec:1(saved) -> grad_self:0 grad_vec:0"}},
      {"addmv",
       {"forward addmv/fp64 self:0 mat:1 vec:0 -> out:0",
        "backward addmv_backward/fp64 grad_output:0 mat:1(saved) vec:0(saved) -> grad_self:0 grad_mat:0 grad_vec:0"}},
      {"addr",
       {"forward addr/fp64 self:0 vec1:0 vec2:1 -> out:0",
        "backward addr_backward/fp64 grad_output:0 vec1:0(saved) vec2:1(saved) -> grad_self:0 grad_vec1:0 "
        "grad_vec2:0"}},
      {"baddbmm_broadcast",
       {"forward baddbmm/fp64 self:0 batch1:0 batch2:0 -> out:0",
        "backward baddbmm_backward/fp64 grad_output:0 batch2:0(saved) -> grad_self:0 grad_batch1:0"}},
      {"dot_one_wanted",
       {"forward dot/fp64 self:0 tensor:0 -> out:0",
        "backward dot_backward/fp64 grad_output:0 tensor:0(saved) -> grad_self:0"}},
      {"matmul_vector_on_the_right",
       {"forward mv/fp64 self:1 vec:0 -> out:0",
        "backward mv_backward/fp64 grad_output:0 self:1(saved) vec:0(saved) -> grad_self:0 grad_vec:0"}},
      {"addmm_row",
       {"forward addmm/fp64 self:0 mat1:0 mat2:0 -> out:0",
        "backward addmm_backward/fp64 grad_output:0 mat1:0(saved) mat2:0(saved) -> grad_self:0 grad_mat1:0 "
        "grad_mat2:0"}},
      {"linear",
       {"forward t/fp64 self:0 -> out:0", "forward addmm/fp64 self:0 mat1:0 mat2:0 -> out:0",
        "backward addmm_backward/fp64 grad_output:0 mat1:0(saved) mat2:0(saved) -> grad_self:0 grad_mat1:0 grad_mat2:0",
        "backward t_backward/fp64 grad_output:0 -> grad_self:0"}},
      {"linear_no_bias",
       {"forward t/fp64 self:0 -> out:0", "forward mm/fp64 self:0 mat2:0 -> out:0",
        "backward mm_backward/fp64 grad_output:0 self:0(saved) mat2:0(saved) -> grad_self:0 grad_mat2:0",
        "backward t_backward/fp64 grad_output:0 -> grad_self:0"}},
      {"embedding",
       {"forward embedding/fp64 weight:0 indices:0(index) -> out:0",
        "backward embedding_backward/fp64 grad_output:0 indices:0(index) -> grad_weight:0"}},
      {"t", {"forward t/fp64 self:0 -> out:0", "backward t_backward/fp64 grad_output:0 -> grad_self:0"}},
      {"clone", {"forward clone/fp64 self:1 -> out:0", "backward clone_backward/fp64 grad_output:0 -> grad_self:0"}},
      {"reshape_dense",
       {"forward view/fp64 self:0 -> out:0", "backward view_backward/fp64 grad_output:0 -> grad_self:0"}},
      {"reshape_strided",
       {"forward clone/fp64 self:1 -> out:0", "forward view/fp64 self:0 -> out:0",
        "backward view_backward/fp64 grad_output:0 -> grad_self:0",
        "backward clone_backward/fp64 grad_output:0 -> grad_self:0"}},
      {"narrow",
       {"forward narrow/fp64 self:1 -> out:1 {dim=0 start=1 length=2}",
        "backward narrow_backward/fp64 grad_output:0 -> grad_self:0 {dim=0 start=1 length=2}"}},
      {"select",
       {"forward select/fp64 self:0 -> out:0 {dim=1 index=2}",
        "backward select_backward/fp64 grad_output:0 -> grad_self:0 {dim=1 index=2}"}},
      {"fill_", {"forward fill_/fp64 self:1(overwritten) -> out:2 {value=3}"}},
      {"copy_", {"forward copy_/fp64 self:1(overwritten) src:1 -> out:2"}},
      {"add_", {"forward add_/fp64 self:1(overwritten) other:1 -> out:2 {alpha=0.5}"}},
      {"add__number", {"forward add_/fp64 self:1(overwritten) -> out:2 {other=0.5}"}},
      {"mul_", {"forward mul_/fp64 self:1(overwritten) -> out:2 {other=0.5}"}},
      {"mul__tensor", {"forward mul_/fp64 self:1(overwritten) other:1 -> out:2"}},
      {"lerp_", {"forward lerp_/fp64 self:1(overwritten) end:1 -> out:2 {weight=0.1}"}},
      {"addcmul_", {"forward addcmul_/fp64 self:1(overwritten) tensor1:1 tensor2:1 -> out:2 {value=0.5}"}},
      {"addcdiv_", {"forward addcdiv_/fp64 self:1(overwritten) tensor1:1 tensor2:1 -> out:2 {value=0.5}"}},
  };
  for (auto& more : transformer_op_lines()) all.push_back(std::move(more));
  for (auto& more : vision_op_lines()) all.push_back(std::move(more));
  return all;
}

std::map<std::string, OpCase> cases_by_label() {
  std::map<std::string, OpCase> cases;
  for (OpCase& c : op_cases()) cases.emplace(c.label, c);
  for (OpCase& c : inplace_cases()) cases.emplace(c.label, c);
  return cases;
}

TEST(Notification, names_slots_versions_roles_and_scalars_of_every_op) {
  std::map<std::string, OpCase> cases = cases_by_label();
  for (const auto& [label, lines] : expected_lines()) {
    ASSERT_EQ(cases.count(label), 1U) << label;
    const OpCase& c = cases.at(label);
    OpRecorder recorder;
    // when: only the op, and then only its backward, are watched (the sum that makes a loss of it is not)
    HookHandle handle = add_observer(recorder);
    const Tensor out = c.call(c.inputs);
    handle.remove();
    if (c.differentiable) {
      const Tensor loss = sum(out);
      OpRecorder backward_recorder;
      const HookHandle watching = add_observer(backward_recorder);
      loss.backward();
      ASSERT_FALSE(backward_recorder.lines.empty());
      recorder.lines.insert(recorder.lines.end(), backward_recorder.lines.begin() + 1, backward_recorder.lines.end());
    }
    // then
    EXPECT_THAT(recorder.lines, ElementsAreArray(lines)) << label;
  }
}

TEST(Notification, is_checked_for_every_op) {
  std::map<std::string, OpCase> cases = cases_by_label();
  std::set<std::string> all, checked{"to"};  // below
  for (const auto& [label, c] : cases) all.insert(c.op);
  for (const auto& [label, lines] : expected_lines()) checked.insert(cases.at(label).op);
  EXPECT_EQ(all, checked);
}

TEST(Notification, a_conversion_computes_in_the_format_it_reads) {
  // given
  Tensor x = Tensor::full({2}, 1, DType::kF32).set_requires_grad(true);
  OpRecorder recorder;
  const HookHandle handle = add_observer(recorder);
  // when
  const Tensor same = to(x, DType::kF32);
  const Tensor loss = sum(to(x, DType::kF16));
  loss.backward();
  const Tensor wide = to(Tensor::zeros({1}, DType::kF64), DType::kF16);
  // then
  EXPECT_EQ(same.impl(), x.impl());
  EXPECT_THAT(recorder.lines, ElementsAre("forward _to_copy/fp32 self:0 -> out:0", "forward sum/fp32 self:0 -> out:0",
                                          "backward sum_backward/fp32 grad_output:0 -> grad_self:0",
                                          "backward _to_copy_backward/fp32 grad_output:0 -> grad_self:0",
                                          "forward _to_copy/fp64 self:0 -> out:0"));
}

TEST(Notification, sixteen_bit_ops_compute_in_fp32_and_views_in_their_own_format) {
  const Tensor x = Tensor::full({2, 2}, 1, DType::kBF16);
  OpRecorder recorder;
  const HookHandle handle = add_observer(recorder);
  mul(x, x);
  t(x);
  clone(x);
  EXPECT_THAT(recorder.lines, ElementsAre("forward mul/fp32 self:0 other:0 -> out:0", "forward t/bf16 self:0 -> out:0",
                                          "forward clone/bf16 self:0 -> out:0"));
}

TEST(Notification, backward_carries_the_module_of_its_forward_and_fan_in_sums_are_observed) {
  // given: x is used twice inside "net.a", once inside "<loss>"
  Tensor x = Tensor::full({2}, 3, DType::kF32).set_requires_grad(true);
  Tensor h, loss;
  {
    const ScopedModule module("net.a");
    h = mul(x, 2.0);
  }
  {
    const ScopedModule module("<loss>");
    const ScopedPhase phase(Phase::kLoss);
    loss = sum(mul(h, h));
  }
  // when
  OpRecorder recorder;
  const HookHandle handle = add_observer(recorder);
  loss.backward();
  EXPECT_THAT(recorder.lines,
              ElementsAre("backward <loss> sum_backward/fp32 grad_output:0 -> grad_self:0",
                          "backward <loss> mul_backward/fp32 grad_output:0 self:0(saved) other:0(saved) -> "
                          "grad_self:0 grad_other:0",
                          // both gradients of h, in the module that made h
                          "backward net.a add/fp32 self:0 other:0 -> out:0 {alpha=1}",
                          "backward net.a mul_backward/fp32 grad_output:0 -> grad_self:0 {other=2}"));
  EXPECT_THAT(x.grad().to_vector(), ElementsAre(24, 24));
}

TEST(Notification, accumulating_into_a_gradient_is_an_add) {
  // given: a gradient from a first backward
  Tensor x = Tensor::full({1}, 3, DType::kF32).set_requires_grad(true);
  OpRecorder recorder;
  const HookHandle handle = add_observer(recorder);
  neg(x).backward();
  EXPECT_EQ(recorder.lines.size(), 2U);  // storing the first gradient is no op
  // when
  recorder.lines.clear();
  neg(x).backward();
  // then
  EXPECT_THAT(recorder.lines,
              ElementsAre("forward neg/fp32 self:0 -> out:0", "backward neg_backward/fp32 grad_output:0 -> grad_self:0",
                          "backward add/fp32 self:0 other:0 -> out:0 {alpha=1}"));
  EXPECT_THAT(x.grad().to_vector(), ElementsAre(-2));
}

TEST(Notification, an_input_that_shares_the_written_storage_reports_the_version_it_had) {
  Tensor x = Tensor::full({2}, 3, DType::kF32);
  OpRecorder recorder;
  const HookHandle handle = add_observer(recorder);
  add_(x, x);
  addcmul_(x, x, x, 1);
  EXPECT_THAT(recorder.lines,
              ElementsAre("forward add_/fp32 self:0(overwritten) other:0 -> out:1 {alpha=1}",
                          "forward addcmul_/fp32 self:1(overwritten) tensor1:1 tensor2:1 -> out:2 {value=1}"));
  EXPECT_THAT(x.to_vector(), ElementsAre(42, 42));
}

TEST(Notification, outputs_arrive_computed_and_inputs_alive) {
  // given: an observer that reads what it is told about
  struct Reader : Observer {
    std::vector<double> in, out;
    void on_op(const OpCall& call) noexcept override {
      in = call.inputs[0].tensor->to_vector();
      out = call.outputs[0].tensor->to_vector();
    }
  } reader;
  const HookHandle handle = add_observer(reader);
  exp(Tensor::zeros({2}, DType::kF32));
  EXPECT_THAT(reader.in, ElementsAre(0, 0));
  EXPECT_THAT(reader.out, ElementsAre(1, 1));
}

TEST(Notification, an_observer_changes_no_bit_of_any_result_or_gradient) {
  const auto run = [](const OpCase& c, Observer* observer) {
    HookHandle handle(observer);
    const Tensor out = c.call(c.inputs);
    std::vector<std::vector<double>> values{out.to_vector()};
    if (!c.differentiable) return values;
    weighted_sum(out).backward();
    for (const Tensor& input : c.inputs) {
      if (input.grad().defined()) values.push_back(input.grad().to_vector());
    }
    return values;
  };
  for (auto cases : {op_cases, inplace_cases}) {
    const std::vector<OpCase> plain = cases(), watched = cases();
    for (std::size_t i = 0; i < plain.size(); ++i) {
      OpRecorder recorder;
      EXPECT_EQ(run(plain[i], nullptr), run(watched[i], &recorder)) << plain[i].label;
    }
  }
}

TEST(Notification, nothing_is_told_after_the_handle_is_gone) {
  OpRecorder recorder;
  { const HookHandle handle = add_observer(recorder); }
  neg(Tensor::zeros({1}, DType::kF32));
  EXPECT_THAT(recorder.lines, IsEmpty());
}

}  // namespace
}  // namespace nanhunt::engine::testing
