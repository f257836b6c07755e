// SPDX-License-Identifier: Apache-2.0
// Statistics of tensors on a device that come later: asked for where the contents are, fetched once the device has got
// there, without making the host wait. Contract: kernels/CONTRACTS.md, readings of the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/origin_histograms.h"
#include "kernels/device_checks.h"
#include "kernels/element_evidence.h"
#include "kernels/device_stats.h"
#include "nanhunt/status.h"
#include "nanhunt/tensor_stats.h"
#include "nanhunt/tensor_view.h"

namespace nanhunt::kernels {

class DeviceBackend;

struct ReadingsOptions {
  // results under way or not fetched yet: 104 bytes of the device and of pinned memory each
  std::size_t tensors = 8192;
  std::size_t tickets = 4096;  // that are still asked after
  int copies = 8;              // of results, under way at once
  std::uint64_t max_items = std::uint64_t{1} << 16;  // of one launch (DeviceStatsOptions)
  std::size_t references = 0;  // of checks, from 1: 16 bytes of the device each. 0: no checks
  std::size_t arena_words = 0;  // of 8 bytes, pinned memory: for histograms of all origins that there will be. 0: none
};

// What a device does for readings; who does what when is decided by DeviceReadings. Slots are numbers below
// ReadingsOptions::tensors. Nothing but wait() waits; all goes to one stream, the engine's.
class ReadingsPort {
 public:
  enum class Mark : std::uint8_t { kPending, kReached, kFailed };
  virtual ~ReadingsPort() = default;
  // One launch; records go to slots `first`, first + 1, ... At most kTensorsInParameters.
  // A tensor with a tag is read where the check with that reference found another content than before.
  virtual Status launch(std::span<const DeviceTensor> tensors, std::size_t first) = 0;
  virtual Status launch(const DeviceStatsView& view, std::uint32_t tag, std::size_t slot) = 0;
  // Two launches: whether the first `made` are finite, of which each has a record then that says so (StatsLevel::kFinite);
  // and where one is not, records of all as above. At most kTensorsInParameters.
  virtual Status look(std::span<const DeviceTensor> tensors, std::size_t made, std::size_t first) = 0;
  // One launch; leaves DeviceChecks in slots `first`, first + 1, ...: kChecksInRecord tensors in each, and what is read
  // of them in slots of its own. At most kChecksInParameters.
  virtual Status launch(std::span<const ChecksumStatsTensor> tensors, std::size_t first) = 0;
  // One launch for a view with gaps; leaves DeviceChecks in slot `slot`.
  virtual Status launch(const CheckedTensor& tensor, std::size_t slot) = 0;
  // What elements say of an op, one launch: looks at slot `of`, the statistics of call.out, and leaves DeviceEvidence
  // in slot `slot`. `origins`: and decides on them, as below.
  virtual Status launch(const EvidenceCall& call, std::size_t of, std::size_t slot, const OriginPlan* origins,
                        std::size_t origins_slot) = 0;
  virtual Status launch(const UpdatesCall& call, std::size_t slot) = 0;  // leaves DeviceUpdates
  // One launch; the plan's outputs are slots. Leaves DeviceOrigins in slot `slot`.
  virtual Status launch(const OriginPlan& plan, std::size_t slot) = 0;
  // One launch behind it: leaves histograms of the plan's tensors in the arena, where it was decided to take them.
  virtual Status launch(std::span<const DeviceStatsView> views) = 0;
  virtual const std::uint64_t* arena() const = 0;  // the host's
  // To the host's own slots, behind what was launched so far.
  virtual Status copy(std::size_t first, std::size_t count) = 0;
  // Mark number `which` (below ReadingsOptions::copies) is reached when the stream has done all it was asked so far.
  virtual Status mark(std::size_t which) = 0;
  virtual Mark look(std::size_t which) = 0;
  virtual Status wait(std::size_t which) = 0;
  virtual const DeviceStatsRecord* records() const = 0;  // the host's
};

struct ReadingsCounts {
  std::uint64_t launches = 0;
  std::uint64_t tensors = 0;    // asked for
  std::uint64_t delivered = 0;  // fetched, of those
  std::uint64_t lost = 0;       // will not come: no room, no contents, a failed launch or copy, not fetched in time
  std::uint64_t dropped = 0;    // nobody wants them any more
  std::uint64_t copies = 0, copies_put_off = 0;  // put off: all of ReadingsOptions::copies were under way
  std::uint64_t waits = 0;      // of the host for the device
  std::string first_loss = {};  // why; empty: nothing was lost
};

enum class ReadingsState : std::uint8_t {
  kPending,  // ask again
  kReady,
  kLost,     // will not come, or was fetched before
};

// What was asked for besides statistics, as far as it came.
struct Checked {
  std::uint64_t checksum = 0;  // kernels/cpu/checksum.h
  bool differs = false;        // from when the reference was last both at, or there was nothing to compare with
};
struct ReadingExtras {
  std::vector<std::optional<Checked>> checks;  // one for each tensor, where there were references
  // For each OriginCall where bad numbers began one for each of its tensors; of those without room none.
  std::vector<std::vector<std::optional<TensorStats>>> histograms;
  std::vector<std::optional<DeviceEvidence>> findings;  // one for each call that was made
  std::optional<DeviceUpdates> updates;
};

// One thread's. Nothing here throws, and nothing but wait() waits.
class DeviceReadings {
 public:
  using Ticket = std::uint64_t;  // 0: lost at once
  // Null where the device has none, and `why` says why. Allocates, and may wait for the device.
  static std::unique_ptr<DeviceReadings> open(DeviceBackend& device, const ReadingsOptions& options,
                                              std::string& why) noexcept;
  DeviceReadings(std::unique_ptr<ReadingsPort> port, const ReadingsOptions& options);

  // Reads these tensors where the stream is now: in one launch where they have no gaps and are at most
  // kTensorsInParameters, views with gaps in one each. Levels above kSums are read as kSums. Allocates nothing for
  // tensors without gaps.
  // `findings`: of outputs among the tensors, in one launch more each; `updates`: in one more.
  // `references`: one for each tensor. All are checked, and statistics are taken of those alone that
  // count as new or differ from their reference; the others have none, but a check. One launch for tensors without
  // gaps, which reads what counts as new once; views with gaps one to be checked and one to be read. `origins`: with
  // references; one launch more each, two where no call for elements decides on them. `shown`: tensors that are not
  // read, for their histograms alone.
  Ticket enqueue(std::span<const TensorView> tensors, std::span<const EvidenceCall> findings = {},
                 const UpdatesCall* updates = nullptr, std::span<const std::uint32_t> references = {},
                 std::span<const OriginCall> origins = {}, std::span<const TensorView> shown = {}) noexcept;
  // Whether the first `made` of the tensors are finite, in two launches, and one for each of those with gaps. Where one is
  // not, statistics of all; else of those `made` alone, at level kFinite. What lies behind kTensorsInParameters, or is
  // more than a launch may read, is not read; nor are others than `made` that have gaps.
  Ticket look(std::span<const TensorView> tensors, std::size_t made) noexcept;
  // Starts one copy of what was read since the last one to the host. Whoever then waits for the stream, for whatever
  // reason, finds it there.
  void hand_over() noexcept;

  // A ticket is fetched once. `out` has a place for each tensor; one that could not be read stays empty (and is lost).
  ReadingsState poll(Ticket ticket, std::span<std::optional<TensorStats>> out,
                     ReadingExtras* extras = nullptr) noexcept;
  // Hands over and waits where it has to. Counted.
  ReadingsState wait(Ticket ticket, std::span<std::optional<TensorStats>> out,
                     ReadingExtras* extras = nullptr) noexcept;
  void drop(Ticket ticket) noexcept;

  const ReadingsCounts& counts() const { return counts_; }

 private:
  // Positions only grow; the slot of one is its remainder by the number of slots.
  struct Entry {
    std::uint64_t begin = 0, end = 0;
    bool done = false;  // fetched, dropped or lost
  };
  struct Slot {
    std::uint32_t index = 0;    // of the tensor in its call
    enum class Holds : std::uint8_t { kStats, kFindings, kUpdates, kChecks, kOrigins };
    bool launched = false;
    Holds holds = Holds::kStats;
    bool is_checked = false;    // statistics: there where a check found a difference
    std::uint8_t checks = 0;    // of tensors `index`, index + 1, ...; of origins: how many tensors
    std::int64_t repeats = 1;
  };

  Ticket enqueue_all(std::span<const TensorView> tensors, std::span<const EvidenceCall> findings,
                     const UpdatesCall* updates, std::span<const std::uint32_t> references,
                     std::span<const OriginCall> origins, std::span<const TensorView> shown, std::uint64_t checks);
  struct PlannedOrigins {
    Status status;
    std::uint32_t index = 0;  // among the origins of the call
    std::uint64_t at = 0;
    bool decided = false;     // by the launch of a call for elements
    OriginPlan plan;
    DeviceStatsView views[kMaxOriginTensors];
  };
  PlannedOrigins plan_origins(std::span<const TensorView> tensors, std::span<const TensorView> shown,
                            const OriginCall& call, std::uint64_t begin, std::uint64_t end);
  void launch_origins(PlannedOrigins& origins);
  void copy_origins(const Slot& slot, const DeviceStatsRecord* record, ReadingExtras& extras);
  std::uint64_t plan_checks(std::span<const TensorView> tensors, std::span<const std::uint32_t> references);
  std::uint64_t launch_checksum_stats(std::span<const TensorView> tensors, std::uint64_t at, std::uint64_t stats);
  std::uint64_t gather(std::span<const TensorView> tensors, std::uint64_t at);
  void copy_checks(const Slot& slot, const DeviceStatsRecord* record, ReadingExtras& extras);
  Status launch_evidence(const EvidenceCall& call, std::uint32_t index, std::uint64_t begin, std::uint64_t end,
                         std::uint64_t at, const PlannedOrigins* origins);
  void launch_updates(const UpdatesCall& call, std::uint64_t at);
  void launch_gathered(std::uint64_t first);
  bool make_room(std::uint64_t slots);
  void advance_tail();
  Entry* find(Ticket ticket);
  void look_for_arrivals();
  void fail(const Status& status);
  void lose(std::uint64_t tensors, const std::string& why);
  ReadingsState fetch(Entry& entry, std::span<std::optional<TensorStats>> out, ReadingExtras* extras);
  Slot& slot(std::uint64_t position) { return slots_[position % slots_.size()]; }

  std::unique_ptr<ReadingsPort> port_;
  ReadingsOptions options_;
  std::vector<Slot> slots_;
  std::vector<Entry> entries_;
  std::vector<std::uint64_t> marks_;     // position up to which each one's copy goes
  std::vector<DeviceTensor> gathered_;   // of the launch at hand
  std::vector<std::uint32_t> others_;    // tensors with gaps, of the call at hand
  struct Planned {
    CheckedTensor tensor;      // of size 0: cannot be checked
    bool joins = false;        // the launch of the one before it
    bool has_gaps() const { return tensor.view.size == 0 || tensor.view.dims > 0; }
  };
  std::vector<Planned> checked_;         // of the call at hand
  std::vector<ChecksumStatsTensor> batch_;    // of the launch at hand
  Ticket oldest_ = 1, next_ = 1;
  std::uint64_t tail_ = 0, head_ = 0;    // positions in use
  std::uint64_t handed_ = 0, arrived_ = 0;
  std::uint64_t oldest_mark_ = 0, next_mark_ = 0;
  bool failed_ = false;                  // the device answers no more
  ReadingsCounts counts_;
};

}  // namespace nanhunt::kernels
