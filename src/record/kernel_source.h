// SPDX-License-Identifier: Apache-2.0
// What a hook tells whoever watches kernels, so that these can be tied to ops. Implemented by hooks/cupti; a hook that
// is given none tells nobody.
#pragma once

#include <cstdint>

#include "nanhunt/recorder.h"

namespace nanhunt::record {

// Calls come on the thread that launches; what is pushed there holds for that thread. None of them throws, waits for a
// device or launches anything.
class KernelSource {
 public:
  virtual ~KernelSource() = default;

  // What the thread launches from here on belongs to one op, until pop_op with the ticket that is given back; ops nest.
  // 0: not watched (any more).
  virtual std::uint64_t push_op() noexcept = 0;
  // The op has launched everything. It is recorded as `seq` (kNoSeq: it is not) in this step.
  virtual void pop_op(std::uint64_t ticket, std::uint64_t seq, std::uint32_t step) noexcept = 0;

  // Around what nanhunt itself launches.
  virtual void push_own() noexcept = 0;
  virtual void pop_own() noexcept = 0;

  // Where the run is: for launches outside of any op.
  virtual void set_place(std::uint32_t step, Phase phase) noexcept = 0;

  // Hands what has become known to the recorder, on the thread of its events. Most often there is nothing.
  virtual void drain(Recorder& recorder) noexcept = 0;
  // The same once the run is over and the device is idle: everything that there still is, and what was not watched.
  virtual void finish(Recorder& recorder) noexcept = 0;
};

}  // namespace nanhunt::record
