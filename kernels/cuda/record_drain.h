// SPDX-License-Identifier: Apache-2.0
// The host's end of both rings in one: hands every record to the sink once, and counts what was lost. One thread's.
#pragma once

#include "kernels/cuda/record_ring.h"
#include "kernels/device_recorder.h"

namespace nanhunt::kernels::cuda {

class RecordDrain {
 public:
  RecordDrain(const DeviceRecord* early, std::uint64_t* early_read, std::uint32_t early_capacity,
              std::uint32_t capacity, DeviceRecorder::Sink sink)
      : early_(early, early_read, early_capacity), bulk_(capacity), sink_(std::move(sink)) {}

  // What the early ring holds by now.
  void poll_early() {
    DeviceRecord record;
    while (early_.next(record)) {
      ++counts_.flagged;
      deliver(record);
    }
  }

  // A copy of the bulk ring. What came early is not handed over again. `settled`: BulkReader::take().
  void take_copy(const RingHeader& header, const DeviceRecord* slots, std::uint64_t settled = 0) {
    bulk_.take(header, slots, settled, [&](const DeviceRecord& record) {
      if ((record.flags & kRecordSentEarly) == 0) deliver(record);
    });
    counts_.written = bulk_.written();
    counts_.lost_bulk = bulk_.lost();
    counts_.lost_early = header.early_lost;
  }

  // Everything that the last copy knew of is dealt with.
  bool caught_up() const { return bulk_.done() == bulk_.written(); }
  const DeviceRecorderCounts& counts() const { return counts_; }

 private:
  void deliver(const DeviceRecord& record) {
    ++counts_.delivered;
    sink_(record);
  }

  EarlyReader early_;
  BulkReader bulk_;
  DeviceRecorder::Sink sink_;
  DeviceRecorderCounts counts_;
};

}  // namespace nanhunt::kernels::cuda
