// SPDX-License-Identifier: Apache-2.0
// Apex's DistributedDataParallel: what construction, buckets and their arithmetic do, rule by rule.
#include "nanhunt/engine/data_parallel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/ops.h"

namespace nanhunt::engine {
namespace {

using Group = std::shared_ptr<RankGroup>;
constexpr DType kF16 = DType::kF16, kF32 = DType::kF32;

// What a rank reduced, in order: how many numbers of which format.
class Reductions : public Observer {
 public:
  std::string told;
  void on_collective(const CollectiveCall& call) noexcept override {
    if (call.kind == CollectiveKind::kBroadcast && call.share->dtype() == DType::kI64) {
      told += "structure ";
    } else {
      told += call.kind == CollectiveKind::kBroadcast ? "broadcast " : "";
      told += std::string(dtype_name(call.share->dtype())) + "x" + std::to_string(call.share->numel()) + " ";
    }
  }
};

// Parameters in the order of `formats`, with 3 numbers each.
std::vector<NamedTensor> parameters(const std::vector<DType>& formats, double value = 1) {
  std::vector<NamedTensor> out;
  for (std::size_t i = 0; i < formats.size(); ++i) {
    Tensor p = Tensor::full({3}, value, formats[i]);
    p.set_requires_grad(true);
    out.push_back({"p" + std::to_string(i), p});
  }
  return out;
}

// Gradients arrive in this order: a backward runs from the last op to the first.
void backward_in_order(const std::vector<NamedTensor>& all, const std::vector<std::size_t>& order, double scale = 1) {
  Tensor loss = Tensor::zeros({}, kF32);
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    loss = add(loss, sum(to(mul(all[*at].tensor, scale), kF32)));
  }
  loss.backward();
}

void step(DataParallel& parallel, const std::vector<NamedTensor>& all, const std::vector<std::size_t>& order,
          double scale = 1) {
  for (NamedTensor entry : all) entry.tensor.set_grad({});
  parallel.begin_forward();
  const ScopedGradientListener listener(parallel);
  backward_in_order(all, order, scale);
}

TEST(DataParallel, begins_with_the_parameters_of_rank_0_one_buffer_for_each_dtype) {
  run_ranks(3, [](const Group& ranks) {
    Reductions seen;
    const HookHandle handle = add_observer(seen);
    const auto all = parameters({kF32, kF16, kF32}, 1.5 + ranks->rank());
    const DataParallel parallel(all, {.ranks = ranks});
    for (const NamedTensor& entry : all) EXPECT_EQ(entry.tensor.to_vector(), std::vector<double>(3, 1.5));
    EXPECT_EQ(seen.told, "broadcast fp16x3 broadcast fp32x6 ");
  });
}

TEST(DataParallel, finds_its_buckets_in_the_first_backward_by_size_and_reduces_that_one_after_it) {
  run_ranks(2, [](const Group& ranks) {
    const auto all = parameters({kF32, kF32, kF32, kF16, kF32});
    DataParallel parallel(all, {.ranks = ranks, .message_size = 6});
    Reductions seen;
    const HookHandle handle = add_observer(seen);
    step(parallel, all, {4, 3, 2, 1, 0});
    // then one buffer for each dtype, and rank 0's structure for all
    EXPECT_EQ(seen.told, "fp16x3 fp32x12 structure ");
    // {4, 2} and {1, 0} were full; the half parameter is a leftover
    using Bucket = DataParallel::Bucket;
    EXPECT_EQ(parallel.buckets(), (std::vector<Bucket>{{{4, 2}}, {{1, 0}}, {{3}}}));
    // and the next backward reduces them in this order, as soon as they are full
    seen.told.clear();
    step(parallel, all, {4, 3, 2, 1, 0});
    EXPECT_EQ(seen.told, "fp32x6 fp32x6 fp16x3 ");
  });
}

TEST(DataParallel, takes_leftovers_in_the_order_half_float_double) {
  run_ranks(2, [](const Group& ranks) {
    const auto all = parameters({DType::kF64, kF32, kF16});
    DataParallel parallel(all, {.ranks = ranks});
    step(parallel, all, {0, 1, 2});
    using Bucket = DataParallel::Bucket;
    EXPECT_EQ(parallel.buckets(), (std::vector<Bucket>{{{2}}, {{1}}, {{0}}}));
  });
}

TEST(DataParallel, adopts_the_order_in_which_gradients_arrived_on_rank_0) {
  run_ranks(2, [](const Group& ranks) {
    const auto all = parameters({kF32, kF32, kF32});
    DataParallel parallel(all, {.ranks = ranks, .message_size = 1});
    const std::vector<std::size_t> own = ranks->rank() == 0 ? std::vector<std::size_t>{1, 2, 0} : std::vector<std::size_t>{0, 1, 2};
    step(parallel, all, own);
    using Bucket = DataParallel::Bucket;
    EXPECT_EQ(parallel.buckets(), (std::vector<Bucket>{{{1}}, {{2}}, {{0}}}));
    // Rank 1's first gradient is of the last bucket: it waits. Sums of what does not belong together would differ.
    step(parallel, all, own, 1.0 + ranks->rank());
    for (const NamedTensor& entry : all) EXPECT_EQ(entry.tensor.grad().to_vector(), std::vector<double>(3, 1.5));
  });
}

TEST(DataParallel, orders_by_the_last_part_of_a_gradient_that_arrived) {
  run_ranks(1, [](const Group& ranks) {
    const auto all = parameters({kF32, kF32});
    DataParallel parallel(all, {.ranks = ranks, .message_size = 1});
    parallel.begin_forward();
    const ScopedGradientListener listener(parallel);
    const Tensor twice = sum(mul(all[0].tensor, all[0].tensor));  // used here and below
    const Tensor once = sum(all[1].tensor);
    add(add(twice, once), sum(all[0].tensor)).backward();
    using Bucket = DataParallel::Bucket;
    EXPECT_EQ(parallel.buckets(), (std::vector<Bucket>{{{1}}, {{0}}}));
  });
}

TEST(DataParallel, closes_buckets_at_trigger_parameters_instead_of_by_size) {
  run_ranks(2, [](const Group& ranks) {
    const auto all = parameters({kF32, kF32, kF32, kF32});
    DataParallel parallel(all, {.ranks = ranks, .message_size = 1, .allreduce_trigger_params = {"p1"}});
    step(parallel, all, {3, 2, 1, 0});
    using Bucket = DataParallel::Bucket;
    EXPECT_EQ(parallel.buckets(), (std::vector<Bucket>{{{3, 2, 1}}, {{0}}}));
  });
}

TEST(DataParallel, finds_buckets_anew_when_other_parameters_train) {
  run_ranks(2, [](const Group& ranks) {
    auto all = parameters({kF32, kF32, kF32});
    DataParallel parallel(all, {.ranks = ranks, .message_size = 1});
    step(parallel, all, {2, 1, 0});
    EXPECT_EQ(parallel.buckets().size(), 3u);
    all[1].tensor.set_requires_grad(false);
    step(parallel, all, {2, 0});
    EXPECT_EQ(parallel.buckets().size(), 2u);
    EXPECT_EQ(all[0].tensor.grad().to_vector(), std::vector<double>(3, 1.0));
  });
}

void expect_refused(const std::function<void(const Group&)>& body, const std::string& words) {
  try {
    run_ranks(2, body);
    FAIL() << "nothing was thrown";
  } catch (const std::logic_error& refused) {
    EXPECT_NE(std::string(refused.what()).find(words), std::string::npos) << refused.what();
  }
}

TEST(DataParallel, refuses_a_slot_that_is_filled_twice) {
  expect_refused(
      [](const Group& ranks) {
        const auto all = parameters({kF32, kF32});
        DataParallel parallel(all, {.ranks = ranks});
        step(parallel, all, {1, 0});
        parallel.begin_forward();
        const ScopedGradientListener listener(parallel);
        backward_in_order(all, {1, 0});
        backward_in_order(all, {1, 0});
      },
      "expected one gradient of each parameter in its slot");
}

TEST(DataParallel, refuses_a_bucket_that_is_left_unreduced) {
  expect_refused(
      [](const Group& ranks) {
        const auto all = parameters({kF32, kF32});
        DataParallel parallel(all, {.ranks = ranks, .message_size = 1});
        step(parallel, all, {1, 0});
        step(parallel, all, {1});
      },
      "expected gradients for all 2 buckets, got 1");
}

TEST(DataParallel, delays_everything_to_the_end_where_asked_one_buffer_for_each_dtype) {
  run_ranks(2, [](const Group& ranks) {
    const auto all = parameters({kF32, kF16, kF32});
    DataParallel parallel(all, {.ranks = ranks, .message_size = 1, .delay_allreduce = true});
    Reductions seen;
    const HookHandle handle = add_observer(seen);
    for (int i = 0; i < 2; ++i) step(parallel, all, {2, 1, 0});
    // a parameter without gradient is no error
    step(parallel, all, {2, 1});
    EXPECT_EQ(seen.told, "fp16x3 fp32x6 fp16x3 fp32x6 fp16x3 fp32x3 ");
    EXPECT_TRUE(parallel.buckets().empty());
  });
}

TEST(DataParallel, is_refused_with_options_that_contradict_each_other) {
  const auto expect = [](const std::function<DataParallelOptions(const Group&)>& options, const std::string& words) {
    expect_refused([&](const Group& ranks) { DataParallel parallel(parameters({kF32}), options(ranks)); }, words);
  };
  expect([](const Group& ranks) {
    return DataParallelOptions{.ranks = ranks, .allreduce_trigger_params = {"p0"}, .delay_allreduce = true};
  }, "[data_parallel] expected allreduce_trigger_params without delay_allreduce, got both");
  expect([](const Group& ranks) { return DataParallelOptions{.ranks = ranks, .message_size = 0}; }, "got 0");
  expect([](const Group& ranks) { return DataParallelOptions{.ranks = ranks, .gradient_predivide_factor = 0}; },
         "gradient_predivide_factor above 0");
  expect([](const Group& ranks) { return DataParallelOptions{.ranks = ranks, .allreduce_trigger_params = {"q"}}; }, "'q'");
  EXPECT_THROW(DataParallel(parameters({kF32}), {}), std::invalid_argument);
}

TEST(DataParallel, can_be_switched_off_while_gradients_add_up) {
  run_ranks(2, [](const Group& ranks) {
    const auto all = parameters({kF32});
    DataParallel parallel(all, {.ranks = ranks});
    const double mine = 1 + ranks->rank();
    parallel.begin_forward();
    const ScopedGradientListener listener(parallel);
    parallel.enable_allreduce(false);
    backward_in_order(all, {0}, mine);
    EXPECT_EQ(all[0].tensor.grad().to_vector(), std::vector<double>(3, mine));
    parallel.enable_allreduce(true);
    backward_in_order(all, {0}, mine);
    EXPECT_EQ(all[0].tensor.grad().to_vector(), std::vector<double>(3, 3.0));  // (2 + 4) / 2
  });
}

TEST(DataParallel, reduces_on_demand_without_a_backward) {
  run_ranks(2, [](const Group& ranks) {
    const auto all = parameters({kF32, kF16});
    DataParallel parallel(all, {.ranks = ranks});
    for (NamedTensor entry : all) entry.tensor.set_grad(Tensor::full({3}, 2 + 2.0 * ranks->rank(), entry.tensor.dtype()));
    parallel.reduce_all();
    for (const NamedTensor& entry : all) EXPECT_EQ(entry.tensor.grad().to_vector(), std::vector<double>(3, 3.0));
  });
}

// The gradient of one fp16 parameter after its reduction; each rank has `share` of it.
double reduced(std::uint32_t world, double share, DataParallelOptions options) {
  double result = 0;
  run_ranks(world, [&](const Group& ranks) {
    DataParallelOptions own = options;
    own.ranks = ranks;
    const auto all = parameters({kF16});
    DataParallel parallel(all, own);
    Tensor p = all[0].tensor;
    p.set_grad(Tensor::full({3}, share, kF16));
    parallel.reduce_all();
    EXPECT_EQ(p.grad().dtype(), kF16);
    result = p.grad().to_vector()[0];
  });
  return result;
}

TEST(DataParallelArithmetic, divides_before_and_after_the_sum_as_told) {
  EXPECT_EQ(reduced(4, 1, {}), 1);
  EXPECT_EQ(reduced(4, 1, {.gradient_average = false}), 4);
  EXPECT_EQ(reduced(4, 1, {.gradient_predivide_factor = 2}), 1);
  // with averaging off the division before the sum still happens
  EXPECT_EQ(reduced(4, 1, {.gradient_average = false, .gradient_predivide_factor = 2}), 2);
}

TEST(DataParallelArithmetic, overflows_in_fp16_from_world_times_gradient_65520_on_unless_told_otherwise) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(reduced(4, 16376, {}), 16376);
  EXPECT_EQ(reduced(4, 16384, {}), kInf);
  EXPECT_EQ(reduced(4, 16384, {.gradient_predivide_factor = 4}), 16384);
  EXPECT_EQ(reduced(4, 16384, {.allreduce_always_fp32 = true}), 16384);
}

TEST(DataParallelArithmetic, divided_by_the_world_first_flushes_gradients_up_to_world_times_2_to_minus_25) {
  EXPECT_EQ(reduced(4, 0x1p-23, {.gradient_predivide_factor = 4}), 0);
  EXPECT_EQ(reduced(4, 0x1p-23, {}), 0x1p-23);
  EXPECT_EQ(reduced(4, 0x1p-23, {.allreduce_always_fp32 = true, .gradient_predivide_factor = 4}), 0x1p-23);
  EXPECT_GT(reduced(4, 3 * 0x1p-24, {.gradient_predivide_factor = 4}), 0);  // the next larger one
}

}  // namespace
}  // namespace nanhunt::engine
