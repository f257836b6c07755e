// SPDX-License-Identifier: Apache-2.0
// A step of which it is not known yet whether its ops are wanted, for Python: from when on rows stay here (ring.h), and
// what becomes of them. And calls at which badness began.
#pragma once

#include <cstdint>

#include "hooks/torch/tap/export.h"
#include "hooks/torch/tap/one_tap.h"

// NANHUNT_HOLD: rows stay here, and calls at which badness begins are kept (nanhunt_tap_keep). NANHUNT_KEEP and
// NANHUNT_LATER: the recorder gets the rows that it has not got; NANHUNT_DROP: nobody wants them, and kept calls go.
// 1: the recorder has been told; 3: and a device tells of the step later (nanhunt_tap_deliver_late).
NANHUNT_TAP std::int32_t nanhunt_tap_hold(void* tap, std::int32_t action, std::int64_t max_bytes,
                                          std::int64_t max_written) noexcept {
  using namespace nanhunt::tap;
  std::vector<c10::Storage> gone;
  return guarded(static_cast<Tap*>(tap), std::int32_t{0}, "a step that is held", [&]() -> std::int32_t {
    Tap& t = *static_cast<Tap*>(tap);
    Rows& rows = t.rows;
    gone = rows.held.ring.take_alive();
    const auto report = [&] {
      const bool told = t.to.hold == nullptr || t.to.hold(t.to.self, action) == NANHUNT_OK;
      if (!told) ++rows.refused;
      return std::int32_t{told};
    };
    if (action == NANHUNT_HOLD) {
      t.kept.begin(max_bytes, max_written);
      t.state->wanted = 0;
      rows.held.births.begin_step();
      if (rows.held.ring.is_handed_over()) return 0;  // held by the recorder already
      if (rows.held.ring.keeps() && !rows.held.ring.forget(t.to)) ++rows.refused;
      rows.held.ring.begin();
      t.state->held = t.state->reads == kLate ? 0 : 1;  // marks come as they would to the recorder
      if (t.state->reads == kLate) rows.held.begin_late();
    } else if (action == NANHUNT_LATER && rows.held.is_late()) {
      rows.held.end_late();
      t.state->held = 0;
      return report() != 0 ? 3 : 2;
    } else if (action != NANHUNT_DROP) {
      if (!rows.held.ring.is_held()) return 0;
      rows.held.hand_over();
      rows.held.ring.end();
      return report();
    } else {
      t.state->held = 0;
      t.kept.begin(0, 0);
      if (rows.held.ring.keeps()) {
        if (!rows.held.ring.forget(t.to)) ++rows.refused;
      } else if (rows.held.ring.is_handed_over()) {
        report();
        if (t.state->left_bad == 0) rows.held.births.end_healthy_step();
        rows.held.ring.end();
      }
    }
    return 0;
  });
}
// Of the oldest step that a device tells of later: whether all has come. Never waits.
NANHUNT_TAP std::int32_t nanhunt_tap_is_late_here(void* tap) noexcept {
  using namespace nanhunt::tap;
  return guarded(static_cast<Tap*>(tap), std::int32_t{1}, "a step on a device",
                 [&] { return std::int32_t{static_cast<Tap*>(tap)->rows.held.is_late_here()}; });
}
// Its rows go to the recorder, where what has come says that they are wanted; `all`: in any case. 1: they did; 2 more:
// badness began in what it leaves behind.
NANHUNT_TAP std::int32_t nanhunt_tap_deliver_late(void* tap, std::int32_t all) noexcept {
  using namespace nanhunt::tap;
  return guarded(static_cast<Tap*>(tap), std::int32_t{0}, "a step on a device",
                 [&] { return static_cast<Tap*>(tap)->rows.held.deliver_late(all != 0); });
}
// What its ops have made so far is looked at now: who writes next is not heard.
NANHUNT_TAP void nanhunt_tap_launch_looks(void* tap) noexcept {
  using namespace nanhunt::tap;
  guarded(static_cast<Tap*>(tap), 0, "a step on a device", [&] {
    static_cast<Tap*>(tap)->rows.held.launch_looks();
    return 0;
  });
}
// It is forgotten. `healthy`: its infinities did no harm.
NANHUNT_TAP void nanhunt_tap_drop_late(void* tap, std::int32_t healthy) noexcept {
  using namespace nanhunt::tap;
  guarded(static_cast<Tap*>(tap), 0, "a step on a device", [&] {
    static_cast<Tap*>(tap)->rows.held.drop_late(healthy != 0);
    return 0;
  });
}
// Rows that stay here go to the recorder now, and those that follow at once.
NANHUNT_TAP void nanhunt_tap_hand_over(void* tap) noexcept {
  using namespace nanhunt::tap;
  guarded(static_cast<Tap*>(tap), 0, "rows that are handed over", [&] {
    static_cast<Tap*>(tap)->rows.held.hand_over();
    return 0;
  });
}
// From here on calls at which badness begins are kept, up to so many bytes; what was kept is forgotten. 0: none are.
// What an op of more than `max_written` bytes writes over is gone.
NANHUNT_TAP void nanhunt_tap_keep(void* tap, std::int64_t max_bytes, std::int64_t max_written) noexcept {
  using namespace nanhunt::tap;
  guarded(static_cast<Tap*>(tap), 0, "kept calls", [&] {
    static_cast<Tap*>(tap)->kept.begin(max_bytes, max_written);
    return 0;
  });
}
NANHUNT_TAP std::int64_t nanhunt_tap_kept(const void* tap) noexcept {
  return tap == nullptr ? 0 : static_cast<std::int64_t>(static_cast<const nanhunt::tap::Tap*>(tap)->kept.calls().size());
}
// Whether something that an op made of finite numbers before training began is not finite, and still there.
NANHUNT_TAP std::int32_t nanhunt_tap_left_bad(void* tap) noexcept {
  using namespace nanhunt::tap;
  return guarded(static_cast<Tap*>(tap), std::int32_t{0}, "what was made before training",
                 [&] { return std::int32_t{static_cast<Tap*>(tap)->rows.held.left_bad.any()}; });
}
