// SPDX-License-Identifier: Apache-2.0
#include "src/record/bad_ops.h"

#include <gtest/gtest.h>

namespace nanhunt::record {
namespace {

TEST(BadOps, kernels_of_a_launch_for_many_ops_are_the_first_bad_ones) {
  BadOps ops;
  for (const std::uint64_t seq : {3u, 12u, 13u, 20u}) ops.add(seq);
  ops.bind(10, 4);
  ops.bind(14, 5);
  ops.bind(20, 2);
  EXPECT_EQ(ops.op_of(10), 12u);
  EXPECT_EQ(ops.op_of(14), 14u) << "20 is not of its ops";
  EXPECT_EQ(ops.op_of(20), 20u);
  EXPECT_EQ(ops.op_of(11), 11u) << "nothing was launched for that one first";
  EXPECT_EQ(ops.since(12), 3u);
  EXPECT_EQ(ops.since(21), 0u);
}

TEST(BadOps, the_newest_are_known_however_many_there_are) {
  BadOps ops;
  for (std::uint64_t seq = 0; seq < 4 * BadOps::kMostOps; ++seq) {
    ops.add(seq);
    if (seq % 2 == 1) ops.bind(seq - 1, 2);
  }
  const std::uint64_t last = 4 * BadOps::kMostOps - 1;
  EXPECT_EQ(ops.since(last - 9), 10u);
  EXPECT_GE(ops.since(0), BadOps::kMostOps / 2);
  EXPECT_LE(ops.since(0), BadOps::kMostOps);
  // Launches whose first op is fine, one after the other.
  BadOps more;
  for (std::uint64_t seq = 0; seq < 8 * BadOps::kMostLaunches; seq += 2) {
    more.add(seq + 1);
    more.bind(seq, 2);
  }
  EXPECT_EQ(more.op_of(8 * BadOps::kMostLaunches - 2), 8 * BadOps::kMostLaunches - 1);
  EXPECT_EQ(more.op_of(0), 0u) << "forgotten";
}

}  // namespace
}  // namespace nanhunt::record
