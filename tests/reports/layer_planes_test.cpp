// SPDX-License-Identifier: Apache-2.0
#include "reports/views/layer_planes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace nanhunt::reports {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// The inverse that the schema gives to readers.
double share_of(std::uint8_t byte) {
  if (byte < 2) return 0;
  const int level = byte - 2;
  return std::ldexp(0.5 + (level % 12) / 24.0, level / 12 - 20);
}

Analysis make_map(std::uint32_t columns, std::vector<float> headroom, std::vector<float> underflow,
                  std::vector<std::uint8_t> nonfinite) {
  Analysis a;
  a.layers.resize(headroom.size() / columns);
  a.layer_map.columns = columns;
  a.layer_map.first_step = 5;
  a.layer_map.steps_per_column = 10;
  a.layer_map.headroom = std::move(headroom);
  a.layer_map.underflow = std::move(underflow);
  a.layer_map.nonfinite = std::move(nonfinite);
  return a;
}

TEST(LayerPlanes, headroom_keeps_quarters_of_a_binade_and_says_when_nothing_was_seen) {
  EXPECT_EQ(headroom_byte(NAN), 0);
  EXPECT_EQ(headroom_byte(0), 1);
  EXPECT_EQ(headroom_byte(-3), 1);
  EXPECT_EQ(headroom_byte(0.24F), 1);
  EXPECT_EQ(headroom_byte(0.25F), 2);
  EXPECT_EQ(headroom_byte(16), 65);
  EXPECT_EQ(headroom_byte(63.5F), 255);
  EXPECT_EQ(headroom_byte(kInf), 255);
}

TEST(LayerPlanes, shares_read_back_within_a_twelfth_of_a_binade_and_none_differs_from_unseen) {
  EXPECT_EQ(underflow_byte(NAN), 0);
  EXPECT_EQ(underflow_byte(0), 1);
  EXPECT_EQ(share_of(underflow_byte(1)), 1);
  EXPECT_EQ(share_of(underflow_byte(0.5F)), 0.5);
  EXPECT_EQ(underflow_byte(1e-30F), 2);
  EXPECT_EQ(underflow_byte(2), underflow_byte(1));
  for (float share = 1e-6F; share <= 1; share *= 1.37F) {
    const double back = share_of(underflow_byte(share));
    EXPECT_LE(back, share);
    EXPECT_GT(back, share * 11.0 / 12.0 - 1e-12);
  }
}

TEST(LayerPlanes, merged_columns_keep_the_worst_of_their_cells) {
  const Analysis a = make_map(3, {4, 2, NAN, 8, 9, 1}, {0, 0.5F, NAN, NAN, NAN, 1}, {0, 0, 1, 0, 0, 0});

  const LayerPlanes planes = make_layer_planes(a, 100, 4);

  EXPECT_EQ(planes.columns, 2U);
  EXPECT_EQ(planes.steps_per_column, 20U);
  EXPECT_EQ(planes.first_step, 5U);
  EXPECT_EQ(planes.headroom, (std::vector<std::uint8_t>{headroom_byte(2), 0, headroom_byte(8), headroom_byte(1)}));
  EXPECT_EQ(planes.underflow, (std::vector<std::uint8_t>{underflow_byte(0.5F), 0, 0, underflow_byte(1)}));
  EXPECT_EQ(planes.nonfinite, (std::vector<std::uint8_t>{0b0010}));
}

TEST(LayerPlanes, a_map_that_fits_is_kept_as_it_is_and_rows_are_bounded) {
  const Analysis a = make_map(2, {1, 2, 3, 4}, {0, 0, 0, 0}, {1, 1, 1, 1});
  EXPECT_EQ(make_layer_planes(a, 100, 4).columns, 2U);
  EXPECT_EQ(make_layer_planes(a, 1, 100).headroom.size(), 2U);
}

TEST(LayerPlanes, a_map_of_another_size_than_its_layers_is_no_map) {
  Analysis a = make_map(2, {1, 2, 3, 4}, {0, 0, 0, 0}, {1, 1, 1, 1});
  a.layers.resize(3);
  EXPECT_TRUE(make_layer_planes(a, 100, 100).empty());
  EXPECT_TRUE(make_layer_planes(Analysis{}, 100, 100).empty());
}

TEST(LayerPlanes, base64_follows_the_vectors_of_its_standard) {
  EXPECT_EQ(base64({}), "");
  EXPECT_EQ(base64({'f'}), "Zg==");
  EXPECT_EQ(base64({'f', 'o'}), "Zm8=");
  EXPECT_EQ(base64({'f', 'o', 'o'}), "Zm9v");
  EXPECT_EQ(base64({'f', 'o', 'o', 'b', 'a', 'r'}), "Zm9vYmFy");
  EXPECT_EQ(base64({0xfb, 0xff}), "+/8=");
}

TEST(LayerPlanes, a_map_tells_something_where_steps_were_watched_throughout_and_a_number_came_near_an_edge) {
  LayerPlanes planes;
  planes.rows = 1;
  planes.columns = 4;
  planes.headroom = {headroom_byte(10), headroom_byte(9), headroom_byte(8), 0};
  planes.underflow = {0, 0, 0, 0};
  planes.nonfinite = {0};
  EXPECT_TRUE(tells(planes));
  planes.headroom[1] = planes.headroom[2] = 0;
  EXPECT_FALSE(tells(planes)) << "only one step of four was watched";
  planes.headroom = {headroom_byte(60), headroom_byte(60), headroom_byte(60), headroom_byte(60)};
  EXPECT_FALSE(tells(planes)) << "fp32, far from any edge";
  planes.underflow[2] = underflow_byte(0.25F);
  EXPECT_TRUE(tells(planes));
}

}  // namespace
}  // namespace nanhunt::reports
