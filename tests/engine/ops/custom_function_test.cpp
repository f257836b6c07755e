// SPDX-License-Identifier: Apache-2.0
// Ops of one's own. Under autocast they are compared with torch by amp/test_autocast_regions_against_torch.py.
#include "nanhunt/engine/custom_function.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "nanhunt/engine/anomaly.h"
#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/ops.h"
#include "tests/engine/ops/op_recorder.h"
#include "tests/support/grad_check.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Inputs = std::vector<Tensor>;

Tensor leaf(const Shape& sizes, double value, DType dtype = DType::kF32) {
  return Tensor::full(sizes, value, dtype).set_requires_grad(true);
}

// x * y, the gradients by hand. `factor` plants a mistake in that of x.
CustomFunction product(double factor = 1) {
  return {.name = "Product",
          .forward =
              [](FunctionContext& context, const Inputs& in) {
                context.save_for_backward(in);
                return mul(in[0], in[1]);
              },
          .backward = [factor](FunctionContext& context, const Tensor& g) -> Inputs {
            const Inputs& saved = context.saved_tensors();
            return {mul(mul(g, saved[1]), factor), mul(g, saved[0])};
          }};
}

TEST(CustomFunction, has_the_gradients_that_its_backward_gives) {
  Tensor x = spread_tensor({2, 3}, -2, 2), y = spread_tensor({2, 3}, 1, 2);
  x.set_requires_grad(true);
  y.set_requires_grad(true);
  expect_gradients_match([](const Inputs& in) { return product()(in); }, {x, y});
  // and not those of the ops that forward ran: a planted mistake shows
  const Tensor a = leaf({2}, 3), b = leaf({2}, 5);
  sum(product(10)({a, b})).backward();
  EXPECT_THAT(a.grad().to_vector(), ElementsAre(50, 50));
  EXPECT_THAT(b.grad().to_vector(), ElementsAre(3, 3));
}

TEST(CustomFunction, is_told_as_one_op_forward_and_backward_in_its_module) {
  const Tensor x = leaf({2}, 3), y = leaf({2}, 5);
  OpRecorder recorder;
  const HookHandle handle = add_observer(recorder);
  Tensor out;
  {
    const ScopedModule module("net.gate");
    CustomFunction function = product();
    function.slots = {"value", "gate"};
    out = function({x, y});
  }
  sum(out).backward();
  EXPECT_THAT(recorder.lines,
              ElementsAre("forward net.gate Product/fp32 value:0 gate:0 -> out:0", "forward sum/fp32 self:0 -> out:0",
                          "backward sum_backward/fp32 grad_output:0 -> grad_self:0",
                          "backward net.gate Product_backward/fp32 grad_output:0 value:0(saved) gate:0(saved) -> "
                          "grad_value:0 grad_gate:0"));
}

TEST(CustomFunction, of_loops_over_elements_keeps_numbers_and_its_result) {
  // given: exp of a multiple, whose backward needs the result and the factor
  const CustomFunction function{
      .name = "ScaledExp",
      .forward =
          [](FunctionContext& context, const Inputs& in) {
            Tensor out = Tensor::empty(in[0].sizes(), in[0].dtype());
            const double factor = context.saved_data["factor"] = 2;
            for (std::int64_t i = 0; i < out.numel(); ++i) {
              out.data<float>()[i] = std::exp(static_cast<float>(factor * in[0].at(i)));
            }
            context.save_for_backward({out});
            return out;
          },
      .backward = [](FunctionContext& context, const Tensor& g) -> Inputs {
        return {mul(mul(g, context.saved_tensors()[0]), context.saved_data.at("factor"))};
      }};
  const Tensor x = leaf({2}, 0);
  OpRecorder recorder;
  const HookHandle handle = add_observer(recorder);
  sum(function({x})).backward();
  EXPECT_THAT(x.grad().to_vector(), ElementsAre(2, 2));
  EXPECT_EQ(recorder.lines.back(), "backward ScaledExp_backward/fp32 grad_output:0 result:0(saved) -> grad_input0:0");
}

TEST(CustomFunction, needs_gradients_only_where_an_input_wants_one) {
  std::vector<bool> needs;
  CustomFunction function = product();
  function.forward = [&needs](FunctionContext& context, const Inputs& in) {
    needs = {context.needs_input_grad(0), context.needs_input_grad(1)};
    return mul(in[0], in[1]);
  };
  function.backward = [](FunctionContext&, const Tensor& g) -> Inputs { return {{}, g}; };
  const Tensor x = Tensor::full({2}, 3, DType::kF32), y = leaf({2}, 5);
  const Tensor out = function({x, y});
  EXPECT_THAT(needs, ElementsAre(false, true));
  sum(out).backward();
  EXPECT_THAT(y.grad().to_vector(), ElementsAre(1, 1));
  EXPECT_FALSE(function({x, x}).requires_grad());
  const NoGradGuard no_grad;
  EXPECT_FALSE(function({x, y}).requires_grad());
  EXPECT_THAT(needs, ElementsAre(false, false));
}

TEST(CustomFunction, takes_indices_and_inputs_that_are_not_there) {
  const CustomFunction function{.name = "Pick",
                                .forward =
                                    [](FunctionContext& context, const Inputs& in) {
                                      context.save_for_backward({in[1], in[2]});
                                      return embedding(in[0], in[1]);
                                    },
                                .backward = [](FunctionContext& context, const Tensor& g) -> Inputs {
                                  EXPECT_FALSE(context.saved_tensors()[1].defined());
                                  Tensor grad = Tensor::zeros({3, 2}, DType::kF32);
                                  Tensor row = select(grad, 0, context.saved_tensors()[0].to_indices()[0]);
                                  row.copy_from(select(g, 0, 0));
                                  return {grad, {}, {}};
                                },
                                .slots = {"table", "rows", "nothing"}};
  const Tensor table = leaf({3, 2}, 1), rows = Tensor::from_indices(std::vector<std::int64_t>{2}, {1});
  sum(function({table, rows, Tensor()})).backward();
  EXPECT_THAT(table.grad().to_vector(), ElementsAre(0, 0, 0, 0, 1, 1));
}

TEST(CustomFunction, that_gives_its_input_or_its_gradient_back_shares_no_memory) {
  const CustomFunction identity{.name = "Identity",
                                .forward = [](FunctionContext&, const Inputs& in) { return in[0]; },
                                .backward = [](FunctionContext&, const Tensor& g) -> Inputs { return {g, g}; }};
  const Tensor x = leaf({2}, 3), y = leaf({2}, 5);
  const Tensor out = identity({x, y});
  EXPECT_NE(out.storage(), x.storage());
  EXPECT_TRUE(x.is_leaf());
  sum(out).backward();
  EXPECT_NE(x.grad().storage(), y.grad().storage());
  EXPECT_THAT(y.grad().to_vector(), ElementsAre(1, 1));
}

TEST(CustomFunction, gradients_are_converted_to_the_format_of_the_input) {
  CustomFunction function = product();
  function.forward = [](FunctionContext& context, const Inputs& in) {
    context.save_for_backward({to(in[0], DType::kF16), to(in[1], DType::kF16)});
    return mul(context.saved_tensors()[0], context.saved_tensors()[1]);
  };
  const Tensor x = leaf({2}, 1.0 / 3), y = leaf({2}, 1, DType::kF64);
  const Tensor out = function({x, y});
  EXPECT_EQ(out.dtype(), DType::kF16);
  sum(out).backward();
  EXPECT_EQ(x.grad().dtype(), DType::kF32);
  EXPECT_EQ(y.grad().dtype(), DType::kF64);
  EXPECT_EQ(y.grad().at(0), 0.333251953125) << "a third in fp16";
}

TEST(CustomFunction, refuses_what_backward_may_not_give) {
  CustomFunction function = product();
  const auto with = [&](decltype(function.backward) backward) {
    function.backward = std::move(backward);
    return [&] { sum(function({leaf({3}, 1), leaf({3}, 1)})).backward(); };
  };
  EXPECT_THAT(with([](FunctionContext&, const Tensor& g) -> Inputs { return {g}; }),
              ThrowsMessage<std::invalid_argument>(
                  "function ProductBackward returned an incorrect number of gradients (expected 2, got 1)"));
  EXPECT_THAT(with([](FunctionContext&, const Tensor&) -> Inputs { return {Tensor::zeros({2}, DType::kF32), {}}; }),
              ThrowsMessage<std::invalid_argument>("Function ProductBackward returned an invalid gradient at index 0 - "
                                                   "got [2] but expected shape compatible with [3]"));
  EXPECT_THAT([] { CustomFunction{}({}); }, ThrowsMessage<std::invalid_argument>(HasSubstr("[custom function] expected a name")));
  CustomFunction nothing;
  nothing.name = "Nothing";
  EXPECT_THAT([&] { nothing({}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("expected a forward and a backward")));
}

TEST(CustomFunction, a_saved_value_that_was_written_since_makes_backward_throw) {
  Tensor x = Tensor::full({2}, 3, DType::kF32);
  const Tensor y = leaf({2}, 5);
  const Tensor out = product()({x, y});
  fill_(x, 1);
  EXPECT_THROW(sum(out).backward(), std::invalid_argument);
}

TEST(CustomFunction, anomaly_mode_names_it_as_torch_does) {
  CustomFunction function = product();
  function.backward = [](FunctionContext&, const Tensor& g) -> Inputs {
    return {mul(g, std::numeric_limits<double>::quiet_NaN()), {}};
  };
  const auto train = [&](const CustomFunction& what) {
    const DetectAnomaly anomaly;
    sum(what({leaf({2}, 1), leaf({2}, 1)})).backward();
  };
  EXPECT_THAT([&] { train(function); },
              ThrowsMessage<AnomalyError>("Function 'ProductBackward' returned nan values in its 0th output."));
  EXPECT_NO_THROW(train(product()));
}

// x @ w, which tells whether autocast was on in forward and in backward.
struct Seen {
  bool forward = false, backward = false;
  DType input = DType::kBool, gradient = DType::kBool;
};
CustomFunction watched(Seen& seen) {
  return {.name = "Watched",
          .forward =
              [&seen](FunctionContext& context, const Inputs& in) {
                seen.forward = autocast_enabled();
                seen.input = in[0].dtype();
                context.save_for_backward(in);
                return matmul(in[0], in[1]);
              },
          .backward = [&seen](FunctionContext& context, const Tensor& g) -> Inputs {
            seen.backward = autocast_enabled();
            const Tensor gradient = matmul(g, t(context.saved_tensors()[1]));
            seen.gradient = gradient.dtype();
            return {gradient, matmul(t(context.saved_tensors()[0]), g)};
          }};
}

TEST(CustomFunction, runs_backward_under_the_autocast_state_of_forward) {
  const Tensor x = leaf({2, 2}, 1), w = leaf({2, 2}, 1);
  Seen seen;
  CustomFunction function = watched(seen);
  const auto train = [&](bool backward_inside) {
    std::optional<Autocast> region(std::in_place, AutocastOptions{.dtype = DType::kBF16});
    const Tensor loss = sum(function({x, w}));
    if (!backward_inside) region.reset();
    loss.backward();
  };
  train(/*backward_inside=*/false);
  EXPECT_TRUE(seen.forward);
  EXPECT_EQ(seen.input, DType::kF32) << "what it calls is cast, not what it is given";
  EXPECT_TRUE(seen.backward);
  EXPECT_EQ(seen.gradient, DType::kBF16);
  EXPECT_EQ(x.grad().dtype(), DType::kF32);
  EXPECT_FALSE(autocast_enabled());

  // without custom_bwd it is the state in which backward is called, and formats may not fit
  function.backward_as_forward = false;
  EXPECT_THROW(train(/*backward_inside=*/false), std::invalid_argument);
  EXPECT_FALSE(seen.backward);
  train(/*backward_inside=*/true);
  EXPECT_TRUE(seen.backward);
}

TEST(CustomFunction, that_casts_its_inputs_runs_without_autocast) {
  const Tensor x = leaf({2, 2}, 1.0 / 3, DType::kF16), w = leaf({2, 2}, 1, DType::kF16);
  Seen seen;
  CustomFunction function = watched(seen);
  function.cast_inputs = DType::kF32;
  OpRecorder recorder;
  const HookHandle handle = add_observer(recorder);
  const std::vector<std::string> lines = {"forward _to_copy/fp32 self:0 -> out:0",
                                          "forward _to_copy/fp32 self:0 -> out:0",
                                          "forward Watched/fp32 input0:0 input1:0 -> out:0"};
  {
    const Autocast region;
    const Tensor out = function({x, w});
    EXPECT_EQ(out.dtype(), DType::kF32);
    EXPECT_FALSE(seen.forward);
    EXPECT_EQ(seen.input, DType::kF32);
    EXPECT_TRUE(autocast_enabled());
    EXPECT_THAT(recorder.lines, ElementsAreArray(lines));
    sum(out).backward();  // even here
    EXPECT_FALSE(seen.backward);
    EXPECT_EQ(seen.gradient, DType::kF32);
    EXPECT_EQ(x.grad().dtype(), DType::kF16);
    EXPECT_TRUE(autocast_enabled());
  }
  // outside of a region it casts nothing
  EXPECT_EQ(function({x, w}).dtype(), DType::kF16);
  EXPECT_EQ(seen.input, DType::kF16);
}

TEST(CustomFunction, that_throws_leaves_autocast_and_observers_as_they_were) {
  CustomFunction function = product();
  function.forward = [](FunctionContext&, const Inputs&) -> Tensor { throw std::runtime_error("forward fails"); };
  function.cast_inputs = DType::kF32;
  const Autocast region;
  EXPECT_THROW(function({leaf({2}, 1), leaf({2}, 1)}), std::runtime_error);
  EXPECT_TRUE(autocast_enabled());
  EXPECT_TRUE(grad_enabled());
  OpRecorder recorder;
  const HookHandle handle = add_observer(recorder);
  neg(leaf({1}, 1));
  EXPECT_EQ(recorder.lines.size(), 1U);
}

}  // namespace
}  // namespace nanhunt::engine::testing
