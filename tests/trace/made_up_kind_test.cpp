// SPDX-License-Identifier: Apache-2.0
// All that a record kind needs follows from one declaration: here is one that was never heard of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

using testing::ElementsAre;

// Rows lie in a list that is there already.
constexpr auto kSightingFields = fields(seq("seq", &CollectiveRecord::seq),
                                        of_op(&CollectiveRecord::seq),
                                        delta("step", &CollectiveRecord::step),
                                        id("where", &CollectiveRecord::group),
                                        one_of("what", &CollectiveRecord::kind, CollectiveKind::kBarrier,
                                               collective_kind_name).as("sight"),
                                        plus_one("by", &CollectiveRecord::peer),
                                        list("seen.rank", &CollectiveRecord::ranks, Coding::kDelta, "too many"));
constexpr RecordKind kSightings = field_kind<&RecordBatch::collectives, kSightingFields>(
    {.type = 99, .name = "sightings", .retires = Retires::kWithStep});

// Cells as "name=value".
class Words final : public Cells {
 public:
  void u32(std::string_view name, std::optional<std::uint32_t> value) override { add(name, value); }
  void i32(std::string_view name, std::optional<std::int32_t> value) override { add(name, value); }
  void integer(std::string_view name, std::optional<std::int64_t> value) override { add(name, value); }
  void count(std::string_view name, std::optional<std::uint64_t> value) override { add(name, value); }
  void seq(std::string_view name, std::uint64_t value) override { add(name, std::optional(value)); }
  void number(std::string_view name, std::optional<double> value) override { add(name, value); }
  void number_or_nan(std::string_view name, double value) override { add(name, std::optional(value)); }
  void flag(std::string_view name, bool value) override { add(name, std::optional(value ? 1 : 0)); }
  void text(std::string_view name, std::string_view value) override { put(name, std::string(value)); }
  void own_text(std::string_view name, std::string_view value) override { put(name, std::string(value)); }
  void parts(std::string_view name, std::uint32_t bad) override { add(name, std::optional(bad)); }
  void integers(std::string_view name, std::span<const std::int64_t> values) override { list_of(name, values); }
  void integers(std::string_view name, std::span<const std::uint32_t> values) override { list_of(name, values); }
  void shape(std::string_view name, const std::vector<std::int64_t>*) override { put(name, "shape"); }
  void list(std::string_view name, std::size_t, const ShowItem&) override { put(name, "list"); }

  std::vector<std::string> shown;

 private:
  void put(std::string_view name, const std::string& value) { shown.push_back(std::string(name) + "=" + value); }
  template <typename T>
  void add(std::string_view name, std::optional<T> value) {
    put(name, value ? std::to_string(*value) : "none");
  }
  template <typename T>
  void list_of(std::string_view name, std::span<const T> values) {
    std::string text;
    for (const T value : values) text += std::to_string(value) + " ";
    put(name, text);
  }
};

RecordBatch two_sightings() {
  RecordBatch batch;
  CollectiveRecord row;
  row.seq = 7;
  row.step = 3;
  row.group = 1;
  row.kind = CollectiveKind::kSend;
  row.ranks = {4, 6};
  batch.collectives.push_back(row);
  row.seq = 9;
  row.peer = 2;
  row.ranks = {};
  batch.collectives.push_back(row);
  return batch;
}

TEST(MadeUpKind, is_stored_and_read_back) {
  const RecordBatch batch = two_sightings();
  RecordBatch read;
  ColumnWriter out;
  kSightings.encode(batch, {0, 2}, out);
  ASSERT_FALSE(out.refused());
  Scratch scratch;
  std::uint64_t cells = 1000;
  ColumnReader in(scratch, out.packed(), out.plain(), cells);
  ASSERT_EQ(kSightings.decode(in, 2, read), nullptr);
  EXPECT_EQ(read.collectives, batch.collectives);
  EXPECT_EQ(kSightings.weight(batch, 0), 8u);
}

TEST(MadeUpKind, is_refused_by_its_limits) {
  RecordBatch batch = two_sightings();
  EXPECT_EQ(kSightings.refuse(batch, 1), nullptr);
  batch.collectives[1].peer = -2;
  EXPECT_STREQ(kSightings.refuse(batch, 1), "its by is below -1");
  batch.collectives[1].group = kMaxTableId + 1;
  EXPECT_STREQ(kSightings.refuse(batch, 1), "its where's id is above 1048575");
}

TEST(MadeUpKind, is_described_and_shown) {
  EXPECT_EQ(kSightings.columns(),
            "delta seq · delta step · where · what · by + 1 · count · delta seen.rank");
  RecordBatch names_of;
  names_of.strings = {{1, "hall"}, {2, "fc1"}, {3, "send"}};
  OpRecord op;
  op.seq = 7;
  op.module = 2;
  op.op = 3;
  names_of.ops.push_back(op);
  TraceNames names;
  names.add(names_of);
  const RecordBatch batch = two_sightings();
  Words first, second;
  kSightings.show(batch, 0, names, first);
  kSightings.show(batch, 1, names, second);
  EXPECT_THAT(first.shown, ElementsAre("seq=7", "module=fc1", "op=send", "step=3", "where=hall", "sight=send",
                                       "by=none", "seen=4 6 "));
  EXPECT_THAT(second.shown,
              ElementsAre("seq=9", "module=", "op=", "step=3", "where=hall", "sight=send", "by=2", "seen="));
}

TEST(MadeUpKind, goes_with_its_step) {
  const RecordBatch batch = two_sightings();
  ASSERT_NE(kSightings.step, nullptr);
  EXPECT_EQ(kSightings.step(batch, 1), 3u);
  EXPECT_EQ(kSightings.seq(batch, 1), 9u);
}

// Whoever retires rows by step or by op asks for it, and every kind that says so must have it.
TEST(MadeUpKind, none_that_is_there_retires_with_what_it_does_not_have) {
  for (const RecordKind& kind : record_kinds()) {
    EXPECT_TRUE(kind.retires != Retires::kWithStep || kind.step != nullptr) << kind.name;
    EXPECT_TRUE(kind.retires != Retires::kWithOp || kind.seq != nullptr) << kind.name;
  }
}

}  // namespace
}  // namespace nanhunt::trace
