// SPDX-License-Identifier: Apache-2.0
// What single elements say of an op whose tensors lie where only a device can read them: what is asked there, and what
// comes back in the recorder's words. The same questions as hooks/engine/device_reader asks of the engine's tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/device_findings.h"
#include "kernels/device_readings.h"
#include "nanhunt/event.h"
#include "nanhunt/recorder.h"

namespace nanhunt::c_api {

// Of one value of an op that is read on the stream of its outputs.
struct DeviceOperand {
  const ValueView* value = nullptr;
  const void* address = nullptr;
  std::size_t reading = 0;  // place among the tensors that are read; kNoReading: it was read before
};
inline constexpr std::size_t kNoReading = ~std::size_t{0};

struct AskedElements {
  struct Operand {
    std::size_t input = 0;
    std::vector<std::int64_t> sizes;
  };
  struct Output {
    std::size_t output = 0;
    std::vector<std::int64_t> sizes;
    std::vector<Operand> operands;  // as FindingsCall::in
    bool counts_flushed = false;
  };
  std::uint64_t number = 0;     // under which it comes
  std::vector<Output> outputs;  // as their calls
  std::size_t first_call = 0;   // among the calls of the reading
  bool counts_updates = false;
};

// Adds a call for each output of the op that `operands` has with a reading. False: there is nothing to ask.
bool ask_elements(const OpEvent& event, std::span<const DeviceOperand> operands,
                  std::vector<kernels::FindingsCall>& calls, AskedElements& asked);
// Updates that change nothing, where the op is one whose are counted and all that it takes is there.
std::optional<kernels::UpdatesCall> ask_updates(const OpEvent& event, std::span<const DeviceOperand> operands);
void tell_elements(const AskedElements& asked, const kernels::Besides& found, Recorder& recorder);

}  // namespace nanhunt::c_api
