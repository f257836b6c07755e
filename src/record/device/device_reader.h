// SPDX-License-Identifier: Apache-2.0
// Contents that lie where only a device can read them: asked for on its streams right after what made them, reported to
// the recorder when they have come. Contents that were read before are compared there with what they were, and read
// again where they are not that any more. Whose streams they are, and how a tensor names one, is the caller's to say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/device_readings.h"
#include "kernels/foreign_stream.h"
#include "nanhunt/event.h"
#include "nanhunt/recorder.h"
#include "src/record/device/device_contents.h"
#include "src/record/device/device_elements.h"

namespace nanhunt::record {

class DeviceReader {
 public:
  DeviceReader() = default;
  ~DeviceReader();  // waits for what is under way
  DeviceReader(const DeviceReader&) = delete;
  DeviceReader& operator=(const DeviceReader&) = delete;

  // What an op reads is not read again where it is known under its identity.
  void trust_inputs() noexcept { trusts_ = true; }
  // Of ops from here on: single elements are looked at as well, by launches of each op's own.
  void read_elements(bool on) noexcept { reads_elements_ = on; }
  // The stream's number, from 0. `references`: of the readings' options. `foreign`: the stream is somebody else's, who
  // may capture a graph on it; nothing is read meanwhile.
  std::size_t add(std::unique_ptr<kernels::DeviceReadings> readings, std::size_t references,
                  std::unique_ptr<kernels::ForeignStream> foreign = nullptr);
  std::size_t streams() const { return streams_.size(); }

  // One call: begin_call(), its events, launch(): what they name is read together. One event: begin(), value() for each
  // of its values, take(), the event to the recorder. After an exception begin_call() reports what was lost.
  void begin_call(Recorder& recorder) noexcept;
  void begin() noexcept { requests_.clear(); }
  enum class Use : std::uint8_t {
    kRead,
    kInput,    // the same, of an op: may be trusted
    kMade,     // by this op: its contents count as new, unless they are an input's
    kOld,      // was there before this op wrote over it, and cannot be read any more
    kKnown,    // is compared with what was read of it, where anything was
    kChanged,  // by nobody that was seen: counts as new
  };
  // The address in `value` is the stream's device's, and is taken out of it. `value` stays where it is until take(),
  // which gives it a number where it is read (ValueView::late).
  void value(std::size_t stream, ValueView& value, Use use);
  void take(Recorder& recorder);
  void take(OpEvent& event, Recorder& recorder);  // asks for what elements say of the op as well
  void launch(Recorder& recorder);

  // Tensors of one stream that nobody may ask after: whether the first `made` are finite, and where one is not, statistics
  // of all; none made: those in any case. Read together, apart from events. A number from 1; 0: they are not read.
  std::uint64_t look(std::size_t stream, std::span<const TensorView> tensors, std::size_t made);
  void end_looks() noexcept;  // what was looked at so far begins its way to the host
  // Where it has come: of each tensor its statistics, none where it was not read.
  kernels::ReadingsState look_state(std::uint64_t look);
  const std::optional<TensorStats>* looked_at(std::uint64_t look, std::size_t index) const;
  void forget_look(std::uint64_t look) noexcept;

  void release(std::uint64_t storage) noexcept {
    for (Stream& stream : streams_) stream.contents.release(storage);
  }
  void end_step(Recorder& recorder);
  void poll(Recorder& recorder);    // reports what has come, without a wait
  void settle(Recorder& recorder);  // waits for what is under way, but not for a stream that is captured
  void close(Recorder& recorder);   // the same, and nothing is under way afterwards
  void abandon() noexcept;          // in a forked child: what is the parent's stays as it is

  // Of all streams; the first loss of the first that has one.
  kernels::ReadingsCounts counts() const;
  std::uint64_t captured() const { return captured_; }  // tensors that were not read for a graph was captured
  const kernels::ReadingsCounts& counts_of(std::size_t stream) const { return streams_[stream].readings->counts(); }

 private:
  struct Reading {
    std::uint64_t number = 0;
    std::shared_ptr<DeviceContents::Contents> contents;
  };
  struct PendingReading {
    kernels::DeviceReadings::Ticket ticket = 0;
    std::vector<Reading> readings;
    std::vector<ElementRequest> elements;
  };
  struct Stream {
    explicit Stream(std::size_t references_on_device)
        : contents(static_cast<std::uint32_t>(references_on_device)) {}
    bool capturing() const { return foreign != nullptr && foreign->is_capturing(); }

    std::unique_ptr<kernels::ForeignStream> foreign;  // outlives its readings; nullptr: our own stream
    std::unique_ptr<kernels::DeviceReadings> readings;
    DeviceContents contents;
    std::vector<TensorView> views;  // of the call at hand
    std::vector<std::uint32_t> references;
    std::vector<TensorView> shown;  // known, and not read
    std::unordered_map<const DeviceContents::Contents*, std::size_t> places;  // among the readings at hand
    std::vector<kernels::OriginCall> origins;
    std::vector<kernels::EvidenceCall> findings;
    std::optional<kernels::UpdatesCall> updates;
    PendingReading at_hand;
    bool is_capturing = false;      // during the call at hand
    std::size_t tensors_since_copy = 0;
    std::deque<PendingReading> under_way;
  };
  struct Look {
    std::size_t stream = 0;
    kernels::DeviceReadings::Ticket ticket = 0;
    std::size_t made = 0;
    bool is_forgotten = false;
    kernels::ReadingsState state = kernels::ReadingsState::kPending;
    std::vector<std::optional<TensorStats>> found;

    void settle(kernels::ReadingsState now);
  };
  struct Request {
    std::size_t stream = 0;
    const void* address = nullptr;
    ValueView* value = nullptr;
    Use use = Use::kRead;
    DeviceOperand operand = {};
    std::shared_ptr<DeviceContents::Contents> contents = {};
  };

  void read(Request& asked);
  bool is_trusted(const Request& asked) const;
  void trust(Request& asked);
  void doubt(std::uint64_t storage) noexcept {
    for (Stream& stream : streams_) stream.contents.doubt(storage);
  }
  static void clear(Stream& stream) noexcept;
  void launch(Stream& stream, Recorder& recorder);
  void hand_over(Stream& stream, Recorder& recorder);
  void poll(Stream& stream, Recorder& recorder);
  void ask(OpEvent& event, std::size_t stream);
  void report(const PendingReading& taken, kernels::ReadingsState state, Recorder& recorder);

  std::vector<Stream> streams_;
  std::deque<Look> looks_;        // from number first_look_ on
  std::uint64_t first_look_ = 1;
  std::vector<Request> requests_;  // of the event at hand
  std::vector<DeviceOperand> inputs_, outputs_;
  std::vector<std::optional<TensorStats>> results_;
  kernels::ReadingExtras extras_;
  std::uint64_t last_number_ = 0, captured_ = 0;
  bool trusts_ = false, reads_elements_ = true;
};

}  // namespace nanhunt::record
