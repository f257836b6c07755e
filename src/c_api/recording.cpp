// SPDX-License-Identifier: Apache-2.0
// Recording through the C interface.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

#include "nanhunt/recorder.h"
#include "src/c_api/ending_signals.h"
#include "src/c_api/handle.h"
#include "src/c_api/open_runs.h"
#include "src/c_api/options.h"

namespace nanhunt::c_api {
namespace {

nanhunt_status open(const nanhunt_recorder_options* given, nanhunt_recorder** out) {
  if (out == nullptr) return fail(NANHUNT_USAGE, "nanhunt_recorder_open: expected a place for the recorder, got NULL");
  *out = nullptr;
  OpenOptions options;
  const nanhunt_status right =
      checked([&] { options = open_options(sized_copy("nanhunt_recorder_open", given)); });
  if (right != NANHUNT_OK) return right;
  auto handle = std::make_unique<nanhunt_recorder>();
  if (!options.recorder.check_inputs) handle->devices.trust_inputs();
  auto recorder = record::open_numbering_recorder(options.recorder, std::move(options.info));
  if (!recorder) return result_of(recorder.status());
  handle->recorder = std::move(*recorder);
  add_open_run(handle->recorder->attempt_dir());
  *out = handle.release();
  return NANHUNT_OK;
}

}  // namespace
}  // namespace nanhunt::c_api

using nanhunt::c_api::fail;
using nanhunt::c_api::guarded;
using nanhunt::c_api::recording;
using nanhunt::c_api::sized_copy;

extern "C" {

nanhunt_status nanhunt_recorder_open(const nanhunt_recorder_options* options, nanhunt_recorder** recorder) {
  return guarded([&] { return nanhunt::c_api::open(options, recorder); });
}

nanhunt_status nanhunt_record_op(nanhunt_recorder* recorder, const nanhunt_op* op) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    to.recorder->on_op(to.converter.op(sized_copy("nanhunt_record_op", op)));
  });
}

nanhunt_status nanhunt_record_mark(nanhunt_recorder* recorder, const nanhunt_mark* mark) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    to.recorder->on_mark(to.converter.mark(sized_copy("nanhunt_record_mark", mark)));
  });
}

nanhunt_status nanhunt_record_batch(nanhunt_recorder* recorder, uint32_t step, uint32_t micro_batch,
                                    const int64_t* sample_ids, size_t count) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    if (sample_ids == nullptr && count != 0) {
      throw nanhunt::c_api::Misuse("nanhunt_record_batch: expected sample ids, got NULL");
    }
    to.recorder->on_batch({step, micro_batch, {sample_ids, count}});
  });
}

nanhunt_status nanhunt_record_scaler(nanhunt_recorder* recorder, const nanhunt_scaler_event* event) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    to.recorder->on_scaler(to.converter.scaler(sized_copy("nanhunt_record_scaler", event)));
  });
}

nanhunt_status nanhunt_record_step(nanhunt_recorder* recorder, const nanhunt_step* step) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    nanhunt_step defaults{};
    defaults.loss = defaults.lr = std::numeric_limits<double>::quiet_NaN();
    defaults.scale = 1;
    const nanhunt_step given = sized_copy("nanhunt_record_step", step, defaults);
    const nanhunt::c_api::DeviceTurn turn(to);
    if (turn) to.devices.end_step(*to.recorder);
    nanhunt::StepEvent event{given.step, given.skipped != 0, given.loss, given.lr, given.scale};
    event.ending = nanhunt::c_api::enum_of("ending", given.ending, nanhunt::StepEnding::kForward);
    event.message = nanhunt::c_api::text_of(given.message);
    event.watch_ns = std::max<int64_t>(given.watch_ns, 0);
    to.recorder->on_step_end(event);
  });
}

nanhunt_status nanhunt_record_release(nanhunt_recorder* recorder, uint64_t storage) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    const nanhunt::c_api::DeviceTurn turn(to);
    to.recorder->on_storage_released(storage);
    if (turn) to.devices.release(storage);
  });
}

uint64_t nanhunt_new_storage(void) {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

nanhunt_status nanhunt_recorder_counters(const nanhunt_recorder* recorder, nanhunt_counters* counters) {
  return guarded([&]() -> nanhunt_status {
    if (recorder == nullptr || counters == nullptr || counters->struct_size < sizeof(counters->struct_size)) {
      return fail(NANHUNT_USAGE, "nanhunt_recorder_counters: expected a recorder and counters with struct_size set");
    }
    const nanhunt::RecorderCounters from = recorder->recorder->counters();
    const nanhunt_counters all = {counters->struct_size, from.ops,           from.values,       from.marks,
                                  from.dropped_ops,      from.dropped_values, from.dropped_other, from.write_errors};
    std::memcpy(counters, &all, counters->struct_size < sizeof all ? counters->struct_size : sizeof all);
    return NANHUNT_OK;
  });
}

nanhunt_status nanhunt_recorder_flush(nanhunt_recorder* recorder) {
  return guarded([&] {
    if (recorder == nullptr) return fail(NANHUNT_USAGE, "nanhunt_recorder_flush: expected a recorder, got NULL");
    {
      const nanhunt::c_api::DeviceTurn turn(*recorder);
      if (turn) recorder->devices.settle(*recorder->recorder);
    }
    return nanhunt::c_api::result_of(recorder->recorder->flush());
  });
}

nanhunt_status nanhunt_recorder_write_digest(nanhunt_recorder* recorder) {
  return recording(recorder, [](nanhunt_recorder& to) { to.digests.write_soon(*to.recorder); });
}

nanhunt_status nanhunt_recorder_flush_at_signals(nanhunt_recorder* recorder) {
  return guarded([&]() -> nanhunt_status {
    if (recorder == nullptr) return fail(NANHUNT_USAGE, "nanhunt_recorder_flush_at_signals: expected a recorder, got NULL");
    if (nanhunt::c_api::flush_at_ending_signals(recorder->recorder.get())) return NANHUNT_OK;
    return fail(NANHUNT_INTERNAL, "nanhunt_recorder_flush_at_signals: there is no timer, file or thread left for it");
  });
}

nanhunt_status nanhunt_recorder_close(nanhunt_recorder* recorder) {
  return guarded([&]() -> nanhunt_status {
    if (recorder == nullptr) return NANHUNT_OK;
    const std::unique_ptr<nanhunt_recorder> owned(recorder);
    owned->digests.stop(*owned->recorder);
    nanhunt::c_api::remove_open_run(owned->recorder->attempt_dir());
    {
      const nanhunt::c_api::DeviceTurn turn(*owned);
      turn ? owned->devices.close(*owned->recorder) : owned->devices.abandon();
    }
    nanhunt::c_api::end_kernels(*owned);
    const nanhunt::Status closed = owned->recorder->close();
    nanhunt::c_api::forget_ending_signals(owned->recorder.get());  // one that came meanwhile waits for that
    owned->digests.write_last(*owned->recorder);
    return nanhunt::c_api::result_of(closed);
  });
}

}  // extern "C"
