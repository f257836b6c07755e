// SPDX-License-Identifier: Apache-2.0
// Records of kernels on their way to the host without a wait: a ring in device memory that is copied once a step, and a
// second one in mapped host memory for records that cannot wait. Contract: kernels/README.md, recorder of the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/device_stats.h"
#include "nanhunt/status.h"

namespace nanhunt::kernels {

// As it lies in both rings.
struct DeviceRecord {
  std::uint64_t sequence = 0;  // its number, from 1: written last. Another number: not there yet, or overwritten
  std::uint64_t step = 0;      // the device's count when it was written
  DeviceStatsRecord stats;
  std::uint32_t flags = 0;
  std::uint32_t check = 0;  // of all the rest: a copy taken in the middle of a write is told from a record
};
static_assert(sizeof(DeviceRecord) ==
              2 * sizeof(std::uint64_t) + sizeof(DeviceStatsRecord) + 2 * sizeof(std::uint32_t));
static_assert(sizeof(DeviceRecord) == 128, "four sectors of 32 bytes: a record is written and copied whole");

inline constexpr std::uint32_t kRecordFlagged = 1;    // something in it is not finite
inline constexpr std::uint32_t kRecordSentEarly = 2;  // went through the mapped ring already

struct DeviceRecorderOptions {
  int device = 0;
  std::uint32_t capacity = 4096;         // records between two copies; rounded up to a power of two
  std::uint32_t flagged_capacity = 512;  // of the mapped ring; rounded up too
  int copies_in_flight = 3;
  int poll_ms = 1;
};

struct DeviceRecorderCounts {
  std::uint64_t written = 0;         // by kernels, as far as is known here
  std::uint64_t delivered = 0;
  std::uint64_t flagged = 0;         // of those, early
  std::uint64_t lost_bulk = 0;       // overwritten before a copy: the ring was too small for a step
  std::uint64_t lost_early = 0;      // the mapped ring was full: they came with the bulk, later
  std::uint64_t copies_skipped = 0;  // a step's copy was left out: all buffers were in flight, or a capture was
};

class DeviceRecorder {
 public:
  // Called by the drain thread, for one record at a time; each record once. Must not throw.
  using Sink = std::function<void(const DeviceRecord&)>;

  static Result<std::unique_ptr<DeviceRecorder>> create(const DeviceRecorderOptions& options, Sink sink);
  // Joins the drain thread; what is in flight by then is delivered if the device is done with it.
  virtual ~DeviceRecorder() = default;

  // To be enqueued once a step, after the step's kernels: bumps the device's step count. May be captured, and so may
  // launches that leave records here: the recorder has to outlive such graphs.
  virtual Status advance_step(DeviceStream stream) = 0;
  // One asynchronous copy of the ring, ordered after what is in `stream` so far. Never waits. Left out, and counted,
  // while `stream` is being captured: the copy's stream would become part of the graph.
  virtual Status copy_ring(DeviceStream stream) = 0;
  // Waits until everything written so far has been delivered or counted as lost. For the end of a run and for tests: it
  // waits for the device, which breaks a graph that is being captured there.
  virtual Status flush() = 0;
  virtual DeviceRecorderCounts counts() const = 0;
};

}  // namespace nanhunt::kernels
