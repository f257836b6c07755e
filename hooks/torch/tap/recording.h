// SPDX-License-Identifier: Apache-2.0
// The recorder as the tap sees it: the functions of nanhunt/c_adapter.h behind pointers, so that one tap library serves
// every copy of libnanhunt, and tests can listen themselves. And where the run is now, which Python writes.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "nanhunt/c_adapter.h"

namespace nanhunt::tap {

// Filled in by Python; the layout is that of `_tap.Recording`. `self` is given to each function.
struct Recording {
  void* self;
  nanhunt_status (*rows)(void* self, const std::int64_t* words, std::size_t count);
  std::int64_t (*text)(void* self, const char* text);
  std::int64_t (*layout)(void* self, std::int32_t dtype, std::int32_t ndim, const std::int64_t* sizes,
                         const std::int64_t* strides);
  std::int64_t (*call)(void* self, const nanhunt_call* call);
  nanhunt_status (*collective)(void* self, const nanhunt_collective* collective);
  std::uint64_t (*next_seq)(const void* self);
  std::uint64_t (*origins)(const void* self);
  nanhunt_status (*read)(void* self, const std::int64_t* values, std::size_t count, std::int32_t what,
                         nanhunt_reading* readings, std::size_t* bad);
  nanhunt_status (*changed)(void* self, std::uint32_t step, const std::int64_t* value, std::uint64_t since_seq,
                            std::uint32_t since_step, std::int32_t opaque);
  // Kernels of a GPU; null: not watched.
  std::uint64_t (*kernels_push)(void* self);
  void (*kernels_pop)(void* self, std::uint64_t ticket, std::uint64_t seq, std::uint32_t step);
  void (*kernels_push_own)(void* self);
  void (*kernels_pop_own)(void* self);
  // Of Python. What the layout word of a tensor on this device gets, so that it is read there (NANHUNT_ON_STREAM);
  // 0: it must be copied to the host; -1: not now.
  std::int64_t (*stream)(const char* device_type, std::int32_t index);
  // Global ranks of a process group into `ranks`, at most `room`: how many there are.
  std::int64_t (*group)(const char* name, std::uint32_t* ranks, std::int64_t room);
  // What a file of the user's code is called, into `shown`, at most `room` bytes: how many there are. Python's lock is held.
  std::int64_t (*file)(const char* name, char* shown, std::int64_t room);
  // Lines of a file around one of them, as a text of at most `room` bytes with its end: the number of the first.
  std::uint32_t (*source)(const char* file, std::uint32_t line, char* text, std::uint32_t room);
  // Of the recorder; null: nobody asks.
  nanhunt_status (*frame)(void* self, const nanhunt_frame* frame);
  nanhunt_status (*setup)(void* self, const nanhunt_setup* setup);
  nanhunt_status (*hold)(void* self, std::int32_t action);
  // What lies on a device, looked at in a step of which nobody may ask.
  std::uint64_t (*look)(void* self, const std::int64_t* values, std::size_t made, std::size_t count);
  nanhunt_status (*end_looks)(void* self);
  std::int32_t (*looked)(void* self, std::uint64_t look, std::uint8_t* bits, std::size_t count);
  nanhunt_status (*forget_look)(void* self, std::uint64_t look);
};

enum Course : std::int64_t {
  kUnknown = 0,
  kForwards = 1,               // it calls models with gradients off: each call is a step
  kForwardsWithGradients = 2,  // the same with gradients on, and without a backward
  kTrains = 3
};

// Where the run is: written by Python, read at each op. The layout is that of `_library.State`.
struct State {
  std::int64_t step = 0, micro_batch = 0, phase = 0;
  std::int64_t kernels = 0;  // 1: those of a GPU are watched
  std::int64_t bad_number = 0;  // set by the tap: forward or loss made a single number that is not finite
  // Set by the tap: badness began in what the step leaves behind: what its optimizer wrote, or the program between steps,
  // or contents that changed past PyTorch.
  std::int64_t left_bad = 0;
  // Set by the tap: the program has read a number that it made of gradients; 2: one was not finite.
  std::int64_t looked = 0;
  std::int64_t wrote = 0;       // set by the tap: an op of the program's own wrote between backward and the optimizer
  // Set by the tap: one wrote weights, or copies of them that last, between two steps; and copies of 16 bits.
  std::int64_t wrote_weights = 0;
  std::int64_t held = 0;    // set by the tap: rows of the step stay in memory, unread
  std::int64_t stepped = 0;  // set by the tap: the program itself wrote parameters after backward; 2: of gradients
  std::int64_t wanted = 0;  // set by the tap: one of them is no mask, and its rows went to the recorder
  std::int64_t compiling = 0;  // ops that run are a compiler's
  std::int64_t reads = 0;  // when what ops show on a device is read: Reads
  std::int64_t course = 0;  // what the program does, as far as is known: Course
  std::int64_t spent_ns = 0;  // added to by the tap: what hearing ops took of the program's time, as own_time.h knows it

  bool infers() const { return course == kForwards || course == kForwardsWithGradients; }
};

enum Reads : std::int64_t {
  kEachOp = 0,  // right after it, by the recorder
  kLate = 1     // with that of others, while rows stay here: held/late_step.h
};

inline constexpr std::int64_t kWrote = 1, kWroteNarrow = 2;
inline constexpr std::int64_t kStepped = 1, kUsedGradients = 2;

// What is not watched, and how often since Python asked.
using Notes = std::map<std::string, std::int64_t>;

inline constexpr std::size_t kValueWords = 4;
inline constexpr std::size_t kOpHeader = 7;

}  // namespace nanhunt::tap
