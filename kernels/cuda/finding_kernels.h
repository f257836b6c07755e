// SPDX-License-Identifier: Apache-2.0
// Findings of an op (device_findings.h) as three kernels of single elements (lanes.h): one that empties the slot, one
// that looks at the elements where the statistics say that there is something to find, one that reads the numbers that
// met. Nothing depends on an order: places are the smallest, counts are counts.
#pragma once

#include <cstdint>

#include "kernels/cuda/arrays.h"
#include "kernels/cuda/host_device.h"
#include "kernels/device_findings.h"

namespace nanhunt::kernels::cuda {

NANHUNT_HOST_DEVICE inline std::uint64_t magnitude_bits(double value) {
  return bits_as<std::uint64_t>(value) & 0x7fff'ffff'ffff'ffffu;
}
NANHUNT_HOST_DEVICE inline bool is_inf_bits(double value) { return magnitude_bits(value) == 0x7ff0'0000'0000'0000u; }
NANHUNT_HOST_DEVICE inline bool is_nan_bits(double value) { return magnitude_bits(value) > 0x7ff0'0000'0000'0000u; }

// `at` becomes the smaller of both.
NANHUNT_HOST_DEVICE inline void atomic_lower(std::uint64_t* at, std::uint64_t value) {
#if NANHUNT_ON_DEVICE
  atomicMin(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
#else
  std::uint64_t seen = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (value < seen && !__atomic_compare_exchange_n(at, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
#endif
}

struct FindingsBegin {
  DeviceFindings* found;
  NANHUNT_HOST_DEVICE std::int64_t count() const { return 1; }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t) const { *found = DeviceFindings{}; }
};

struct FindingsScan {
  FindingsCall call;
  const DeviceStatsRecord* output;  // the statistics of call.out
  DeviceFindings* found;

  NANHUNT_HOST_DEVICE std::int64_t count() const { return call.walk.count; }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t i) const {
    const bool bad = output->first != kNoIndex, zeros = call.counts_flushed && output->zero != 0;
    if (!bad && !zeros) return;
    const Place place = place_of(call.walk, i);
    const double made = load<double>(call.out, place);
    if (is_inf_bits(made)) atomic_lower(&found->first_inf, static_cast<std::uint64_t>(i));
    if (is_nan_bits(made)) atomic_lower(&found->first_nan, static_cast<std::uint64_t>(i));
    if (zeros && magnitude_bits(made) == 0 && is_lost(place)) atomic_add(&found->flushed, std::uint64_t{1});
  }

 private:
  NANHUNT_HOST_DEVICE bool is_lost(const Place& place) const {
    for (int k = 0; k < call.inputs; ++k) {
      const unsigned bit = 1u << k;
      if (((call.must_be_nonzero | call.must_not_be_inf) & bit) == 0) continue;
      const double number = load<double>(call.in[k], place);
      if ((call.must_be_nonzero & bit) != 0 && magnitude_bits(number) == 0) return false;
      if ((call.must_not_be_inf & bit) != 0 && is_inf_bits(number)) return false;
    }
    return true;
  }
};

struct FindingsEnd {
  FindingsCall call;
  DeviceFindings* found;

  NANHUNT_HOST_DEVICE std::int64_t count() const { return 1; }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t) const {
    read(found->first_inf, found->at_inf);
    read(found->first_nan, found->at_nan);
  }

 private:
  NANHUNT_HOST_DEVICE void read(std::uint64_t at, double* numbers) const {
    if (at == kNoIndex) return;
    const Place place = place_of(call.walk, static_cast<std::int64_t>(at));
    numbers[0] = load<double>(call.out, place);
    for (int k = 0; k < call.inputs; ++k) numbers[1 + k] = load<double>(call.in[k], place);
  }
};

}  // namespace nanhunt::kernels::cuda
