// SPDX-License-Identifier: Apache-2.0
// The join of kernels with ops: what comes out may not depend on the order in which records come in.
#include "hooks/cupti/kernel_join.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <tuple>

namespace nanhunt::hooks {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

JoinedKernels row(std::uint64_t seq, std::uint32_t step, const std::string& name, std::uint64_t count,
                  std::int64_t nanoseconds) {
  return {seq, step, false, name, count, count, nanoseconds};
}

TEST(KernelJoin, a_kernel_is_its_ops_whichever_record_comes_first) {
  const std::vector<std::function<void(KernelJoin&)>> records = {
      [](KernelJoin& join) { join.bind(1, 40, 3); },
      [](KernelJoin& join) { join.add(OpTag{9, 1}); },
      [](KernelJoin& join) { join.add(Launch{9}); },
      [](KernelJoin& join) { join.add(KernelRun{9, "gemm", 100, 350}); },
  };
  std::vector<int> order = {0, 1, 2, 3};
  do {
    KernelJoin join;
    std::vector<JoinedKernels> rows;
    for (const int i : order) {
      records[static_cast<std::size_t>(i)](join);
      const auto now = join.collect(7);  // also between any two of them
      rows.insert(rows.end(), now.begin(), now.end());
    }
    EXPECT_THAT(rows, ElementsAre(row(40, 3, "gemm", 1, 250)));
    EXPECT_THAT(join.finish(7), IsEmpty());
  } while (std::next_permutation(order.begin(), order.end()));
}

// A step of a run as CUPTI would tell it, with everything odd in it that is known to come.
struct Records {
  std::vector<std::function<void(KernelJoin&)>> all;
  std::vector<JoinedKernels> expected;
  JoinStats stats;
};
Records make_records(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](unsigned n) { return std::uniform_int_distribution<unsigned>(0, n - 1)(random); };
  Records out;
  std::uint32_t correlation = 100;
  std::uint64_t ticket = 1;
  for (std::uint64_t seq = 0; seq < 40; ++seq) {
    const std::uint32_t step = static_cast<std::uint32_t>(seq / 10);
    const std::uint64_t outer = ticket++;
    const std::uint64_t inner = ticket++;  // nested: the launch is the inner op's
    const bool bound = below(5) != 0;      // else the op is not recorded
    out.all.push_back([=](KernelJoin& join) { join.bind(outer, 1000 + seq, step); });
    out.all.push_back([=](KernelJoin& join) { join.bind(inner, bound ? seq : kNoSeq, step); });
    JoinedKernels sum{bound ? seq : kNoSeq, step, false, "kernel" + std::to_string(seq), 0, 0, 0};
    for (unsigned launches = below(4); launches > 0; --launches) {
      const std::uint32_t id = correlation++;
      const bool graph = below(4) == 0;
      out.all.push_back([=](KernelJoin& join) { join.add(OpTag{id, outer}); });
      out.all.push_back([=](KernelJoin& join) { join.add(OpTag{id, inner}); });
      out.all.push_back([=](KernelJoin& join) { join.add(PlaceTag{id, place_id(step, Phase::kForward)}); });
      out.all.push_back([=](KernelJoin& join) { join.add(Launch{id, graph}); });
      for (std::uint64_t node = graph ? 1 + below(5) : 0, kernels = graph ? node : 1; kernels > 0; --kernels) {
        const bool timed = below(6) != 0;
        KernelRun run{id, {}, timed ? 1000 + id : 0, timed ? 1000 + id + 7 * kernels : 0, graph ? kernels : 0};
        out.all.push_back([=, name = sum.name](KernelJoin& join) {
          KernelRun told = run;
          told.name = name;
          join.add(told);
        });
        if (below(5) == 0) {  // told twice
          out.all.push_back(out.all.back());
          ++out.stats.duplicates;
        }
        ++sum.count;
        ++out.stats.kernels;
        out.stats.without_op += !bound;
        out.stats.untimed += !timed;
        sum.timed += timed;
        sum.duration_ns += timed ? static_cast<std::int64_t>(7 * kernels) : 0;
      }
    }
    if (sum.count != 0) out.expected.push_back(sum);
    if (below(6) == 0) {  // a launch whose kernel never comes
      const std::uint32_t id = correlation++;
      out.all.push_back([=](KernelJoin& join) { join.add(OpTag{id, inner}); });
      out.all.push_back([=](KernelJoin& join) { join.add(Launch{id}); });
      ++out.stats.launches_without_kernel;
    }
  }
  std::sort(out.expected.begin(), out.expected.end(), [](const JoinedKernels& a, const JoinedKernels& b) {
    return std::tie(a.step, a.seq, a.own, a.name) < std::tie(b.step, b.seq, b.own, b.name);
  });
  return out;
}

TEST(KernelJoin, shuffled_records_of_a_run_give_the_same_rows) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    Records records = make_records(seed);
    std::shuffle(records.all.begin(), records.all.end(), std::mt19937(seed * 7919));
    KernelJoin join;
    for (const auto& record : records.all) record(join);
    EXPECT_EQ(join.finish(0), records.expected) << seed;
    EXPECT_EQ(join.stats(), records.stats) << seed;
    EXPECT_EQ(join.pending(), 0u);
  }
}

TEST(KernelJoin, rows_collected_on_the_way_add_up_to_the_same) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    Records records = make_records(seed);
    std::mt19937 random(seed);
    std::shuffle(records.all.begin(), records.all.end(), random);
    KernelJoin join({.max_pending = 1u << 18, .max_age = 100000});
    std::map<std::tuple<std::uint32_t, std::uint64_t, bool, std::string>, JoinedKernels> sums;
    const auto add = [&](const std::vector<JoinedKernels>& rows) {
      for (const JoinedKernels& it : rows) {
        JoinedKernels& sum =
            sums.try_emplace({it.step, it.seq, it.own, it.name}, it.seq, it.step, it.own, it.name).first->second;
        sum.count += it.count;
        sum.timed += it.timed;
        sum.duration_ns += it.duration_ns;
      }
    };
    for (const auto& record : records.all) {
      record(join);
      if (random() % 16 == 0) add(join.collect(0));
    }
    add(join.finish(0));
    std::vector<JoinedKernels> rows;
    for (const auto& [key, sum] : sums) rows.push_back(sum);
    // An inner tag that comes after a collection finds its kernel told already, as the outer op's: launches stay whole.
    std::uint64_t told = 0, expected = 0;
    for (const JoinedKernels& it : rows) told += it.count;
    for (const JoinedKernels& it : records.expected) expected += it.count;
    EXPECT_EQ(told, expected) << seed;
  }
}

TEST(KernelJoin, what_nanhunt_launches_inside_of_an_op_is_its_own) {
  KernelJoin join;
  join.bind(1, 5, 2);
  join.add(OpTag{7, 1});
  join.add(OpTag{7, kOwnTicket});
  join.add(PlaceTag{7, place_id(2, Phase::kBackward)});
  join.add(KernelRun{7, "stats", 10, 14});
  join.add(OpTag{8, 1});
  join.add(KernelRun{8, "gemm", 20, 120});
  EXPECT_THAT(join.finish(9), ElementsAre(row(5, 2, "gemm", 1, 100), JoinedKernels{kNoSeq, 2, true, "stats", 1, 1, 4}));
  EXPECT_EQ(join.stats().own, 1u);
  EXPECT_EQ(join.stats().without_op, 0u);
}

TEST(KernelJoin, a_kernel_without_an_op_is_told_in_its_step_once_it_waited_long_enough) {
  KernelJoin join({.max_pending = 100, .max_age = 3});
  join.add(PlaceTag{7, place_id(4, Phase::kData)});
  join.add(KernelRun{7, "fill", 10, 14});
  join.add(KernelRun{8, "", 0, 0});  // from before anything was watched
  for (int i = 0; i < 3; ++i) EXPECT_THAT(join.collect(6), IsEmpty());
  EXPECT_THAT(join.collect(6),
              ElementsAre(row(kNoSeq, 4, "fill", 1, 4), JoinedKernels{kNoSeq, 6, false, "", 1, 0, 0}));
  EXPECT_EQ(join.stats().without_op, 2u);
  EXPECT_EQ(join.stats().unnamed, 1u);
  EXPECT_EQ(join.stats().untimed, 1u);
}

TEST(KernelJoin, times_that_cannot_be_are_no_times) {
  KernelJoin join;
  join.bind(1, 0, 0);
  std::uint32_t correlation = 1;
  for (const auto& [start, end] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {0, 0}, {0, 5}, {5, 0}, {9, 5}, {1, ~std::uint64_t{0}}, {5, 5}}) {
    join.add(OpTag{correlation, 1});
    join.add(KernelRun{correlation++, "k", start, end});
  }
  const auto rows = join.finish(0);
  ASSERT_THAT(rows, SizeIs(1));
  EXPECT_EQ(rows[0].count, 6u);
  EXPECT_EQ(rows[0].timed, 1u);  // 5 to 5: short, and known
  EXPECT_EQ(rows[0].duration_ns, 0);
}

TEST(KernelJoin, a_graph_stays_its_launching_ops_as_long_as_its_kernels_come) {
  KernelJoin join({.max_pending = 1000, .max_age = 2});
  join.bind(1, 5, 0);
  join.add(OpTag{7, 1});
  join.add(Launch{7, true});
  for (std::uint64_t node = 1; node <= 20; ++node) {
    join.add(KernelRun{7, "node", 10 * node, 10 * node + 3, node});
    EXPECT_THAT(join.collect(0), ElementsAre(row(5, 0, "node", 1, 3))) << node;
  }
}

TEST(KernelJoin, an_old_launch_whose_kernel_came_is_not_counted_as_one_without) {
  KernelJoin join({.max_pending = 100, .max_age = 4});
  join.add(Launch{7});
  join.add(KernelRun{7, "came", 1, 2});
  for (int i = 0; i < 10; ++i) join.collect(0);
  EXPECT_EQ(join.stats().kernels, 1u);
  EXPECT_EQ(join.pending(), 0u);
  EXPECT_EQ(join.stats().launches_without_kernel, 0u);
}

TEST(KernelJoin, entries_that_nothing_comes_for_are_given_up_and_counted) {
  // given more than it may hold, none of which is ever joined
  KernelJoin join({.max_pending = 100, .max_age = 4});
  for (std::uint32_t i = 0; i < 100000; ++i) {
    join.add(OpTag{i, 1u + i});
    join.add(Launch{i});
    join.bind(1'000'000 + i, i, 0);
    join.add(KernelRun{1'000'000 + i, "late", 1, 2});
    ASSERT_LE(join.pending(), 300u);
  }
  EXPECT_GT(join.stats().given_up, 0u);
  // when time passes
  for (int i = 0; i < 6; ++i) join.collect(0);
  // then nothing is held, and what never came is counted
  EXPECT_EQ(join.pending(), 0u);
  EXPECT_EQ(join.stats().launches_without_kernel, 100u);
  EXPECT_EQ(join.stats().kernels, 100u);
}

TEST(KernelJoin, sums_do_not_overflow) {
  KernelJoin join;
  join.bind(1, 0, 0);
  for (std::uint32_t i = 1; i <= 3; ++i) {
    join.add(OpTag{i, 1});
    join.add(KernelRun{i, "k", 1, std::uint64_t{1} << 63});
  }
  EXPECT_EQ(join.finish(0).at(0).duration_ns, std::numeric_limits<std::int64_t>::max());
}

TEST(KernelJoin, steps_and_phases_come_back_from_their_ids) {
  for (const std::uint32_t step : {0u, 1u, 255u, 4'000'000'000u}) {
    EXPECT_EQ(step_of_place(place_id(step, Phase::kUpdate)), step);
    EXPECT_NE(place_id(step, Phase::kData), 0u);
  }
  EXPECT_NE(place_id(0, Phase::kData), place_id(0, Phase::kForward));
}

}  // namespace
}  // namespace nanhunt::hooks
