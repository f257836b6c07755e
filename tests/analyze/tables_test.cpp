// SPDX-License-Identifier: Apache-2.0
// The small tables under the value graph, and the words of findings.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

#include "src/analyze/graph/birth.h"
#include "src/analyze/stream/flat_map.h"
#include "src/analyze/graph/labels.h"
#include "src/analyze/wording/text.h"
#include "src/analyze/stream/value_table.h"

namespace nanhunt::analyze {
namespace {

TEST(FlatMap, agrees_with_std_map_over_random_inserts_and_erases) {
  std::mt19937_64 random(5);
  FlatMap<int> map;
  std::map<std::uint64_t, int> expected;
  for (int i = 0; i < 200000; ++i) {
    const std::uint64_t key = 1 + random() % 700;
    if (random() % 3 == 0) {
      map.erase(key);
      expected.erase(key);
    } else {
      *map.insert(key) = i;
      expected[key] = i;
    }
    ASSERT_EQ(map.size(), expected.size());
  }
  for (std::uint64_t key = 0; key <= 701; ++key) {
    const int* found = map.find(key);
    ASSERT_EQ(found != nullptr, expected.contains(key)) << key;
    if (found != nullptr) {
      EXPECT_EQ(*found, expected[key]);
    }
  }
}

TEST(FlatMap, refuses_key_0) {
  FlatMap<int> map;
  EXPECT_EQ(map.insert(0), nullptr);
  EXPECT_EQ(map.find(0), nullptr);
  map.erase(0);
  EXPECT_EQ(map.size(), 0u);
}

TEST(StepSet, counts_steps_once_whatever_order_and_overlap) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    StepSet set, other;
    std::set<std::uint32_t> expected;
    for (int i = 0; i < 200; ++i) {
      const auto step = static_cast<std::uint32_t>(random() % 300);
      (i % 2 == 0 ? set : other).add(step);
      expected.insert(step);
    }
    set.add(other);
    EXPECT_EQ(set.count(), expected.size());
    EXPECT_EQ(set.first(), *expected.begin());
    EXPECT_EQ(set.last(), *expected.rbegin());
  }
}

TEST(LabelSets, keep_the_16_earliest_and_know_that_there_are_more) {
  LabelSets sets;
  LabelSetId all = 0;
  for (BirthId birth = 40; birth > 0; --birth) all = sets.merge(all, sets.of(birth));
  EXPECT_EQ(sets.get(all).births.size(), kMaxLabels);
  EXPECT_TRUE(sets.get(all).many);
  EXPECT_TRUE(sets.contains(all, 1));
  EXPECT_TRUE(sets.contains(all, 16));
  EXPECT_FALSE(sets.contains(all, 17));
}

TEST(LabelSets, equal_sets_have_one_id_and_survive_a_clean_up) {
  LabelSets sets;
  const LabelSetId a = sets.of(1), b = sets.of(2), c = sets.of(3);
  const LabelSetId ab = sets.merge(a, b);
  EXPECT_EQ(ab, sets.merge(b, a));
  EXPECT_EQ(sets.merge(ab, a), ab);
  EXPECT_EQ(sets.merge(0, a), a);
  std::vector<bool> marked(sets.size(), false);
  marked[ab] = marked[c] = true;
  const auto now = sets.keep(marked);
  EXPECT_EQ(sets.size(), 3u);
  EXPECT_EQ(sets.get(now[ab]).births, (std::vector<BirthId>{1, 2}));
  EXPECT_EQ(sets.merge(sets.of(1), sets.of(2)), now[ab]);
}

ValueRecord record(ValueId id, std::uint64_t storage, std::uint32_t version) {
  ValueRecord r;
  r.id = id;
  r.storage = storage;
  r.version = version;
  return r;
}

TEST(ValueTable, old_versions_and_freed_storages_die_and_stay_readable_for_a_while) {
  ValueTable table;
  table.insert(record(1, 10, 0));
  table.insert(record(2, 10, 0));
  table.insert(record(3, 10, 1));
  table.insert(record(4, 11, 0));
  std::vector<ValueId> gone;
  table.retire(10, 1, [&](Value& value, StorageInfo&) { gone.push_back(value.id); });
  EXPECT_EQ(gone, (std::vector<ValueId>{1, 2}));
  EXPECT_TRUE(table.find(1)->dead);
  EXPECT_FALSE(table.find(3)->dead);
  table.free_storage(10);
  EXPECT_TRUE(table.find(3)->dead);
  EXPECT_EQ(table.storage(10), nullptr);
  EXPECT_FALSE(table.find(4)->dead);
  table.free_storage(999);  // never heard of
  // and many deaths later they are gone
  for (ValueId id = 100; id < 100000; ++id) {
    table.insert(record(id, id, 0));
    table.free_storage(id);
  }
  EXPECT_EQ(table.find(1), nullptr);
  EXPECT_NE(table.find(4), nullptr);
  EXPECT_LE(table.size(), 9000u);
}

TEST(ValueTable, refuses_restated_ids_and_id_0) {
  ValueTable table;
  EXPECT_NE(table.insert(record(1, 10, 0)), nullptr);
  EXPECT_EQ(table.insert(record(1, 12, 5)), nullptr);
  EXPECT_EQ(table.insert(record(0, 12, 5)), nullptr);
  EXPECT_EQ(table.find(1)->storage, 10u);
}

TEST(Text, numbers_read_as_people_write_them) {
  EXPECT_EQ(number(65504), "65504");
  EXPECT_EQ(number(1e-8), "1e-8");
  EXPECT_EQ(number(5.9604644775390625e-8), "5.96e-8");
  EXPECT_EQ(number(3.3895313892515355e38), "3.39e38");
  EXPECT_EQ(number(0.42), "0.42");
  EXPECT_EQ(number(1.00000011920929), "1.00000012");
  EXPECT_EQ(number(-0.999999940395355), "-0.99999994");
  EXPECT_EQ(number(-0.0), "0");
  EXPECT_EQ(number(1e10), "1e10");
  EXPECT_EQ(number(std::nan("")), "NaN");
  EXPECT_EQ(number(-INFINITY), "-Inf");
}

TEST(Text, coordinates_are_row_major_and_empty_when_they_cannot_be) {
  EXPECT_EQ(coords_of(7, {2, 4}), (std::vector<std::int64_t>{1, 3}));
  EXPECT_EQ(coords_of(0, {}), (std::vector<std::int64_t>{}));
  EXPECT_TRUE(coords_of(8, {2, 4}).empty());
  EXPECT_TRUE(coords_of(-1, {2, 4}).empty());
  EXPECT_TRUE(coords_of(0, {0, 4}).empty());
  EXPECT_TRUE(coords_of(0, {-2, 4}).empty());
}

TEST(Text, lists_are_cut) {
  EXPECT_EQ(join({"a"}, 3), "a");
  EXPECT_EQ(join({"a", "b"}, 3), "a and b");
  EXPECT_EQ(join({"a", "b", "c"}, 3), "a, b and c");
  EXPECT_EQ(join({"a", "b", "c", "d"}, 2), "a, b and 2 more");
  EXPECT_EQ(join({}, 2), "");
}

}  // namespace
}  // namespace nanhunt::analyze
