// SPDX-License-Identifier: Apache-2.0
// What is recorded of steps, beside ops.
#include <cstdint>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/c_adapter.h"
#include "src/c_api/handle.h"

namespace nanhunt::c_api {
namespace {

static_assert(NANHUNT_BARRIER == static_cast<int>(CollectiveKind::kBarrier));
static_assert(NANHUNT_PRODUCT == static_cast<int>(Reduction::kProduct));

constexpr std::uint32_t kHealthBits = (1u << (NANHUNT_OUTPUT + 1)) - 1;

// It becomes a path below the attempt's folder when the run is looked at.
void check_file_name(std::string_view name) {
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string_view::npos) {
    throw Misuse("nanhunt_record_capture: expected the name of a file in the captures folder, got '" +
                 std::string(name.substr(0, 200)) + "'");
  }
}

// A record with values of a device: `collect` names them, and `record` writes it once they are to be read.
template <typename Collect, typename Record>
void record_values(nanhunt_recorder& to, Collect&& collect, Record&& record) {
  const DeviceTurn turn(to);
  if (!turn) return;
  to.devices.begin_call(*to.recorder);
  collect();
  to.devices.take(*to.recorder);
  record();
  to.devices.launch(*to.recorder);
}

// A value in its four words. `into` stays where it is: what a device is to read is filled in there.
void collect_value(const char* call, nanhunt_recorder& to, const std::int64_t* words, DeviceStreams::Use use,
                   ValueView& into) {
  into = to.layouts.value(call, words);
  to.devices.value(call, words, into, use);
}

}  // namespace
}  // namespace nanhunt::c_api

using namespace nanhunt;
using namespace nanhunt::c_api;

extern "C" {

nanhunt_status nanhunt_record_health(nanhunt_recorder* recorder, const nanhunt_health* health) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    nanhunt_health defaults{};
    defaults.gradient_norm = defaults.weight_norm = std::numeric_limits<double>::quiet_NaN();
    const nanhunt_health given = sized_copy("nanhunt_record_health", health, defaults);
    if ((given.bad & ~kHealthBits) != 0) {
      throw Misuse("nanhunt_record_health: bad has bits that mean nothing: " +
                   std::to_string(given.bad & ~kHealthBits));
    }
    to.recorder->on_health({given.step, given.bad, given.bad_tensors, text_of(given.first_bad), given.gradient_norm,
                            given.weight_norm, given.weight_checksum});
  });
}

nanhunt_status nanhunt_recorder_hold(nanhunt_recorder* recorder, int32_t action) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    const auto what = enum_of("action", action, record::HoldAction::kLater);
    if (what == record::HoldAction::kLater) {
      const DeviceTurn turn(to);
      if (turn) to.devices.end_step(*to.recorder);
    }
    to.recorder->on_hold(what);
  });
}

int32_t nanhunt_recorder_hold_is_due(nanhunt_recorder* recorder) {
  int32_t due = 0;
  const nanhunt_status right = recording(recorder, [&](nanhunt_recorder& to) {
    const DeviceTurn turn(to);
    if (turn) to.devices.poll(*to.recorder);
    due = to.recorder->is_hold_due() ? 1 : 0;
  });
  return right == NANHUNT_OK ? due : 0;
}

nanhunt_status nanhunt_recorder_decide_hold(nanhunt_recorder* recorder, int32_t action) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    const auto what = enum_of("action", action, record::HoldAction::kDrop);
    if (what == record::HoldAction::kHold) throw Misuse("expected NANHUNT_KEEP or NANHUNT_DROP, got NANHUNT_HOLD");
    to.recorder->decide_hold(what);
  });
}

nanhunt_status nanhunt_recorder_add_to_hold(nanhunt_recorder* recorder, int32_t on) {
  return recording(recorder, [&](nanhunt_recorder& to) { to.recorder->add_to_due_hold(on != 0); });
}

nanhunt_status nanhunt_record_norm(nanhunt_recorder* recorder, uint32_t step, int32_t kind, const char* path,
                                   double norm, double amax) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    if (kind != NANHUNT_BOUNDARY_GRADIENT && kind != NANHUNT_PARAMETER) {
      throw Misuse("nanhunt_record_norm: expected NANHUNT_BOUNDARY_GRADIENT or NANHUNT_PARAMETER, got " +
                   std::to_string(kind));
    }
    to.recorder->on_norm({step, static_cast<TensorRole>(kind), text_of(path), norm, amax});
  });
}

nanhunt_status nanhunt_record_not_heard(nanhunt_recorder* recorder, uint32_t step, const char* why) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    to.recorder->on_unheard({step, text_of(why)});
  });
}

nanhunt_status nanhunt_record_changed(nanhunt_recorder* recorder, uint32_t step, const int64_t* value,
                                      uint64_t since_seq, uint32_t since_step, int32_t opaque) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    if (value == nullptr) throw Misuse("nanhunt_record_changed: expected the four words of a value, got NULL");
    ChangedEvent event{step, {}, since_seq, since_step, opaque != 0};
    record_values(
        to,
        [&] { collect_value("nanhunt_record_changed", to, value, DeviceStreams::Use::kChanged, event.value); },
        [&] { to.recorder->on_changed(event); });
  });
}

nanhunt_status nanhunt_record_probe(nanhunt_recorder* recorder, const nanhunt_probe* probe) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    nanhunt_probe defaults{};
    defaults.ops = 1;
    defaults.flat_index = -1;
    const nanhunt_probe given = sized_copy("nanhunt_record_probe", probe, defaults);
    ProbeEvent event;
    event.seq = given.seq;
    event.step = given.step;
    event.mode = enum_of("mode", given.mode, ProbeMode::kRemedy);
    event.dtype = enum_of("dtype", given.dtype, DType::kBool);
    event.ops = given.ops;
    event.ran = given.ran != 0;
    event.nan = given.nan;
    event.pos_inf = given.pos_inf;
    event.neg_inf = given.neg_inf;
    event.flat_index = given.flat_index;
    event.number = given.number;
    event.text = text_of(given.text);
    if (event.ops == 0) throw Misuse("nanhunt_record_probe: ops: expected 1 or more, got 0");
    if (event.nan < 0 || event.pos_inf < 0 || event.neg_inf < 0) {
      throw Misuse("nanhunt_record_probe: expected counts of 0 and more");
    }
    to.recorder->on_probe(event);
  });
}

nanhunt_status nanhunt_record_capture(nanhunt_recorder* recorder, uint64_t seq, uint32_t step, const char* file,
                                      uint64_t bytes) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    check_file_name(text_of(file));
    to.recorder->on_capture({seq, step, text_of(file), bytes});
  });
}

nanhunt_status nanhunt_record_note(nanhunt_recorder* recorder, uint32_t step, const char* text, uint64_t count) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    if (text_of(text).empty()) throw Misuse("nanhunt_record_note: expected what was not watched, got no text");
    to.recorder->on_note({step, text_of(text), count});
  });
}

nanhunt_status nanhunt_record_frame(nanhunt_recorder* recorder, const nanhunt_frame* frame) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    const nanhunt_frame given = sized_copy("nanhunt_record_frame", frame, nanhunt_frame{});
    if (text_of(given.site).empty()) throw Misuse("nanhunt_record_frame: site: expected a call site, got no text");
    FrameEvent event;
    event.site = text_of(given.site);
    event.depth = given.depth;
    event.file = text_of(given.file);
    event.line = given.line;
    event.function = text_of(given.function);
    event.first_line = given.first_line;
    event.code = text_of(given.code);
    to.recorder->on_frame(event);
  });
}

nanhunt_status nanhunt_record_setup(nanhunt_recorder* recorder, const nanhunt_setup* setup) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    nanhunt_setup defaults{};
    defaults.dtype = NANHUNT_F32;
    const nanhunt_setup given = sized_copy("nanhunt_record_setup", setup, defaults);
    SetupEvent event;
    event.step = given.step;
    event.fact = enum_of("fact", given.fact, SetupFact::kReplicas);
    event.path = text_of(given.path);
    event.site = text_of(given.site);
    event.dtype = enum_of("dtype", given.dtype, DType::kBool);
    event.number = given.number;
    event.text = text_of(given.text);
    to.recorder->on_setup(event);
  });
}

nanhunt_status nanhunt_record_collective(nanhunt_recorder* recorder, const nanhunt_collective* collective) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    nanhunt_collective defaults{};
    defaults.seq = kNoSeq;
    defaults.peer = -1;
    const nanhunt_collective given = sized_copy("nanhunt_record_collective", collective, defaults);
    if (given.ranks == nullptr && given.rank_count != 0)
      throw Misuse("nanhunt_record_collective: expected ranks, got NULL");
    if (given.shares == nullptr && given.share_count != 0)
      throw Misuse("nanhunt_record_collective: expected shares, got NULL");
    if (given.peer < -1)
      throw Misuse("nanhunt_record_collective: peer: expected -1 or a rank, got " + std::to_string(given.peer));
    std::vector<ValueView> shares(given.share_count);
    CollectiveEvent event;
    event.seq = given.seq;
    event.step = given.step;
    event.group = text_of(given.group);
    event.call = given.call;
    event.kind = enum_of("kind", given.kind, CollectiveKind::kBarrier);
    event.reduction = enum_of("reduction", given.reduction, Reduction::kProduct);
    event.peer = given.peer;
    event.ranks = {given.ranks, given.rank_count};
    record_values(
        to,
        [&] {
          for (std::size_t i = 0; i < shares.size(); ++i) {
            collect_value("nanhunt_record_collective", to, given.shares + i * kValueWords, DeviceStreams::Use::kRead,
                          shares[i]);
          }
          event.shares = shares;
        },
        [&] { to.recorder->on_collective(event); });
  });
}

}  // extern "C"
