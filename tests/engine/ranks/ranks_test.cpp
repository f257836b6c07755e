// SPDX-License-Identifier: Apache-2.0
// What ranks of one process exchange, and how they end.
#include "nanhunt/engine/ranks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/tensor.h"

namespace nanhunt::engine {
namespace {

using Group = std::shared_ptr<RankGroup>;

std::vector<double> reduced(const std::vector<double>& shares, DType dtype, Reduction reduction) {
  std::vector<std::vector<double>> results(shares.size());
  run_ranks(static_cast<std::uint32_t>(shares.size()), [&](const Group& ranks) {
    Tensor mine = Tensor::full({2}, shares[ranks->rank()], dtype);
    all_reduce_(mine, *ranks, reduction);
    EXPECT_EQ(mine.version(), 1u);
    results[ranks->rank()] = mine.to_vector();
  });
  for (const auto& result : results) EXPECT_EQ(fmt::format("{}", result[1]), fmt::format("{}", results[0][0]));
  return results[0];
}

TEST(Ranks, add_up_in_their_order_and_round_each_partial_sum_to_the_format) {
  EXPECT_EQ(reduced({1, 2, 3, 4}, DType::kF32, Reduction::kSum), (std::vector<double>{10, 10}));
  // 2048 + 1 is a tie that goes to 2048 in fp16; in fp32 both ones count
  EXPECT_EQ(reduced({2048, 1, 1}, DType::kF16, Reduction::kSum)[0], 2048);
  EXPECT_EQ(reduced({1, 1, 2048}, DType::kF16, Reduction::kSum)[0], 2050);
  EXPECT_EQ(reduced({2048, 1, 1}, DType::kF32, Reduction::kSum)[0], 2050);
}

TEST(Ranks, sums_in_fp16_overflow_from_65520_on) {
  // 4 * 16376 = 65504, 4 * 16384 = 65536
  EXPECT_EQ(reduced({16376, 16376, 16376, 16376}, DType::kF16, Reduction::kSum)[0], 65504);
  EXPECT_EQ(reduced({16384, 16384, 16384, 16384}, DType::kF16, Reduction::kSum)[0],
            std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(reduced({1, NAN, 1, 1}, DType::kF16, Reduction::kSum)[0]));
}

TEST(Ranks, find_the_largest) { EXPECT_EQ(reduced({1, 7, -9}, DType::kF32, Reduction::kMax)[0], 7); }

TEST(Ranks, get_what_the_root_has) {
  run_ranks(3, [](const Group& ranks) {
    Tensor mine = Tensor::full({4}, ranks->rank(), DType::kF16);
    broadcast_(mine, *ranks, 1);
    EXPECT_EQ(mine.to_vector(), std::vector<double>(4, 1.0));
  });
}

TEST(Ranks, run_one_at_a_time_and_pass_each_other_at_every_exchange) {
  std::string order;
  run_ranks(3, [&](const Group& ranks) {
    for (int call = 0; call < 2; ++call) {
      order += std::to_string(ranks->rank());
      Tensor mine = Tensor::full({1}, 1, DType::kF32);
      all_reduce_(mine, *ranks);
      EXPECT_EQ(mine.item(), 3);
    }
  });
  EXPECT_EQ(order, "012201");  // who comes last goes on
}

TEST(Ranks, that_fail_end_the_others_and_say_why) {
  std::vector<std::string> told(4);
  try {
    run_ranks(4, [&](const Group& ranks) {
      Tensor mine = Tensor::full({1}, 1, DType::kF32);
      all_reduce_(mine, *ranks);
      if (ranks->rank() == 2) throw std::invalid_argument("no more data");
      try {
        all_reduce_(mine, *ranks);
      } catch (const RankLost& lost) {
        told[ranks->rank()] = lost.what();
        throw;
      }
    });
    FAIL() << "nothing was thrown";
  } catch (const std::invalid_argument& own) {
    EXPECT_STREQ(own.what(), "no more data");
  }
  for (const std::size_t rank : {0u, 1u, 3u}) EXPECT_EQ(told[rank], "rank 2 has ended: no more data");
}

TEST(Ranks, that_end_early_leave_nobody_waiting) {
  EXPECT_THROW(run_ranks(2,
                         [](const Group& ranks) {
                           if (ranks->rank() == 1) return;
                           Tensor mine = Tensor::full({1}, 1, DType::kF32);
                           all_reduce_(mine, *ranks);
                         }),
               RankLost);
}

TEST(Ranks, that_make_different_calls_are_refused) {
  const auto expect_refused = [](const RankBody& body) {
    try {
      run_ranks(2, body);
      FAIL() << "nothing was thrown";
    } catch (const RankLost& lost) {
      EXPECT_NE(std::string(lost.what()).find("[ranks] expected the same call on all ranks, got"), std::string::npos)
          << lost.what();
    }
  };
  expect_refused([](const Group& ranks) {
    Tensor mine = Tensor::full({1 + static_cast<std::int64_t>(ranks->rank())}, 1, DType::kF32);
    all_reduce_(mine, *ranks);
  });
  expect_refused([](const Group& ranks) {
    Tensor mine = Tensor::full({1}, 1, DType::kF32);
    ranks->rank() == 0 ? all_reduce_(mine, *ranks) : broadcast_(mine, *ranks);
  });
}

TEST(Ranks, of_a_caller_run_along_and_end_with_it) {
  int ended = 0, steps = 0;
  {
    const Group mine = with_companions(3, 1, [&](const Group& ranks) {
      struct Count {
        int& of;
        ~Count() { ++of; }
      } count{ended};
      for (;;) {
        Tensor share = Tensor::full({1}, 10, DType::kF32);
        all_reduce_(share, *ranks);
        ++steps;
      }
    });
    for (int i = 0; i < 5; ++i) {
      Tensor share = Tensor::full({1}, 1, DType::kF32);
      EXPECT_EQ(all_reduce_(share, *mine).item(), 21);
    }
    EXPECT_EQ(ended, 0);
  }
  EXPECT_EQ(ended, 2);
  EXPECT_EQ(steps, 10);
}

TEST(Ranks, that_run_along_and_fail_are_named_to_the_caller) {
  const Group mine = with_companions(2, 0, [](const Group&) { throw std::runtime_error("no memory"); });
  Tensor share = Tensor::full({1}, 1, DType::kF32);
  try {
    all_reduce_(share, *mine);
    FAIL() << "nothing was thrown";
  } catch (const RankLost& lost) {
    EXPECT_STREQ(lost.what(), "rank 1 has ended: no memory");
  }
}

TEST(Ranks, tell_observers_of_a_call_before_its_op) {
  class Calls : public Observer {
   public:
    std::string told;
    void on_collective(const CollectiveCall& call) noexcept override {
      told += std::string(collective_kind_name(call.kind)) + " " + std::string(reduction_name(call.reduction)) + " " +
              std::to_string(call.root) + " #" + std::to_string(call.call) + " of " + std::to_string(call.ranks) +
              " gives " + std::to_string(static_cast<int>(call.share->item())) + "; ";
    }
    void on_op(const OpCall& call) noexcept override {
      told += std::string(call.op) + " in " + std::string(phase_name(call.phase)) + " " +
              std::string(call.inputs[0].role == ArgRole::kOverwritten ? "over" : "?") + "; ";
    }
  };
  run_ranks(2, [](const Group& ranks) {
    Calls calls;
    const HookHandle handle = add_observer(calls);
    Tensor mine = Tensor::full({1}, 5 + ranks->rank(), DType::kF32);
    all_reduce_(mine, *ranks);
    broadcast_(mine, *ranks, 1);
    const std::string share = std::to_string(5 + ranks->rank());
    EXPECT_EQ(calls.told, "allreduce sum -1 #0 of 2 gives " + share +
                              "; c10d::allreduce_ in comm over; broadcast none 1 #1 of 2 gives 11; c10d::broadcast_ in comm "
                              "over; ");
  });
}

}  // namespace
}  // namespace nanhunt::engine
