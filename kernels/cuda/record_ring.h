// SPDX-License-Identifier: Apache-2.0
// How records get from kernels to the host: who writes which word when. Both sides of both rings stand here, so that
// tests run them against each other in threads.
//
// Bulk ring (device memory). A writer takes the next number from the cursor and writes slot (number - 1) % capacity,
// whatever was there: it never waits. The host gets the whole ring as a copy, taken at any moment; each record proves
// itself by its number and its check word, so a torn copy is only not there yet. Overwritten ones are counted by their
// numbers.
//
// Early ring (mapped host memory), for flagged records. A writer takes a number only where the host has read what the
// slot held before, else it counts one lost and goes on (the record still comes with the bulk). It writes the payload,
// then, after a system fence, the number. The host polls the next slot's number.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/portable/host_device.h"
#include "kernels/device_recorder.h"

namespace nanhunt::kernels::cuda {

inline constexpr std::uint32_t kRecordWords = sizeof(DeviceRecord) / sizeof(std::uint32_t);

struct RingHeader {
  std::uint64_t cursor = 0;        // records taken, ever
  std::uint64_t step = 0;
  std::uint64_t early_cursor = 0;  // early records taken, ever
  std::uint64_t early_lost = 0;
};
static_assert(sizeof(RingHeader) == 32);

// The bulk ring is one piece of memory, header first: one copy takes it all.
struct Ring {
  RingHeader* header = nullptr;
  DeviceRecord* slots = nullptr;
  DeviceRecord* early = nullptr;                // nullptr: none
  const std::uint64_t* early_read = nullptr;    // early records that the host has read, ever; written by the host
  std::uint32_t capacity = 0, early_capacity = 0;  // powers of two
};

// Words of memory that somebody may be writing or copying at the same time.
NANHUNT_HOST_DEVICE inline void store_word(std::uint32_t* at, std::uint32_t word) {
#if NANHUNT_ON_DEVICE
  *static_cast<volatile std::uint32_t*>(at) = word;
#else
  __atomic_store_n(at, word, __ATOMIC_RELAXED);
#endif
}
NANHUNT_HOST_DEVICE inline std::uint32_t load_word(const std::uint32_t* at) {
#if NANHUNT_ON_DEVICE
  return *static_cast<const volatile std::uint32_t*>(at);
#else
  return __atomic_load_n(at, __ATOMIC_RELAXED);
#endif
}
NANHUNT_HOST_DEVICE inline std::uint64_t load_number(const std::uint64_t* at) {
#if NANHUNT_ON_DEVICE
  return *static_cast<const volatile std::uint64_t*>(at);
#else
  return __atomic_load_n(at, __ATOMIC_RELAXED);
#endif
}

// Over every word but the check itself. A record of all zeros has another check than 0.
NANHUNT_HOST_DEVICE inline std::uint32_t record_check(const DeviceRecord& record) {
  std::uint32_t words[kRecordWords];
  memcpy(words, &record, sizeof record);
  std::uint32_t check = 0x9e3779b9u;
  NANHUNT_UNROLL
  for (std::uint32_t i = 0; i + 1 < kRecordWords; ++i) check = (check ^ words[i]) * 0x01000193u + (check >> 15);
  return check;
}
static_assert(offsetof(DeviceRecord, sequence) == 0);
static_assert(offsetof(DeviceRecord, check) == sizeof(DeviceRecord) - sizeof(std::uint32_t));

// Everything but the number, which store_release_system() writes.
NANHUNT_HOST_DEVICE inline void write_payload(DeviceRecord* slot, const DeviceRecord& record) {
  std::uint32_t words[kRecordWords];
  memcpy(words, &record, sizeof record);
  auto* to = reinterpret_cast<std::uint32_t*>(slot);
  NANHUNT_UNROLL
  for (std::uint32_t i = 2; i < kRecordWords; ++i) store_word(to + i, words[i]);
}

// True and the number, or false: the slot's last record has not been read.
NANHUNT_HOST_DEVICE inline bool take_early(const Ring& ring, std::uint64_t& number) {
  std::uint64_t taken = load_number(&ring.header->early_cursor);
  for (;;) {
    const auto under_way = static_cast<std::int64_t>(taken - load_acquire_system(ring.early_read));
    if (under_way < 0) {  // others went on, and the host read what they left, since `taken` was loaded
      taken = load_number(&ring.header->early_cursor);
      continue;
    }
    if (static_cast<std::uint64_t>(under_way) >= ring.early_capacity) {
      atomic_add(&ring.header->early_lost, std::uint64_t{1});
      return false;
    }
    const std::uint64_t seen = compare_and_swap(&ring.header->early_cursor, taken, taken + 1);
    if (seen == taken) break;
    taken = seen;
  }
  number = taken + 1;
  return true;
}

// One thread's. Never waits.
NANHUNT_HOST_DEVICE inline void push_record(const Ring& ring, const DeviceStatsRecord& stats, bool flagged) {
  DeviceRecord record;
  record.step = load_number(&ring.header->step);
  record.stats = stats;
  record.flags = flagged ? kRecordFlagged : 0;
  std::uint64_t number = 0;
  if (flagged && ring.early != nullptr && take_early(ring, number)) {
    record.flags |= kRecordSentEarly;
    record.sequence = number;
    record.check = record_check(record);
    DeviceRecord* slot = ring.early + ((number - 1) & (ring.early_capacity - 1));
    write_payload(slot, record);
    store_release_system(&slot->sequence, number);
  }
  number = atomic_add(&ring.header->cursor, std::uint64_t{1}) + 1;
  record.sequence = number;
  record.check = record_check(record);
  DeviceRecord* slot = ring.slots + ((number - 1) & (ring.capacity - 1));
  write_payload(slot, record);
  store_release_system(&slot->sequence, number);
}

// The host's side of the early ring. One reader.
class EarlyReader {
 public:
  EarlyReader(const DeviceRecord* slots, std::uint64_t* read, std::uint32_t capacity)
      : slots_(slots), read_(read), capacity_(capacity) {}

  // The next record, if it is there.
  bool next(DeviceRecord& record) {
    const DeviceRecord* slot = slots_ + (done_ & (capacity_ - 1));
    if (load_acquire_system(&slot->sequence) != done_ + 1) return false;
    const auto* from = reinterpret_cast<const std::uint32_t*>(slot);
    std::uint32_t words[kRecordWords];
    for (std::uint32_t i = 0; i < kRecordWords; ++i) words[i] = load_word(from + i);
    memcpy(&record, words, sizeof record);
    ++done_;
    store_release_system(read_, done_);  // the slot may be used again
    return true;
  }
  std::uint64_t done() const { return done_; }

 private:
  const DeviceRecord* slots_;
  std::uint64_t* read_;
  std::uint32_t capacity_;
  std::uint64_t done_ = 0;
};

// The host's side of the bulk ring: takes in copies, in the order they were taken.
class BulkReader {
 public:
  explicit BulkReader(std::uint32_t capacity) : capacity_(capacity) {}

  // Hands over, in order, every record of the copy that was not handed over before, up to the first that is not there
  // yet. Numbers up to `settled` are written by nobody any more: one that is not there was spoiled, by the late writer
  // of an older one in a ring smaller than its writers are many, and is lost.
  template <class Deliver>
  void take(const RingHeader& header, const DeviceRecord* slots, std::uint64_t settled, Deliver deliver) {
    const std::uint64_t cursor = header.cursor;
    // Numbers this far behind the cursor were overwritten, or are being.
    if (cursor > capacity_ && done_ < cursor - capacity_) skip_to(cursor - capacity_);
    while (done_ < cursor) {
      const DeviceRecord& slot = slots[done_ & (capacity_ - 1)];
      if (slot.sequence > done_ + 1) {  // a later round was here while the copy was taken
        skip_to(done_ + 1);
        continue;
      }
      if (slot.sequence == done_ + 1 && slot.check == record_check(slot)) {
        ++done_;
        deliver(slot);
      } else if (done_ < settled) {
        skip_to(done_ + 1);
      } else {
        break;
      }
    }
    written_ = greater(written_, cursor);
  }
  std::uint64_t done() const { return done_; }      // delivered or lost
  std::uint64_t lost() const { return lost_; }
  std::uint64_t written() const { return written_; }

 private:
  void skip_to(std::uint64_t number) {
    lost_ += number - done_;
    done_ = number;
  }

  std::uint32_t capacity_;
  std::uint64_t done_ = 0, lost_ = 0, written_ = 0;
};

constexpr std::uint32_t power_of_two_from(std::uint32_t at_least) {
  std::uint32_t power = 1;
  while (power < at_least && power < 0x80000000u) power *= 2;
  return power;
}

}  // namespace nanhunt::kernels::cuda
