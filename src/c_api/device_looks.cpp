// SPDX-License-Identifier: Apache-2.0
// What is looked at on a device, and may never be asked after.
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "nanhunt/c_adapter.h"
#include "src/c_api/handle.h"
#include "src/record/rows/interner.h"

using namespace nanhunt;
using namespace nanhunt::c_api;

extern "C" {

uint64_t nanhunt_device_look(nanhunt_recorder* recorder, const int64_t* values, size_t made, size_t count) {
  std::uint64_t look = 0;
  static_cast<void>(recording(recorder, [&](nanhunt_recorder& to) {
    if (values == nullptr && count != 0) throw Misuse("nanhunt_device_look: expected values, got NULL");
    if (count > 1u << 16) throw Misuse("nanhunt_device_look: expected at most 65536 values, got " + std::to_string(count));
    if (made > count)
      throw Misuse("nanhunt_device_look: made: expected at most " + std::to_string(count) + ", got " + std::to_string(made));
    const DeviceTurn turn(to);
    if (!turn || count == 0) return;
    std::vector<TensorView> views;
    std::vector<std::int64_t> sizes(count);
    constexpr static std::int64_t kNext = 1;
    views.reserve(count);
    const std::int64_t stream = LayoutTable::stream_in(values[3]);
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t* const words = values + i * kValueWords;
      if (LayoutTable::stream_in(words[3]) != stream || stream < 1 || static_cast<std::uint64_t>(stream) > to.devices.streams())
        throw Misuse("nanhunt_device_look: value " + std::to_string(i) + ": expected the stream of the first, got " +
                     std::to_string(LayoutTable::stream_in(words[3])));
      TensorView view = to.layouts.tensor("nanhunt_device_look", words[0], LayoutTable::number_in(words[3]));
      if (record::shows_one_block(view) && !view.is_contiguous()) {
        sizes[i] = view.numel();
        view.sizes = std::span(&sizes[i], 1);
        view.strides = std::span(&kNext, 1);
      }
      views.push_back(view);
    }
    look = to.devices.look(static_cast<std::size_t>(stream - 1), views, made);
  }));
  return look;
}

nanhunt_status nanhunt_device_end_looks(nanhunt_recorder* recorder) {
  return recording(recorder, [](nanhunt_recorder& to) {
    const DeviceTurn turn(to);
    if (turn) to.devices.end_looks();
  });
}

int32_t nanhunt_device_looked(nanhunt_recorder* recorder, uint64_t look, uint8_t* bits, size_t count) {
  std::int32_t state = -1;
  static_cast<void>(recording(recorder, [&](nanhunt_recorder& to) {
    if (bits == nullptr && count != 0) throw Misuse("nanhunt_device_looked: expected room for bits, got NULL");
    const DeviceTurn turn(to);
    if (!turn) return;
    const kernels::ReadingsState its = to.devices.look_state(look);
    if (its == kernels::ReadingsState::kPending) state = 0;
    if (its != kernels::ReadingsState::kReady) return;
    state = 1;
    for (std::size_t i = 0; i < count; ++i) {
      const std::optional<TensorStats>* const found = to.devices.looked_at(look, i);
      bits[i] = NANHUNT_HAS_NOT_SAID;
      if (found == nullptr || !*found) continue;
      bits[i] = static_cast<std::uint8_t>(((*found)->nan > 0 ? NANHUNT_HAS_NAN : 0) |
                                          ((*found)->pos_inf > 0 ? NANHUNT_HAS_POS_INF : 0) |
                                          ((*found)->neg_inf > 0 ? NANHUNT_HAS_NEG_INF : 0));
    }
  }));
  return state;
}

nanhunt_status nanhunt_device_forget_look(nanhunt_recorder* recorder, uint64_t look) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    const DeviceTurn turn(to);
    if (turn) to.devices.forget_look(look);
  });
}

nanhunt_status nanhunt_device_look_stats(nanhunt_recorder* recorder, uint64_t look, nanhunt_stats* stats, size_t count) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    if (stats == nullptr && count != 0) throw Misuse("nanhunt_device_look_stats: expected room for statistics, got NULL");
    const DeviceTurn turn(to);
    for (std::size_t i = 0; i < count; ++i) {
      const std::optional<TensorStats>* const found = turn ? to.devices.looked_at(look, i) : nullptr;
      const std::uint32_t size = stats[i].struct_size;
      if (size < sizeof size) throw Misuse("nanhunt_device_look_stats: expected struct_size to be set");
      const bool counted = found != nullptr && *found && (*found)->level >= StatsLevel::kCounts;
      nanhunt_stats one = stats_of(counted ? **found : TensorStats{}, size);
      if (!counted) one.numel = -1;
      give_back(one, stats + i);
    }
  });
}

}  // extern "C"
