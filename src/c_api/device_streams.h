// SPDX-License-Identifier: Apache-2.0
// The caller's streams, for the reader of what lies on devices. Contract: nanhunt_device_stream() in c_adapter.h.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "nanhunt/event.h"
#include "nanhunt/recorder.h"
#include "nanhunt/status.h"
#include "src/record/device/device_reader.h"

namespace nanhunt::c_api {

class DeviceStreams : public record::DeviceReader {
 public:
  // The stream's number, from 1. Not OK: why nothing can be read there, in one line.
  Result<std::int64_t> open(int device, std::uint64_t stream);
  // As DeviceReader::value() of the stream that the fourth word of `value` names; 0: the host's. Misuse where there is
  // no such stream.
  // NANHUNT_LOOKS: what was looked at, which `words` names, is what is known of it.
  void value(const char* what, const std::int64_t* words, ValueView& value, Use use);
  void begin() noexcept {
    DeviceReader::begin();
    told_.clear();
  }
  void settle(Recorder& recorder);  // and notes what has to be
  void close(Recorder& recorder);
  void abandon() noexcept;

 private:
  void add_note(const std::string& text, std::uint64_t count, Recorder& recorder);
  void add_notes(Recorder& recorder);

  std::map<std::pair<int, std::uint64_t>, std::size_t> numbers_;
  std::map<std::pair<int, std::uint64_t>, std::string> refused_;
  std::map<std::string, std::uint64_t> noted_;
  std::deque<KnownContents> told_;  // of the row at hand
};

}  // namespace nanhunt::c_api
