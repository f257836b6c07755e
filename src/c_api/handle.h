// SPDX-License-Identifier: Apache-2.0
// What is behind a nanhunt_recorder, and the frame of every call that records.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "nanhunt/c_api.h"
#include "nanhunt/trace.h"
#include "src/c_api/calls.h"
#include "src/c_api/convert.h"
#include "src/c_api/device_streams.h"
#include "src/c_api/digests.h"
#include "src/c_api/error.h"
#include "src/c_api/kernel_slot.h"
#include "src/c_api/layouts.h"
#include "src/record/recorder.h"

// C sees only the name.
struct nanhunt_recorder {
  std::unique_ptr<nanhunt::record::NumberingRecorder> recorder;
  nanhunt::c_api::Converter converter;
  nanhunt::c_api::LayoutTable layouts;
  nanhunt::c_api::CallTable calls;
  // Whoever flushes or counts may do so in another thread than the run's, while the recorder alone would let them.
  mutable std::mutex device_mutex;
  nanhunt::c_api::DeviceStreams devices;
  nanhunt::c_api::KernelSlot kernels;
  std::map<std::string, std::uint64_t> kernel_notes;  // of all times that it was attached, by text
  nanhunt::c_api::DigestWriter digests;
};

namespace nanhunt::c_api {

// Everything that CUPTI still has is recorded, and what was lost noted. Nothing happens where nothing is attached.
void end_kernels(nanhunt_recorder& of);

// The turn of whoever uses `devices`. In a forked child there is none: who held the lock at the fork is not there to
// give it back, nor is the device.
class DeviceTurn {
 public:
  explicit DeviceTurn(const nanhunt_recorder& of) {
    if (!of.recorder->in_forked_child()) lock_ = std::unique_lock(of.device_mutex);
  }
  explicit operator bool() const { return lock_.owns_lock(); }

 private:
  std::unique_lock<std::mutex> lock_;
};

// Misuse that `body` throws becomes NANHUNT_USAGE.
template <typename F>
nanhunt_status checked(F&& body) noexcept {
  return guarded([&]() -> nanhunt_status {
    try {
      body();
    } catch (const Misuse& error) {
      return fail(NANHUNT_USAGE, error.what());
    }
    return NANHUNT_OK;
  });
}

// An event that is wrong is refused whole; the run goes on.
template <typename F>
nanhunt_status recording(nanhunt_recorder* handle, F&& body) noexcept {
  return checked([&] {
    if (handle == nullptr) throw Misuse("expected a recorder, got NULL: open one first");
    body(*handle);
  });
}

}  // namespace nanhunt::c_api
