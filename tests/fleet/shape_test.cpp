// SPDX-License-Identifier: Apache-2.0
// The words for a set of ranks. 64 ranks: 4 stages of 16, 8 hosts of 8; tensor-parallel by 2; expert 0 to 7.
#include <gtest/gtest.h>

#include <functional>

#include "src/fleet/shape.h"

namespace nanhunt::fleet {
namespace {

std::vector<Digest> ranks_of_64(const std::function<bool(std::uint32_t)>& is_there) {
  std::vector<Digest> ranks;
  for (std::uint32_t rank = 0; rank < 64; ++rank) {
    if (!is_there(rank)) continue;
    Digest one;
    one.rank = rank;
    one.host = std::to_string(rank / 8).insert(0, 1, 'n');
    one.coordinates = {{"pipeline", rank / 16}, {"tensor", rank % 2}, {"expert", rank / 2 % 8}};
    ranks.push_back(one);
  }
  return ranks;
}

std::string shape_of(const std::function<bool(std::uint32_t)>& hit,
                     const std::function<bool(std::uint32_t)>& is_there = [](std::uint32_t) { return true; }) {
  const std::vector<Digest> ranks = ranks_of_64(is_there);
  std::vector<bool> in;
  std::vector<std::uint32_t> numbers;
  for (const Digest& one : ranks) {
    in.push_back(hit(one.rank));
    if (in.back()) numbers.push_back(one.rank);
  }
  const Shape shape = find_shape(ranks, in);
  std::string text = shape_text(shape, numbers);
  for (const auto& places : shape.also) text += "; " + places_text(places);
  return text;
}

TEST(Shape, names_what_all_ranks_of_the_set_and_no_others_have_in_common) {
  EXPECT_EQ(shape_of([](auto) { return true; }), "all 64 ranks");
  EXPECT_EQ(shape_of([](auto) { return false; }), "no rank");
  EXPECT_EQ(shape_of([](auto rank) { return rank == 47; }), "rank 47 alone");
  EXPECT_EQ(shape_of([](auto rank) { return rank / 16 == 3; }), "all 16 ranks of pipeline stage 3; host n6 and n7");
  EXPECT_EQ(shape_of([](auto rank) { return rank / 8 == 5; }), "all 8 ranks of host n5");
  EXPECT_EQ(shape_of([](auto rank) { return rank / 2 % 8 == 6; }), "all 8 ranks of expert-parallel rank 6");
  EXPECT_EQ(shape_of([](auto rank) { return rank % 2 == 1; }), "all 32 ranks of tensor-parallel rank 1");
}

TEST(Shape, of_ranks_that_share_nothing_is_a_list) {
  EXPECT_EQ(shape_of([](auto rank) { return rank == 3 || rank == 20 || rank == 37; }), "ranks 3, 20 and 37");
}

TEST(Shape, may_be_several_hosts_or_two_dimensions_at_once) {
  EXPECT_EQ(shape_of([](auto rank) { return rank / 8 == 2 || rank / 8 == 7; }), "all 16 ranks of host n2 and n7");
  EXPECT_EQ(shape_of([](auto rank) { return rank / 16 == 1 && rank % 2 == 0; }),
            "all 8 ranks of pipeline stage 1, tensor-parallel rank 0");
}

TEST(Shape, names_the_ranks_that_it_gets_wrong) {
  EXPECT_EQ(shape_of([](auto rank) { return rank / 16 == 2 && rank != 40; }), "all 16 ranks of pipeline stage 2 but rank 40; host n4 and n5");
  EXPECT_EQ(shape_of([](auto rank) { return rank / 16 == 2 || rank == 5; }), "all 16 ranks of pipeline stage 2 and rank 5; host n4 and n5");
}

TEST(Shape, is_not_spoiled_by_ranks_that_are_missing) {
  EXPECT_EQ(shape_of([](auto rank) { return rank / 16 == 3; }, [](auto rank) { return rank % 7 != 0; }),
            "all 13 ranks of pipeline stage 3; host n6 and n7");
}

TEST(Shape, that_cannot_be_told_from_another_says_both) {
  EXPECT_EQ(shape_of([](auto rank) { return rank / 16 == 3; }, [](auto rank) { return rank / 16 != 3 || rank / 8 == 6; }),
            "all 8 ranks of pipeline stage 3; host n6");
  EXPECT_EQ(shape_of([](auto rank) { return rank == 47; }, [](auto rank) { return rank / 8 != 5 || rank == 47; }),
            "rank 47 alone; host n5");
}

TEST(Shape, does_not_ask_dimensions_that_few_ranks_know) {
  std::vector<Digest> ranks(2000);
  std::vector<bool> in(2000, false);
  std::vector<std::uint32_t> numbers;
  for (std::uint32_t rank = 0; rank < 2000; ++rank) {
    ranks[rank].rank = rank;
    for (int i = 0; i < 16; ++i) ranks[rank].coordinates.emplace(std::to_string(rank * 16 + i), i % 2);
    if (rank % 500 == 0) {
      in[rank] = true;
      numbers.push_back(rank);
    }
  }
  EXPECT_EQ(shape_text(find_shape(ranks, in), numbers), "ranks 0, 500, 1000 and 1500");
}

TEST(Shape, of_ranks_that_do_not_say_where_they_stand_is_a_list_or_all) {
  std::vector<Digest> ranks(4);
  for (std::uint32_t rank = 0; rank < 4; ++rank) ranks[rank].rank = rank;
  EXPECT_EQ(shape_text(find_shape(ranks, {true, false, false, true}), {0, 3}), "ranks 0 and 3");
  EXPECT_EQ(shape_text(find_shape(ranks, {true, true, true, true}), {0, 1, 2, 3}), "all 4 ranks");
}

}  // namespace
}  // namespace nanhunt::fleet
