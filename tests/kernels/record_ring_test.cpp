// SPDX-License-Identifier: Apache-2.0
// The recorder's rings: writers in threads stand in for kernels, copies are taken while they write.
#include "kernels/cuda/record_drain.h"

#include <atomic>
#include <memory>
#include <set>
#include <thread>

namespace nanhunt::kernels::cuda {
namespace {


// Both rings, as the device and the host see them.
class Rings {
 public:
  Rings(std::uint32_t capacity, std::uint32_t early_capacity)
      : slots_(new DeviceRecord[capacity]()), early_(new DeviceRecord[early_capacity]()), capacity_(capacity),
        early_capacity_(early_capacity) {}

  Ring ring() { return {&header_, slots_.get(), early_.get(), &early_read_, capacity_, early_capacity_}; }
  RecordDrain drain(DeviceRecorder::Sink sink) {
    return {early_.get(), &early_read_, early_capacity_, capacity_, std::move(sink)};
  }

  // As a copy engine would: word after word, whatever is being written.
  void copy_to(RingHeader& header, std::vector<DeviceRecord>& slots) {
    slots.resize(capacity_);
    copy_words(&header_, &header, sizeof header);
    copy_words(slots_.get(), slots.data(), capacity_ * sizeof(DeviceRecord));
  }
  void take(RecordDrain& drain, std::uint64_t settled = 0) {
    RingHeader header;
    std::vector<DeviceRecord> slots;
    copy_to(header, slots);
    drain.take_copy(header, slots.data(), settled);
  }

  RingHeader header_;

 private:
  static void copy_words(const void* from, void* to, std::size_t bytes) {
    const auto* words = static_cast<const std::uint32_t*>(from);
    for (std::size_t i = 0; i < bytes / 4; ++i) {
      const std::uint32_t word = load_word(words + i);
      std::memcpy(static_cast<std::uint32_t*>(to) + i, &word, sizeof word);
    }
  }

  std::unique_ptr<DeviceRecord[]> slots_, early_;
  std::uint64_t early_read_ = 0;
  std::uint32_t capacity_, early_capacity_;
};

// Every field follows from the tag, so that a record put together from two is seen.
DeviceStatsRecord stats_of(std::uint32_t tag) {
  DeviceStatsRecord stats;
  stats.tag = tag;
  stats.count = tag * 3ull;
  stats.zero = tag * 5ull;
  stats.largest = static_cast<std::int64_t>(tag) * 7;
  stats.sum = tag * 0.5;
  stats.sum_sq = tag * 0.25;
  return stats;
}
bool is_whole(const DeviceRecord& record) {
  const DeviceStatsRecord want = stats_of(record.stats.tag);
  return std::memcmp(&record.stats, &want, sizeof want) == 0;
}

TEST(RecordRing, a_record_arrives_whole_with_its_step_and_number) {
  Rings rings(4, 2);
  std::vector<DeviceRecord> got;
  RecordDrain drain = rings.drain([&](const DeviceRecord& record) { got.push_back(record); });
  rings.header_.step = 41;
  push_record(rings.ring(), stats_of(6), false);
  drain.poll_early();
  EXPECT_TRUE(got.empty());
  rings.take(drain);
  ASSERT_EQ(got.size(), 1u);
  EXPECT_TRUE(is_whole(got[0]));
  EXPECT_EQ(got[0].step, 41u);
  EXPECT_EQ(got[0].sequence, 1u);
  EXPECT_EQ(got[0].flags, 0u);
  rings.take(drain);  // nothing new
  EXPECT_EQ(got.size(), 1u);
  EXPECT_TRUE(drain.caught_up());
}

TEST(RecordRing, a_flagged_record_needs_no_copy_and_is_not_delivered_twice) {
  Rings rings(8, 4);
  std::vector<std::uint32_t> got;
  RecordDrain drain = rings.drain([&](const DeviceRecord& record) { got.push_back(record.stats.tag); });
  push_record(rings.ring(), stats_of(1), false);
  push_record(rings.ring(), stats_of(2), true);
  drain.poll_early();
  EXPECT_EQ(got, (std::vector<std::uint32_t>{2}));
  rings.take(drain);
  EXPECT_EQ(got, (std::vector<std::uint32_t>{2, 1}));
  EXPECT_EQ(drain.counts().flagged, 1u);
  EXPECT_EQ(drain.counts().delivered, 2u);
  EXPECT_EQ(drain.counts().written, 2u);
}

TEST(RecordRing, a_full_early_ring_is_counted_and_its_records_come_with_the_bulk) {
  Rings rings(16, 4);
  std::vector<std::uint32_t> got;
  RecordDrain drain = rings.drain([&](const DeviceRecord& record) { got.push_back(record.stats.tag); });
  for (std::uint32_t tag = 0; tag < 7; ++tag) push_record(rings.ring(), stats_of(tag), true);
  drain.poll_early();
  EXPECT_EQ(got, (std::vector<std::uint32_t>{0, 1, 2, 3}));
  rings.take(drain);
  EXPECT_EQ(got, (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(drain.counts().lost_early, 3u);
  push_record(rings.ring(), stats_of(7), true);  // there is room again
  drain.poll_early();
  EXPECT_EQ(got.back(), 7u);
}

TEST(RecordRing, what_was_overwritten_is_counted_and_the_rest_arrives_in_order) {
  Rings rings(8, 2);
  std::vector<std::uint32_t> got;
  RecordDrain drain = rings.drain([&](const DeviceRecord& record) { got.push_back(record.stats.tag); });
  for (std::uint32_t tag = 0; tag < 5; ++tag) push_record(rings.ring(), stats_of(tag), false);
  rings.take(drain);
  for (std::uint32_t tag = 5; tag < 30; ++tag) push_record(rings.ring(), stats_of(tag), false);
  rings.take(drain);
  EXPECT_EQ(got, (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 22, 23, 24, 25, 26, 27, 28, 29}));
  EXPECT_EQ(drain.counts().lost_bulk, 17u);
  EXPECT_EQ(drain.counts().delivered + drain.counts().lost_bulk, drain.counts().written);
}

TEST(RecordRing, a_record_that_was_taken_but_not_written_is_waited_for) {
  Rings rings(8, 2);
  std::vector<std::uint32_t> got;
  RecordDrain drain = rings.drain([&](const DeviceRecord& record) { got.push_back(record.stats.tag); });
  push_record(rings.ring(), stats_of(1), false);
  rings.header_.cursor += 1;  // a kernel in flight has number 2
  push_record(rings.ring(), stats_of(3), false);
  rings.take(drain);
  EXPECT_EQ(got, (std::vector<std::uint32_t>{1}));
  EXPECT_FALSE(drain.caught_up());
  rings.header_.cursor = 1;  // it writes now
  push_record(rings.ring(), stats_of(2), false);
  rings.header_.cursor = 3;
  rings.take(drain);
  EXPECT_EQ(got, (std::vector<std::uint32_t>{1, 2, 3}));
  EXPECT_EQ(drain.counts().lost_bulk, 0u);
}

TEST(RecordRing, a_torn_copy_is_no_record_and_its_twin_is) {
  Rings rings(4, 2);
  std::vector<std::uint32_t> got;
  RecordDrain drain = rings.drain([&](const DeviceRecord& record) { got.push_back(record.stats.tag); });
  push_record(rings.ring(), stats_of(9), false);
  RingHeader header;
  std::vector<DeviceRecord> slots;
  rings.copy_to(header, slots);
  std::vector<DeviceRecord> torn = slots;
  torn[0].stats.zero ^= 1;  // the number is there, part of the payload is an older one's
  drain.take_copy(header, torn.data());
  EXPECT_TRUE(got.empty());
  drain.take_copy(header, slots.data());
  EXPECT_EQ(got, (std::vector<std::uint32_t>{9}));
}

TEST(RecordRing, a_record_that_a_late_writer_spoiled_is_waited_for_and_lost_once_nobody_writes) {
  Rings rings(4, 2);
  std::vector<std::uint32_t> got;
  RecordDrain drain = rings.drain([&](const DeviceRecord& record) { got.push_back(record.stats.tag); });
  for (std::uint32_t tag = 0; tag < 6; ++tag) push_record(rings.ring(), stats_of(tag), false);
  RingHeader header;
  std::vector<DeviceRecord> slots;
  rings.copy_to(header, slots);
  slots[0].sequence = 1;  // the first record's writer came last, to the fifth one's slot
  drain.take_copy(header, slots.data());
  EXPECT_EQ(got, (std::vector<std::uint32_t>{2, 3}));
  EXPECT_FALSE(drain.caught_up());
  drain.take_copy(header, slots.data(), header.cursor);
  EXPECT_EQ(got, (std::vector<std::uint32_t>{2, 3, 5}));
  EXPECT_TRUE(drain.caught_up());
  EXPECT_EQ(drain.counts().lost_bulk, 3u);
}

TEST(RecordRing, the_check_notices_every_changed_bit) {
  DeviceRecord record;
  record.stats = stats_of(77);
  record.check = record_check(record);
  for (std::size_t bit = 0; bit < 8 * (sizeof record - 4); ++bit) {
    DeviceRecord changed = record;
    reinterpret_cast<unsigned char*>(&changed)[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
    EXPECT_NE(record_check(changed), changed.check) << "bit " << bit;
  }
}

// Writers that never wait, a reader that comes when it comes: nothing is delivered twice or mixed, all is accounted
// for.
void hammer(std::uint32_t capacity, std::uint32_t early_capacity, bool slow_reader) {
  constexpr std::uint32_t kWriters = 4;
  const std::uint32_t per_writer = slow_reader ? 3000 : 1500;
  Rings rings(capacity, early_capacity);
  std::set<std::uint32_t> seen;
  std::uint64_t mixed = 0, twice = 0, early_ones = 0;
  RecordDrain drain = rings.drain([&](const DeviceRecord& record) {
    mixed += is_whole(record) ? 0 : 1;
    twice += seen.insert(record.stats.tag).second ? 0 : 1;
    early_ones += (record.flags & kRecordSentEarly) != 0 ? 1 : 0;
  });
  std::atomic<std::uint32_t> running{kWriters};
  std::vector<std::thread> writers;
  for (std::uint32_t w = 0; w < kWriters; ++w) {
    writers.emplace_back([&, w] {
      for (std::uint32_t i = 0; i < per_writer; ++i) {
        const std::uint32_t tag = w * per_writer + i;
        push_record(rings.ring(), stats_of(tag), tag % 10 == 3);
        if (!slow_reader && i % 8 == 0) std::this_thread::yield();
      }
      --running;
    });
  }
  while (running > 0) {
    drain.poll_early();
    if (slow_reader) std::this_thread::yield();
    rings.take(drain);
  }
  for (std::thread& writer : writers) writer.join();
  drain.poll_early();
  rings.take(drain, rings.header_.cursor);

  EXPECT_EQ(mixed, 0u);
  EXPECT_EQ(twice, 0u);
  EXPECT_TRUE(drain.caught_up());
  const DeviceRecorderCounts& counts = drain.counts();
  EXPECT_EQ(counts.written, std::uint64_t{kWriters} * per_writer);
  EXPECT_EQ(counts.flagged, early_ones);
  EXPECT_EQ(counts.delivered, seen.size());
  // Early ones may have been overwritten in the bulk ring as well, where that costs nothing.
  EXPECT_LE(counts.delivered, counts.written);
  EXPECT_GE(counts.delivered + counts.lost_bulk, counts.written);
  EXPECT_LE(counts.delivered + counts.lost_bulk, counts.written + counts.flagged);
  EXPECT_EQ(counts.flagged + counts.lost_early, counts.written / 10);
}

TEST(RecordRing, writers_and_reader_at_the_same_time_lose_nothing_uncounted) { hammer(1024, 64, false); }
TEST(RecordRing, a_ring_far_too_small_loses_much_and_says_how_much) { hammer(16, 4, true); }

TEST(RecordRing, capacities_are_powers_of_two) {
  EXPECT_EQ(power_of_two_from(1), 1u);
  EXPECT_EQ(power_of_two_from(2), 2u);
  EXPECT_EQ(power_of_two_from(3), 4u);
  EXPECT_EQ(power_of_two_from(4096), 4096u);
  EXPECT_EQ(power_of_two_from(4097), 8192u);
}

}  // namespace
}  // namespace nanhunt::kernels::cuda
