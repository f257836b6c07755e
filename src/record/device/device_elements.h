// SPDX-License-Identifier: Apache-2.0
// What single elements say of an op whose tensors lie where only a device can read them: what is asked there, and what
// comes back in the recorder's words. For whoever reads contents on a device (hooks/engine, src/c_api).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/origin_histograms.h"
#include "kernels/element_evidence.h"
#include "kernels/device_readings.h"
#include "nanhunt/event.h"
#include "nanhunt/recorder.h"

namespace nanhunt::record {

inline constexpr std::size_t kNoReading = ~std::size_t{0};

// One input or output of an op, as the device that reads the op's outputs knows it.
struct DeviceOperand {
  const void* address = nullptr;      // nullptr: not on that device, or gone
  std::size_t reading = kNoReading;   // place among the tensors that are read
  bool is_new = false;                // its contents are read for the first time
  std::uint32_t reference = 0;        // where the device keeps what its contents were; of old contents, too. 0: nowhere
  // Place among the tensors that are not read, for their contents are known, but may be shown in histograms.
  std::size_t shown = kNoReading;
};
// As the event's lists.
struct DeviceOperands {
  std::span<const DeviceOperand> inputs, outputs;
};

struct ElementRequest {
  struct Operand {
    std::size_t input = 0;
    std::vector<std::int64_t> sizes;
  };
  struct Output {
    std::size_t output = 0;
    std::vector<std::int64_t> sizes;
    std::vector<Operand> operands;  // as EvidenceCall::in
    bool counts_flushed = false;
  };
  struct Shown {
    bool of_output = false;
    std::size_t index = 0;     // among the op's outputs, or inputs
    std::uint32_t tensor = 0;  // of OriginCall
  };
  std::uint64_t number = 0;     // under which it comes
  std::vector<Output> outputs;  // as their calls
  std::size_t first_call = 0;   // among the calls of the reading
  std::vector<Shown> histograms;
  std::size_t origins = 0;       // its call, among those of the reading
  bool counts_updates = false;
};

// Adds a call for each floating-point output whose contents are new and read. False: there is nothing to ask.
bool ask_elements(const OpEvent& event, const DeviceOperands& operands, std::vector<kernels::EvidenceCall>& calls,
                  ElementRequest& asked);
// Updates that change nothing, where the op is one whose are counted and all that it takes is there.
std::optional<kernels::UpdatesCall> ask_updates(const OpEvent& event, const DeviceOperands& operands);
// Histograms of what is read, where bad numbers begin. What is not known to be bad counts as good: whether anything
// began is judged by the recorder.
kernels::OriginCall ask_origins(const OpEvent& event, const DeviceOperands& operands, ElementRequest& asked);

void report_elements(const ElementRequest& asked, const kernels::ReadingExtras& found, Recorder& recorder);

}  // namespace nanhunt::record
