// SPDX-License-Identifier: Apache-2.0
// Built for the machine it runs on (see CMakeLists.txt): 64 bytes at a time where it can.
#include "tests/bench/plain_read.h"

namespace nanhunt::bench {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kPages = 8;

// Where registers are narrower the compiler takes several; no vector crosses a call that it does not inline.
#pragma GCC diagnostic ignored "-Wpsabi"
using Vec = std::uint64_t __attribute__((vector_size(64)));

Vec load(const char* at) {
  Vec v;
  __builtin_memcpy(&v, at, sizeof v);
  return v;
}

std::uint64_t folded(Vec v) {
  std::uint64_t all = 0;
  for (int i = 0; i < 8; ++i) all |= v[i];
  return all;
}

}  // namespace

std::uint64_t plain_read(const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  Vec a = {}, b = {}, c = {}, d = {};
  for (std::size_t i = 0; i < bytes; i += 4 * kLine) {
    a |= load(at + i);
    b |= load(at + i + kLine);
    c |= load(at + i + 2 * kLine);
    d |= load(at + i + 3 * kLine);
  }
  return folded((a | b) | (c | d));
}

std::uint64_t prefetched_read(const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  Vec all = {};
  for (std::size_t block = 0; block < bytes; block += kPages * kPage) {
    const char* next = at + (block + kPages * kPage < bytes ? block + kPages * kPage : block);
    for (std::size_t line = 0; line < kPage; line += kLine) {
      for (std::size_t page = 0; page < kPages; ++page) {
        __builtin_prefetch(next + page * kPage + line, 0, 3);
        all |= load(at + block + (line * kPages) + page * kLine);
      }
    }
  }
  return folded(all);
}

}  // namespace nanhunt::bench
