// SPDX-License-Identifier: Apache-2.0
// Streams of a framework on a device that is not there, for the tests' build of libnanhunt (nanhunt_emulated): what
// reads on them is the code of kernels/cuda run by the CPU. The library has these functions beside the C interface, so
// that Python can call them as well.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {
#define NANHUNT_EMULATED __attribute__((visibility("default")))

// All as it was when the library was loaded: one device, results that come with any wait for it, counts at 0.
NANHUNT_EMULATED void nanhunt_emulated_reset(void);
// "devices"; "capturing", on every stream; of results (ReadingsDelivery): "after_waits", "copies_later", "never",
// "fails". False: there is no such name.
NANHUNT_EMULATED bool nanhunt_emulated_set(const char* what, std::int64_t value);
// "waits", "launches". -1: there is no such name.
NANHUNT_EMULATED std::int64_t nanhunt_emulated_count(const char* what);
// Who reads the device's memory for its kernels. nullptr: addresses are those of nanhunt_emulated_address().
typedef void (*nanhunt_emulated_show)(void* to, const void* from, std::size_t bytes);
NANHUNT_EMULATED void nanhunt_emulated_memory(nanhunt_emulated_show show);
// The address by which the device knows memory of the host: whoever reads there without knowing dies of it.
NANHUNT_EMULATED const void* nanhunt_emulated_address(const void* memory);
}
