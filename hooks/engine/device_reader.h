// SPDX-License-Identifier: Apache-2.0
// Contents of tensors on a device for the recorder, without waiting for the device: read there right after the op, and
// told once what was read has come. Contents that were read before are compared there with what they were, and read
// again where they are not that any more.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device_readings.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/recorder.h"
#include "src/record/device/device_contents.h"
#include "src/record/device/device_elements.h"

namespace nanhunt::hooks {

class DeviceReader {
 public:
  explicit DeviceReader(Recorder& recorder) : recorder_(recorder) {}
  ~DeviceReader();  // waits for what is under way: the watch ends
  DeviceReader(const DeviceReader&) = delete;
  DeviceReader& operator=(const DeviceReader&) = delete;

  // False: on the CPU, or on a device whose results cannot be had (told once as a note). Else it is read when take() is
  // called.
  bool can_read(const engine::Tensor& tensor);
  void read(const engine::Tensor& tensor, ValueView& value);
  void overwritten(std::size_t input, const ValueView& value);  // of the op at hand: its old contents
  bool was_read(const ValueView& value);  // these contents, or others in their place that nothing wrote
  void release(std::uint64_t storage) noexcept;
  // What elements say of an op besides; after its inputs and outputs were read. The number for OpEvent::late, 0:
  // nothing.
  std::uint64_t read_evidence(const engine::OpCall& call, const OpEvent& event);
  void take();       // one launch for what was read, or a few
  void report_lost();  // after the recorder knows of the event: what take() could not launch

  void forget() noexcept;  // what is at hand and was not told, for want of memory

  void end_step();
  void finish();  // waits for what is under way, and tells it

  kernels::ReadingsCounts counts() const { return readings_ ? readings_->counts() : kernels::ReadingsCounts{}; }

 private:
  // Every tensor that an op names takes a result: a step of a large model some ten thousand.
  static constexpr kernels::ReadingsOptions kReadings = {
      .tensors = 1 << 17, .tickets = 1 << 15, .references = 1 << 17, .arena_words = 1 << 19};
  struct Reading {
    std::uint64_t number = 0;
    std::shared_ptr<record::DeviceContents::Contents> contents;
    bool is_first = false;
  };
  struct PendingReading {
    kernels::DeviceReadings::Ticket ticket = 0;
    std::vector<Reading> readings;
    std::optional<record::ElementRequest> findings;
  };

  void poll();
  void tell(const PendingReading& taken, kernels::ReadingsState state, const kernels::ReadingExtras& extras);
  record::DeviceOperand operand(const engine::OpArgument& argument, const ValueView& value) const;

  Recorder& recorder_;
  engine::Device device_;
  std::unique_ptr<kernels::DeviceReadings> readings_;
  bool opened_ = false;
  std::uint64_t last_number_ = 0;
  std::vector<TensorView> views_;  // of the event at hand
  std::vector<std::uint32_t> references_;
  record::DeviceContents contents_{static_cast<std::uint32_t>(kReadings.references)};
  PendingReading at_hand_;
  std::vector<kernels::EvidenceCall> calls_;
  std::vector<record::DeviceOperand> inputs_, outputs_;  // of the op at hand
  std::optional<kernels::UpdatesCall> updates_;
  kernels::OriginCall origins_;
  std::vector<std::pair<std::size_t, std::uint32_t>> old_;  // inputs of the op at hand, references of what they were
  std::size_t tensors_since_copy_ = 0;
  std::deque<PendingReading> under_way_;
  std::vector<std::optional<TensorStats>> results_;
};

}  // namespace nanhunt::hooks
