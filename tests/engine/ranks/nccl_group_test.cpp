// SPDX-License-Identifier: Apache-2.0
// Contents of a device between ranks, with functions that stand in for NCCL's: they move the emulated device's bytes
// through the ranks' own group. No NCCL has run here.
#include "src/engine/ranks/nccl_group.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/tensor.h"
#include "nanhunt/engine/trainer.h"
#include "tests/engine/device/device_support.h"

namespace nanhunt::engine {
namespace {

using testing::kEmulated;
using testing_support::EmulatedDevice;
using Group = std::shared_ptr<RankGroup>;

constexpr int kInvalidUsage = 5;
thread_local RankGroup* carrier = nullptr;  // of this thread's rank
std::atomic<int> calls = 0, ended = 0, aborted = 0;
int fails_on_rank = -1;  // to join

void* on_host(const void* address) { return const_cast<void*>(EmulatedDevice::on_host(address)); }

kernels::NcclFunctions stand_in() {
  kernels::NcclFunctions f;
  f.get_unique_id = [](kernels::nccl::UniqueId* id) {
    std::memcpy(id->internal, "the group of rank 0", 20);
    return 0;
  };
  f.comm_init_rank = [](void** handle, int, kernels::nccl::UniqueId id, int rank) {
    EXPECT_STREQ(id.internal, "the group of rank 0");
    if (rank == fails_on_rank) return kInvalidUsage;
    *handle = carrier;
    return 0;
  };
  f.comm_abort = [](void*) { return ++aborted, 0; };
  f.comm_destroy = [](void*) { return ++ended, 0; };
  f.all_gather = [](const void* mine, void* all, std::size_t count, int type, void* handle, void* stream) {
    EXPECT_EQ(type, kernels::nccl::kBytes);
    EXPECT_NE(stream, nullptr);
    ++calls;
    auto& ranks = *static_cast<RankGroup*>(handle);
    ranks.gather({static_cast<const std::byte*>(on_host(mine)), count},
                 {static_cast<std::byte*>(on_host(all)), count * ranks.size()});
    return 0;
  };
  f.broadcast = [](const void* from, void* to, std::size_t count, int, int root, void* handle, void*) {
    EXPECT_EQ(from, to);
    ++calls;
    static_cast<RankGroup*>(handle)->broadcast({static_cast<std::byte*>(on_host(to)), count},
                                               static_cast<std::uint32_t>(root));
    return 0;
  };
  f.get_error_string = [](int) { return "invalid usage (run with NCCL_DEBUG=WARN for details)"; };
  return f;
}

class NcclGroups : public ::testing::Test {
 protected:
  void SetUp() override {
    calls = ended = aborted = 0;
    fails_on_rank = -1;
  }
  // Every rank with its group over the stand-in.
  void run(std::uint32_t size, const RankBody& body) {
    run_ranks(size, [&](const Group& host) {
      carrier = host.get();
      std::string why;
      const Group ranks = with_nccl(&nccl_, "", host, kEmulated, why);
      EXPECT_EQ(why, "");
      body(ranks);
    });
  }
  testing::ScopedEmulatedDevice emulated_;
  const kernels::NcclFunctions nccl_ = stand_in();
};

TEST_F(NcclGroups, give_sums_of_the_same_bits_as_those_through_the_host_and_wait_for_no_device) {
  const std::vector<double> values = {1, 2048, 65504, 6.1e-5, -0.0, std::numeric_limits<double>::quiet_NaN(), 1e-8};
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    for (const std::uint32_t size : {1u, 2u, 3u}) {
      std::vector<std::vector<double>> sums(2);
      std::vector<std::uint64_t> waits(2);
      for (const bool by_nccl : {false, true}) {
        const auto body = [&](const Group& ranks) {
          std::vector<double> own = values;
          for (double& value : own) value *= 1.0 + ranks->rank();
          Tensor mine = Tensor::from_values(own, {static_cast<std::int64_t>(own.size()), 1}, dtype).on(kEmulated);
          const std::uint64_t before = emulated_.device.waits;
          all_reduce_(mine, *ranks);
          if (size == 1) waits[by_nccl] = emulated_.device.waits - before;
          EXPECT_EQ(mine.version(), 1u);
          EXPECT_EQ(mine.device(), kEmulated);
          if (ranks->rank() == 0) sums[by_nccl] = testing::values_of(mine.on({}));
        };
        by_nccl ? run(size, body) : run_ranks(size, body);
      }
      EXPECT_EQ(fmt::format("{}", fmt::join(sums[1], " ")), fmt::format("{}", fmt::join(sums[0], " ")))
          << dtype_name(dtype) << " x " << size;
      if (size == 1) {
        EXPECT_EQ(waits[0], 1u) << "through the host";
        EXPECT_EQ(waits[1], 0u);
      }
    }
  }
  EXPECT_EQ(calls, 4 * (1 + 2 + 3));
  EXPECT_EQ(ended, 4 * (1 + 2 + 3));
  EXPECT_EQ(aborted, 0);
}

TEST_F(NcclGroups, train_to_the_same_bits_as_ranks_through_the_host) {
  std::vector<std::vector<double>> weights(2);
  for (const bool by_nccl : {false, true}) {
    const auto body = [&](const Group& ranks) {
      auto model = std::make_unique<Mlp>(MlpOptions{.seed = 1});
      model->to(kEmulated);
      const Tensor first = model->named_parameters()[0].tensor;
      TrainerOptions options;
      options.data_parallel = DataParallelOptions{.message_size = 1000};
      options.data_parallel->ranks = ranks;
      BatchSource rows = rows_of_rank(digits_train_batches(12, 7, DType::kF32), ranks->rank(), ranks->size());
      BatchSource batches = [rows = std::move(rows)](std::uint32_t index) {
        Batch batch = rows(index);
        batch.inputs = batch.inputs.on(kEmulated);
        batch.targets = batch.targets.on(kEmulated);
        return batch;
      };
      auto optimizer = make_optimizer(model->named_parameters(), {.algorithm = "sgd", .lr = 0.1});
      Trainer trainer(std::move(model), std::move(optimizer), std::move(batches),
                      [](const Tensor& logits, const Batch& batch) { return cross_entropy(logits, batch.targets); },
                      options);
      for (int step = 0; step < 3; ++step) trainer.step();
      if (ranks->rank() == 0) weights[by_nccl] = testing::values_of(first.on({}));
    };
    by_nccl ? run(2, body) : run_ranks(2, body);
  }
  EXPECT_GT(calls, 2 * 3);
  EXPECT_EQ(weights[1], weights[0]);
}

TEST_F(NcclGroups, broadcast_and_are_told_like_any_other) {
  for (const bool by_nccl : {false, true}) {
    const auto body = [](const Group& ranks) {
      Tensor mine = Tensor::full({4}, ranks->rank(), DType::kF16).on(kEmulated);
      broadcast_(mine, *ranks, 1);
      EXPECT_EQ(mine.version(), 1u);
      EXPECT_EQ(mine.to_vector(), std::vector<double>(4, 1.0));
    };
    by_nccl ? run(3, body) : run_ranks(3, body);
    EXPECT_EQ(calls, by_nccl ? 3 : 0);
  }
}

TEST_F(NcclGroups, move_nothing_of_the_cpu_and_no_maximum) {
  run(2, [](const Group& ranks) {
    Tensor host = Tensor::full({2}, 1, DType::kF32), flag = Tensor::full({1}, ranks->rank(), DType::kF32).on(kEmulated);
    all_reduce_(host, *ranks);
    EXPECT_EQ(host.to_vector(), std::vector<double>(2, 2.0));
    all_reduce_(flag, *ranks, Reduction::kMax);
    EXPECT_EQ(flag.to_vector(), std::vector<double>(1, 1.0));
  });
  EXPECT_EQ(calls, 0);
}

TEST_F(NcclGroups, refuse_calls_of_which_another_rank_makes_another) {
  try {
    run(2, [](const Group& ranks) {
      Tensor mine = Tensor::full({1 + static_cast<std::int64_t>(ranks->rank())}, 1, DType::kF32).on(kEmulated);
      all_reduce_(mine, *ranks);
    });
    FAIL() << "nothing was thrown";
  } catch (const RankLost& lost) {
    EXPECT_NE(std::string(lost.what()).find("[ranks] expected the same call on all ranks, got one of"), std::string::npos)
        << lost.what();
  }
  EXPECT_EQ(calls, 0) << "neither may wait inside of NCCL";
  EXPECT_EQ(aborted, 2);
  EXPECT_EQ(ended, 0);
}

TEST_F(NcclGroups, that_one_rank_cannot_join_leave_all_with_the_host_and_say_which_and_why) {
  fails_on_rank = 1;
  std::vector<std::string> told(2);
  run_ranks(2, [&](const Group& host) {
    carrier = host.get();
    const Group ranks = with_nccl(&nccl_, "", host, kEmulated, told[host->rank()]);
    EXPECT_EQ(ranks, host);
    Tensor mine = Tensor::full({1}, 1, DType::kF32).on(kEmulated);
    EXPECT_EQ(all_reduce_(mine, *ranks).item(), 2);
  });
  for (const std::string& why : told)
    EXPECT_EQ(why, "rank 1: NCCL says: invalid usage (run with NCCL_DEBUG=WARN for details)");
  EXPECT_EQ(aborted, 1);  // rank 0, which had joined
  EXPECT_EQ(calls, 0);
}

TEST_F(NcclGroups, need_the_library_and_a_device_on_every_rank) {
  run_ranks(2, [&](const Group& host) {
    carrier = host.get();
    std::string why;
    EXPECT_EQ(with_nccl(host->rank() == 0 ? &nccl_ : nullptr, "NCCL was not found", host, kEmulated, why), host);
    EXPECT_EQ(why, "rank 1: NCCL was not found");
    EXPECT_EQ(with_nccl(&nccl_, "", host, host->rank() == 0 ? Device{} : kEmulated, why), host);
    EXPECT_EQ(why, "rank 0: its device is the CPU");
  });
}

TEST_F(NcclGroups, are_not_made_of_ranks_that_take_turns_for_nccl_would_wait_where_no_turn_is_passed_on) {
  run_ranks(2, [&](const Group& host) {
    std::string why;
    EXPECT_EQ(with_nccl(host, kEmulated, why), host);
    EXPECT_EQ(why, "its ranks take turns in one process");
  });
  run_ranks(1, [&](const Group& host) { EXPECT_FALSE(host->takes_turns()); });
}

TEST_F(NcclGroups, that_lose_a_call_end_with_what_nccl_says) {
  kernels::NcclFunctions broken = nccl_;
  broken.all_gather = [](const void*, void*, std::size_t, int, void*, void*) { return 1; };
  try {
    run_ranks(2, [&](const Group& host) {
      carrier = host.get();
      std::string why;
      const Group ranks = with_nccl(&broken, "", host, kEmulated, why);
      Tensor mine = Tensor::full({1}, 1, DType::kF32).on(kEmulated);
      all_reduce_(mine, *ranks);
    });
    FAIL() << "nothing was thrown";
  } catch (const RankLost& lost) {
    EXPECT_STREQ(lost.what(), "NCCL says: invalid usage (run with NCCL_DEBUG=WARN for details)");
  }
  EXPECT_EQ(aborted, 2);
}

}  // namespace
}  // namespace nanhunt::engine
