// SPDX-License-Identifier: Apache-2.0
// The engine's tensors on a device, for the reader of src/record/device: no op waits for what it left there.
#pragma once

#include <cstdint>

#include "kernels/device_readings.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/recorder.h"
#include "src/record/device/device_reader.h"

namespace nanhunt::hooks {

// Borrowed, with an address where its device has it.
TensorView device_view(const engine::Tensor& tensor);

class TensorReader {
 public:
  using Use = record::DeviceReader::Use;

  explicit TensorReader(Recorder& recorder) : recorder_(recorder) {}
  ~TensorReader() { finish(); }  // waits for what is under way: the watch ends
  TensorReader(const TensorReader&) = delete;
  TensorReader& operator=(const TensorReader&) = delete;

  // False: on the CPU, or on a device whose results cannot be had (noted once).
  bool can_read(const engine::Tensor& tensor);
  // As DeviceReader::value(), of a tensor that can be read.
  void value(const engine::Tensor& tensor, ValueView& value, Use use);

  // One event: begin(), its values, take(), the event to the recorder, launch(). What cannot be read for want of memory
  // is reported as lost.
  void begin() noexcept { reader_.begin_call(recorder_); }
  void take() noexcept;
  void take(OpEvent& event) noexcept;
  void launch() noexcept;

  void release(std::uint64_t storage) noexcept { reader_.release(storage); }
  void end_step() noexcept;
  void finish() noexcept;  // waits for what is under way, and reports it

 private:
  template <typename F>
  void guard(F&& body) noexcept;

  Recorder& recorder_;
  record::DeviceReader reader_;
  engine::Device device_;
  bool opened_ = false, failed_ = false;  // failed_: for want of memory, in the event at hand
};

}  // namespace nanhunt::hooks
