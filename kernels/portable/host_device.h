// SPDX-License-Identifier: Apache-2.0
// What kernel logic needs to be compiled twice: by nvcc for the device, and by any C++ compiler for the tests.
// Includes nothing of CUDA. The only file with kernel logic's `#if`s in it.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define NANHUNT_HOST_DEVICE __host__ __device__
#else
#define NANHUNT_HOST_DEVICE
#endif

// Before a loop whose count is known: arrays that it indexes stay in registers.
#if defined(__CUDACC__)
#define NANHUNT_UNROLL _Pragma("unroll")
#else
#define NANHUNT_UNROLL
#endif

// For what is rarely reached: keeps its registers and its instructions out of the loop that calls it.
#define NANHUNT_RARE __attribute__((noinline))

// For templates that many kernels call in many places, so that they are compiled once in each file. The host's compiler chooses for itself.
#if defined(__CUDA_ARCH__)
#define NANHUNT_ONCE __noinline__
#else
#define NANHUNT_ONCE
#endif

// True where the device's own code is being compiled; the rest of the line is dropped elsewhere.
#if defined(__CUDA_ARCH__)
#define NANHUNT_ON_DEVICE 1
#else
#define NANHUNT_ON_DEVICE 0
#endif

namespace nanhunt::kernels::cuda {

// Same bits, other type (std::bit_cast is not for device code).
template <class To, class From>
NANHUNT_HOST_DEVICE inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

template <class T>
NANHUNT_HOST_DEVICE inline T lesser(T a, T b) {
  return b < a ? b : a;
}
template <class T>
NANHUNT_HOST_DEVICE inline T greater(T a, T b) {
  return a < b ? b : a;
}

// Number of leading zero bits; x is not 0.
NANHUNT_HOST_DEVICE inline int leading_zeros(std::uint32_t x) {
#if NANHUNT_ON_DEVICE
  return __clz(static_cast<int>(x));
#else
  return __builtin_clz(x);
#endif
}
NANHUNT_HOST_DEVICE inline int leading_zeros(std::uint64_t x) {
#if NANHUNT_ON_DEVICE
  return __clzll(static_cast<long long>(x));
#else
  return __builtin_clzll(x);
#endif
}
NANHUNT_HOST_DEVICE inline int bits_set(std::uint32_t x) {
#if NANHUNT_ON_DEVICE
  return __popc(x);
#else
  return __builtin_popcount(x);
#endif
}

// a * b + c, rounded once.
NANHUNT_HOST_DEVICE inline double multiply_add(double a, double b, double c) {
#if NANHUNT_ON_DEVICE
  return __fma_rn(a, b, c);
#else
  return __builtin_fma(a, b, c);
#endif
}

// Words that several blocks, or a kernel and the host, share. On the host these are atomics of the same meaning, so
// that protocols built from them can be run by threads under ThreadSanitizer.

// Adds and gives the value before. Orders nothing.
NANHUNT_HOST_DEVICE inline std::uint32_t atomic_add(std::uint32_t* at, std::uint32_t value) {
#if NANHUNT_ON_DEVICE
  return atomicAdd(at, value);
#else
  return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
#endif
}
NANHUNT_HOST_DEVICE inline std::uint64_t atomic_add(std::uint64_t* at, std::uint64_t value) {
#if NANHUNT_ON_DEVICE
  return atomicAdd(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
#else
  return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
#endif
}

// Puts in `desired` where `expected` stands; gives what stood there. Orders nothing.
NANHUNT_HOST_DEVICE inline std::uint64_t compare_and_swap(std::uint64_t* at, std::uint64_t expected,
                                                          std::uint64_t desired) {
#if NANHUNT_ON_DEVICE
  return atomicCAS(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(expected),
                   static_cast<unsigned long long>(desired));
#else
  __atomic_compare_exchange_n(at, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
#endif
}

// A ticket of `holders`, from 0: what this thread wrote before is seen by whoever draws a later one, on the whole
// device. The last ticket puts the counter back to 0, so it serves the next launch without being cleared.
NANHUNT_HOST_DEVICE inline std::uint32_t draw_ticket(std::uint32_t* counter, std::uint32_t holders) {
#if NANHUNT_ON_DEVICE
  __threadfence();
  const std::uint32_t ticket = atomicInc(counter, holders - 1);
  __threadfence();
  return ticket;
#else
  std::uint32_t ticket = __atomic_load_n(counter, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(counter, &ticket, ticket >= holders - 1 ? 0 : ticket + 1, true,
                                      __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
  }
  return ticket;
#endif
}

// Publishes: whoever acquires the value, host threads included, sees what this thread wrote before.
template <class Word>
NANHUNT_HOST_DEVICE inline void store_release_system(Word* at, Word value) {
#if NANHUNT_ON_DEVICE
  __threadfence_system();
  *static_cast<volatile Word*>(at) = value;
#else
  __atomic_store_n(at, value, __ATOMIC_RELEASE);
#endif
}
template <class Word>
NANHUNT_HOST_DEVICE inline Word load_acquire_system(const Word* at) {
#if NANHUNT_ON_DEVICE
  const Word value = *static_cast<const volatile Word*>(at);
  __threadfence_system();
  return value;
#else
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
}

}  // namespace nanhunt::kernels::cuda
