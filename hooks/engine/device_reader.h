// SPDX-License-Identifier: Apache-2.0
// Statistics of tensors on a device for the recorder, without waiting for the device: taken there right after the op, and
// told once they have come.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device_findings.h"
#include "kernels/device_readings.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/recorder.h"

namespace nanhunt::hooks {

class DeviceReader {
 public:
  explicit DeviceReader(Recorder& recorder) : recorder_(recorder) {}
  ~DeviceReader();  // waits for what is under way: the watch ends
  DeviceReader(const DeviceReader&) = delete;
  DeviceReader& operator=(const DeviceReader&) = delete;

  // False: on the CPU, or on a device whose results cannot be had (told once as a note). Else it is read when take() is
  // called, unless the recorder knows it.
  bool can_read(const engine::Tensor& tensor);
  void read(const engine::Tensor& tensor, ValueView& value);
  // What elements say of an op besides; after its inputs and outputs were read. The number for OpEvent::late, 0: nothing.
  std::uint64_t read_findings(const engine::OpCall& call, const OpEvent& event);
  void take();       // one launch for what was read, or a few
  void tell_lost();  // after the recorder knows of the event: what take() could not launch

  void forget() noexcept;  // what is at hand and was not told, for want of memory

  void end_step();
  void finish();  // waits for what is under way, and tells it

 private:
  struct Operand {
    std::size_t input = 0;
    std::vector<std::int64_t> sizes;
  };
  struct OutputFindings {
    std::size_t output = 0;
    std::vector<std::int64_t> sizes;  // of the output
    std::vector<Operand> operands;    // as FindingsCall::in
    bool counts_flushed = false;
  };
  struct Findings {
    std::uint64_t number = 0;
    std::vector<OutputFindings> outputs;  // as their calls
    bool counts_updates = false;
  };
  struct Taken {
    kernels::DeviceReadings::Ticket ticket = 0;
    std::vector<std::uint64_t> numbers;
    std::optional<Findings> findings;
  };

  void poll();
  void tell(const Taken& taken, kernels::ReadingsState state, const kernels::Besides& besides);
  void tell_findings(const Findings& findings, const kernels::Besides& besides);
  bool plan(const engine::OpCall& call, const OpEvent& event, std::size_t output, const engine::Tensor& made);

  Recorder& recorder_;
  engine::Device device_;
  std::unique_ptr<kernels::DeviceReadings> readings_;
  bool opened_ = false;
  std::uint64_t last_number_ = 0;
  std::vector<TensorView> views_;  // of the event at hand
  Taken at_hand_;
  bool plan_updates(const engine::OpCall& call, const OpEvent& event);

  std::vector<kernels::FindingsCall> calls_;
  kernels::UpdatesCall updates_;
  std::size_t tensors_since_copy_ = 0;
  std::deque<Taken> under_way_;
  std::vector<std::optional<TensorStats>> results_;
};

}  // namespace nanhunt::hooks
