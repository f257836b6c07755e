// SPDX-License-Identifier: Apache-2.0
// Contents that lie where only a device can read them: asked for on the caller's streams, told to the recorder when
// they have come. Contract: nanhunt_device_stream() in c_adapter.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/device_readings.h"
#include "kernels/foreign_stream.h"
#include "nanhunt/event.h"
#include "nanhunt/recorder.h"
#include "nanhunt/status.h"
#include "src/record/device/device_contents.h"
#include "src/record/device/device_elements.h"

namespace nanhunt::c_api {

struct DeviceCounts {
  std::uint64_t streams = 0, asked = 0, told = 0, lost = 0, captured = 0, launches = 0, copies = 0, waits = 0;
};

class DeviceStreams {
 public:
  DeviceStreams() = default;
  ~DeviceStreams();  // waits for what is under way
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;

  // What an op reads is not read again where it is known under its identity.
  void trust_inputs() noexcept { trusts_ = true; }
  // The stream's number, from 1. Not OK: why nothing can be read there, in one line.
  Result<std::int64_t> open(int device, std::uint64_t stream);

  // One call: begin_call(), its events, launch(): what they name is read together. One event: begin(), value() for each
  // of its values, take(), the event to the recorder.
  void begin_call(Recorder& recorder) noexcept;
  void begin() noexcept { requests_.clear(); }
  // The fourth word of `value` names a stream: its address is of that device. Misuse where there is no such stream.
  // `value` stays where it is until take().
  enum class Use : std::uint8_t {
    kRead,
    kInput, // the same, of an op: may be trusted
    kMade,  // by this op: its contents count as new, unless they are an input's
    kOld,   // was there before this op wrote over it, and cannot be read any more
    kKnown, // is compared with what was read of it, where anything was
    kChanged, // by nobody that was seen: counts as new
  };
  void value(const char* what, std::int64_t layout_word, ValueView& value, Use use);
  void take(Recorder& recorder);
  void take(OpEvent& event, Recorder& recorder);  // asks for what elements say of the op as well
  void launch(Recorder& recorder);

  void release(std::uint64_t storage) noexcept {
    for (Stream& stream : streams_) stream.contents.release(storage);
  }
  void end_step(Recorder& recorder);
  void settle(Recorder& recorder);  // waits for what is under way, and notes what has to be
  void close(Recorder& recorder);   // the same, and nothing is under way afterwards
  void abandon() noexcept;          // in a forked child: what is the parent's stays as it is
  DeviceCounts counts() const;

 private:
  // Tensors, checks, elements and origins each take a result. Histograms are as many as a recorder takes.
  static constexpr kernels::ReadingsOptions kReadings = {
      .tensors = 1 << 16, .tickets = 1 << 14, .references = 1 << 16, .arena_words = 1 << 19};

  struct Reading {
    std::uint64_t number = 0;
    std::shared_ptr<record::DeviceContents::Contents> contents;
  };
  struct PendingReading {
    kernels::DeviceReadings::Ticket ticket = 0;
    std::vector<Reading> readings;
    std::vector<record::ElementRequest> elements;
  };
  struct Stream {
    std::unique_ptr<kernels::ForeignStream> foreign;
    std::unique_ptr<kernels::DeviceReadings> readings;
    record::DeviceContents contents{static_cast<std::uint32_t>(kReadings.references)};
    std::vector<TensorView> views;  // of the call at hand
    std::vector<std::uint32_t> references;
    std::vector<TensorView> shown;  // known, and not read
    std::unordered_map<const record::DeviceContents::Contents*, std::size_t> places;  // among the readings at hand
    std::vector<kernels::OriginCall> origins;
    std::vector<kernels::EvidenceCall> findings;
    std::optional<kernels::UpdatesCall> updates;
    PendingReading at_hand;
    bool is_capturing = false;      // during the call at hand
    std::size_t tensors_since_copy = 0;
    std::deque<PendingReading> under_way;
  };
  struct Request {
    std::size_t stream = 0;
    const void* address = nullptr;
    ValueView* value = nullptr;
    Use use = Use::kRead;
    record::DeviceOperand operand = {};
    std::shared_ptr<record::DeviceContents::Contents> contents = {};
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
  void tell(const PendingReading& taken, kernels::ReadingsState state, Recorder& recorder);
  void add_note(const std::string& text, std::uint64_t count, Recorder& recorder);

  std::vector<Stream> streams_;
  std::map<std::pair<int, std::uint64_t>, std::size_t> numbers_;
  std::map<std::pair<int, std::uint64_t>, std::string> refused_;
  std::vector<Request> requests_;  // of the event at hand
  std::vector<record::DeviceOperand> inputs_, outputs_;
  std::vector<std::optional<TensorStats>> results_;
  kernels::ReadingExtras extras_;
  std::uint64_t last_number_ = 0, captured_ = 0;
  bool trusts_ = false;
  std::map<std::string, std::uint64_t> noted_;
};

}  // namespace nanhunt::c_api
