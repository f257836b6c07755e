// SPDX-License-Identifier: Apache-2.0
// The map of steps x ranks: planted shapes lie in the right cells, whatever is aggregated; sizes are bounded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "src/fleet/fleet_page.h"
#include "src/fleet/fleet_text.h"
#include "src/fleet/rank_map.h"
#include "tests/fleet/sample_fleets.h"

namespace nanhunt::fleet {
namespace {

using fleet_tests::make_stage_fleet;
using fleet_tests::SampleFleet;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

RankState state_of(const RankMap& map, const BandedMap& banded, std::size_t band, std::uint32_t step) {
  return banded.cells.at(band * map.columns + map.column_of(step));
}

std::size_t grouping_of(const RankMap& map, const std::string& dimension) {
  for (std::size_t i = 0; i < map.groupings.size(); ++i) {
    if (map.groupings[i].dimension == dimension) return i;
  }
  ADD_FAILURE() << dimension << " is no grouping";
  return 0;
}

TEST(RankMap, has_a_row_for_each_rank_and_a_column_for_each_step_of_a_small_run) {
  const FleetVerdict verdict = make_stage_fleet({});
  const RankMap map = make_rank_map(verdict);
  EXPECT_EQ(map.ranks.size(), 64u);
  EXPECT_EQ(map.columns, 100u);
  EXPECT_EQ(map.steps_per_column, 1u);
  const BandedMap banded = aggregate_ranks(map, 0);
  ASSERT_EQ(banded.bands.size(), 64u);
  for (std::uint32_t rank = 0; rank < 64; ++rank) {
    const bool hit = rank / 16 == 2;
    EXPECT_EQ(map.ranks[rank].found, hit);
    EXPECT_EQ(banded.bands[rank].found, hit ? 1u : 0u);
    EXPECT_EQ(state_of(map, banded, rank, 69), RankState::kClean);
    EXPECT_EQ(state_of(map, banded, rank, 70), hit ? RankState::kOrigin : RankState::kClean);
    EXPECT_EQ(state_of(map, banded, rank, 71), hit ? RankState::kOrigin : RankState::kArrived);
    EXPECT_EQ(state_of(map, banded, rank, 99), hit ? RankState::kOrigin : RankState::kAfter)
        << "a digest does not say more";
  }
}

TEST(RankMap, a_band_of_many_ranks_and_steps_shows_the_worst_of_them) {
  const FleetVerdict verdict = make_stage_fleet({.ranks = 4096, .steps = 5000, .hit_step = 3001});
  const RankMap map = make_rank_map(verdict);
  EXPECT_EQ(map.columns, 500u);
  EXPECT_EQ(map.steps_per_column, 10u);
  const BandedMap banded = aggregate_ranks(map, 0);
  ASSERT_EQ(banded.bands.size(), 512u);
  const auto ranks = std::accumulate(banded.bands.begin(), banded.bands.end(), 0u,
                                     [](unsigned sum, const RankBand& b) { return sum + b.ranks; });
  EXPECT_EQ(ranks, 4096u);
  for (std::size_t band = 0; band < 512; ++band) {
    const bool hit = band / 128 == 2;
    EXPECT_EQ(banded.bands[band].found, hit ? 8u : 0u);
    EXPECT_EQ(state_of(map, banded, band, 2999), RankState::kClean);
    EXPECT_EQ(state_of(map, banded, band, 3000), hit ? RankState::kOrigin : RankState::kArrived);
  }
}

TEST(RankMap, bands_of_a_grouping_do_not_mix_its_values) {
  const FleetVerdict verdict = make_stage_fleet({.ranks = 1000});
  const RankMap map = make_rank_map(verdict);
  for (const char* dimension : {"pipeline", "data", "expert", "host"}) {
    const std::size_t grouping = grouping_of(map, dimension);
    const BandedMap banded = aggregate_ranks(map, grouping, 130);
    EXPECT_LE(banded.bands.size(), 130u);
    std::size_t next = 0;
    for (const RankBand& band : banded.bands) {
      const std::uint32_t value = map.groupings[grouping].value[banded.order[next]];
      for (std::uint32_t i = 0; i < band.ranks; ++i)
        EXPECT_EQ(map.groupings[grouping].value[banded.order[next++]], value) << dimension;
    }
    EXPECT_EQ(next, 1000u);
  }
}

TEST(RankMap, of_more_ranks_than_bands_is_shown_by_what_the_found_ranks_have_in_common) {
  const FleetVerdict small = make_stage_fleet({}), large = make_stage_fleet({.ranks = 1000});
  const RankMap by_rank = make_rank_map(small), by_shape = make_rank_map(large);
  EXPECT_EQ(by_rank.first_grouping, 0u);
  EXPECT_EQ(by_shape.groupings[by_shape.first_grouping].dimension, "pipeline");
}

TEST(RankMap, more_values_than_bands_stay_whole) {
  const FleetVerdict verdict = make_stage_fleet({.ranks = 1000});
  const RankMap map = make_rank_map(verdict);
  const BandedMap banded = aggregate_ranks(map, grouping_of(map, "host"), 50);
  EXPECT_EQ(banded.bands.size(), 42u) << "125 hosts, three a band";
  EXPECT_EQ(banded.bands.front().ranks, 24u);
  EXPECT_EQ(banded.bands.back().ranks, 16u);
}

TEST(RankMap, values_are_in_the_order_of_their_numbers) {
  const FleetVerdict verdict = make_stage_fleet({.ranks = 100});
  const RankMap map = make_rank_map(verdict);
  const RankGrouping& by = map.groupings[grouping_of(map, "host")];
  EXPECT_EQ(by.values[2], "n2");
  EXPECT_EQ(by.values[10], "n10");
}

TEST(RankMap, missing_damaged_and_older_ranks_are_rows_of_their_own_state) {
  const FleetVerdict verdict = fleet_tests::make_gapped_fleet();
  const RankMap map = make_rank_map(verdict);
  ASSERT_EQ(map.ranks.size(), 40u);
  const BandedMap banded = aggregate_ranks(map, 0);
  for (const auto& [rank, state] :
       {std::pair{12u, RankState::kMissing}, {21u, RankState::kDamaged}, {33u, RankState::kOlder}}) {
    for (const std::uint32_t step : {0u, 59u}) EXPECT_EQ(state_of(map, banded, rank, step), state) << rank;
    EXPECT_EQ(banded.bands[rank].absent, 1u);
  }
  EXPECT_EQ(state_of(map, banded, 5, 20), RankState::kClean);
  EXPECT_EQ(state_of(map, banded, 5, 21), RankState::kNothing) << "its last step was 20";
  const BandedMap by_host = aggregate_ranks(map, grouping_of(map, "host"), 1);
  EXPECT_EQ(by_host.bands.front().absent, 8u);
  EXPECT_THAT(by_host.cells, Each(RankState::kClean));
}

TEST(RankMap, replicas_that_part_are_marked_from_the_step_at_which_it_was_seen) {
  const FleetVerdict verdict = fleet_tests::make_parted_fleet();
  ASSERT_TRUE(verdict.parting_leads);
  const RankMap map = make_rank_map(verdict);
  const BandedMap banded = aggregate_ranks(map, 0);
  EXPECT_TRUE(map.ranks[5].found);
  EXPECT_EQ(state_of(map, banded, 5, 39), RankState::kClean);
  EXPECT_EQ(state_of(map, banded, 5, 40), RankState::kParted);
  EXPECT_EQ(state_of(map, banded, 5, 63), RankState::kParted);
  EXPECT_EQ(state_of(map, banded, 4, 63), RankState::kClean);
}

TEST(RankMap, of_a_rank_that_saw_fewer_steps_than_its_last_ones_number_the_first_are_not_recorded) {
  std::vector<Digest> ranks(2);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    ranks[rank].rank = rank;
    ranks[rank].world_size = 2;
    ranks[rank].status = VerdictStatus::kClean;
    ranks[rank].steps = rank == 0 ? 100 : 40;
    ranks[rank].last_step = ranks[rank].clean_through = 99;
  }
  Digests digests;
  choose_attempts(std::move(ranks), digests);
  const FleetVerdict verdict = judge_fleet(std::move(digests));
  const RankMap map = make_rank_map(verdict);
  const BandedMap banded = aggregate_ranks(map, 0);
  EXPECT_EQ(state_of(map, banded, 1, 59), RankState::kNothing);
  EXPECT_EQ(state_of(map, banded, 1, 60), RankState::kClean);
  EXPECT_EQ(state_of(map, banded, 0, 0), RankState::kClean);
}

TEST(RankMap, of_absurd_numbers_is_bounded_and_says_how_many_ranks_it_leaves_out) {
  const FleetVerdict verdict = fleet_tests::make_hostile_fleet();
  const RankMap map = make_rank_map(verdict);
  EXPECT_EQ(map.ranks.size(), kMaxMapRanks);
  EXPECT_EQ(map.omitted, UINT32_MAX - kMaxMapRanks);
  EXPECT_LE(map.columns, kMaxMapColumns);
  for (std::size_t i = 0; i < map.groupings.size(); ++i) EXPECT_LE(aggregate_ranks(map, i).bands.size(), kMaxMapBands);
}

TEST(FleetPage, of_10000_ranks_and_100000_steps_is_below_5_mb_and_the_same_each_time) {
  const FleetVerdict verdict = make_stage_fleet({10'000, 100'000, 2, 71'234, 33, true});
  const auto start = std::chrono::steady_clock::now();
  const std::string page = render_fleet_page(verdict, nullptr);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  RecordProperty("bytes", static_cast<int>(page.size()));
  RecordProperty("milliseconds", static_cast<int>(1000 * seconds));
  EXPECT_LT(page.size(), 5'000'000u);
  EXPECT_EQ(page, render_fleet_page(verdict, nullptr));
}

TEST(FleetPage, of_ranks_that_have_nothing_in_common_is_below_5_mb_and_says_what_is_left_out) {
  std::vector<Digest> ranks(20'000);
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    Digest& one = ranks[rank];
    one.rank = rank;
    one.world_size = static_cast<std::uint32_t>(ranks.size());
    one.host = std::string(100, static_cast<char>('a' + rank % 26)) + std::to_string(rank);
    one.accelerator_id = "\xe2\x98\x83\xe2\x98\x83" + std::to_string(rank);
    for (int d = 0; d < 16; ++d) one.coordinates["dimension " + std::to_string(d)] = rank * (d + 7919) % 30011;
    one.steps = one.last_step.emplace(rank * 7919u % 99991u);
    for (std::uint32_t i = 0; i < kMaxOrigins; ++i) {
      DigestOrigin origin;
      origin.place.step = origin.first_step = origin.last_step = (rank * 31 + i * 977) % 99991;
      origin.severity = Severity::kFault;
      origin.title = std::string(200, 'x') + std::to_string(rank);
      one.origins.push_back(origin);
    }
  }
  Digests digests;
  choose_attempts(std::move(ranks), digests);
  const std::string page = render_fleet_page(judge_fleet(std::move(digests)), nullptr);
  EXPECT_LT(page.size(), 5'000'000u);
  EXPECT_THAT(page, HasSubstr("\"groupings_left_out\":[\"dimension"));
}

TEST(FleetPage, says_what_the_text_says) {
  const FleetVerdict verdict = make_stage_fleet({.missing_every = 16});
  const std::string page = render_fleet_page(verdict, nullptr),
                    text = render_fleet_text(verdict, nullptr, {.width = 1000});
  for (const char* words :
       {"All 15 ranks of pipeline stage 2: overflow at mul in block (train.py:10), step 70",
        "60 of 64 read: it began on 15, it came to 45", "overflows fp16: 8 of 8 results exceed 65504",
        "4 of 64 ranks left no digest: ranks 15, 31, 47 and 63."}) {
    EXPECT_THAT(page, HasSubstr(words));
    EXPECT_THAT(text, HasSubstr(words));
  }
}

TEST(FleetPage, names_from_outside_are_text) {
  const std::string page = render_fleet_page(fleet_tests::make_hostile_fleet(), nullptr);
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, Not(HasSubstr("<iframe")));
  EXPECT_THAT(page, Not(HasSubstr("<script>window")));
  EXPECT_THAT(page, Not(HasSubstr("\x1b")));
  EXPECT_THAT(page, HasSubstr("&lt;img src=x onerror=alert(1)&gt;"));
  EXPECT_LT(page.size(), 5'000'000u);
}

TEST(Ranges, of_consecutive_ranks_are_written_as_such_and_many_are_cut) {
  const std::vector<std::uint32_t> ranks = {3, 7, 8, 20, 21, 22, 23, 40};
  EXPECT_EQ(ranges_text(ranges_of(ranks, 16), 8), "ranks 3, 7, 8, 20-23 and 40");
  EXPECT_EQ(ranges_text(ranges_of(ranks, 3), 8), "ranks 3, 7, 8, 20-23 and 1 more");
  EXPECT_EQ(ranges_text(ranges_of({5}, 3), 1), "rank 5");
  Digests digests;
  digests.world_size = 12;
  for (const std::uint32_t rank : {1u, 2u, 8u}) digests.ranks.emplace_back().rank = rank;
  EXPECT_EQ(ranges_text(digests.missing_ranges(16), digests.missing_count()), "ranks 0, 3-7 and 9-11");
}

}  // namespace
}  // namespace nanhunt::fleet
