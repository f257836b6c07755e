// SPDX-License-Identifier: Apache-2.0
// What only a GPU shows of hooks/cupti, and how often the host waits in a step.
#include <cstddef>
#include <cstdio>
#include <exception>
#include <functional>
#include <vector>

#include "tests/gpu/api_counts.h"
#include "tests/gpu/engine_checks.h"
#include "tests/gpu/watched_trainer.h"
#include "tests/support/silent_recorder.h"

namespace nanhunt::gpu {
namespace {

constexpr const char* kSmall = "gpt1m";

bool is_usable(const engine::Device& device) {
  const std::string why = engine::why_unusable(device);
  if (!why.empty())
    std::fprintf(stderr, "gpu_engine: %s cannot be used: %s\n", engine::describe(device).c_str(), why.c_str());
  return why.empty();
}

// Takes every event and keeps none.
class Nobody final : public testing_support::SilentRecorder {
 public:
  void on_kernel(const KernelEvent& event) noexcept override { kernels += event.count; }
  std::uint64_t kernels = 0;
};

// What a run of a few steps leaves in its parameters.
std::vector<std::byte> trained(const engine::Device& device, const std::function<void(engine::Trainer&)>& steps) {
  const auto trainer = make_gpt_trainer(*find_gpt_size(kSmall), device);
  steps(*trainer);
  engine::wait_for(device);
  std::vector<std::byte> bits;
  for (const engine::NamedTensor& parameter : trainer->model().named_parameters()) {
    const std::size_t at = bits.size();
    bits.resize(at + parameter.tensor.storage()->bytes());
    parameter.tensor.storage()->read(bits.data() + at);
  }
  return bits;
}

void take_steps(engine::Trainer& trainer) {
  for (int i = 0; i < 5; ++i) trainer.step();
}

// A few steps under one session of CUPTI: what it told, and what is left of it. Attaches before asking for the device,
// which makes the context. False: there is no device.
bool watch_session(Rows& rows, const engine::Device& device, bool second) {
  const std::string which = second ? "cupti: a second session" : "cupti: a session";
  auto attached = hooks::KernelWatch::attach();
  if (!is_usable(device)) return false;
  // Not asked before: a session that saw nothing can leave CUPTI mute for the process (reported of CUDA 13.0).
  if (!attached && hooks::probe_cupti().path.empty()) {
    rows.skip(which, "CUPTI is not there: " + attached.status().message());
    return true;
  }
  rows.check(which + " attaches", static_cast<bool>(attached), attached ? "" : attached.status().message());
  if (!attached) return true;
  Nobody recorder;
  const std::vector<std::byte> watched = trained(device, [&](engine::Trainer& trainer) {
    hooks::KernelTags tags(recorder, **attached);
    tags.observe_first();
    tags.observe_last();
    take_steps(trainer);
    engine::wait_for(device);
  });
  (*attached)->finish(recorder);
  (*attached)->detach();
  const hooks::KernelStats stats = (*attached)->stats();
  rows.check(which + " is told of kernels", recorder.kernels > 0,
             std::to_string(recorder.kernels) + " kernels in 5 steps, " + std::to_string(stats.join.without_op) +
                 " of no op, " + std::to_string(stats.join.untimed) + " without times, version " +
                 hooks::cupti_version_text(stats.version) + (stats.late ? ", attached after the context" : ""));
  const std::uint64_t lost = stats.dropped + stats.incomplete + stats.join.given_up +
                             stats.join.launches_without_kernel + stats.tags_failed;
  rows.check(which + " loses nothing", lost == 0,
             std::to_string(stats.dropped) + " records dropped, " + std::to_string(stats.incomplete) +
                 " buffers incomplete, " + std::to_string(stats.join.launches_without_kernel) +
                 " launches without a kernel, " + std::to_string(stats.tags_failed) + " tags refused, " +
                 std::to_string(stats.join.duplicates) + " told twice");
  rows.check(which + " detaches to the end", stats.finalized,
             stats.finalized ? "finalized" : "not finalized: it goes on costing time");
  const bool same = trained(device, take_steps) == watched;
  rows.check(which + " changes no bit", same,
             same ? std::to_string(watched.size()) + " bytes of parameters" : "parameters differ");
  return true;
}

std::uint64_t waits_of(const std::function<void()>& work, ApiCounts& counts, std::string& told) {
  counts.clear();
  work();
  const auto calls = counts.calls();
  told = described_waits(calls);
  return host_waits(calls);
}

}  // namespace

bool run_cupti_checks(Rows& rows, const engine::Device& device) {
  if (!watch_session(rows, device, false) || !watch_session(rows, device, true)) return false;
  if (hooks::probe_cupti().path.empty()) return true;  // as the sessions have said
  // Nobody is left: another client finds the place free.
  auto after = ApiCounts::subscribe();
  rows.check("cupti's one place is free after detaching", static_cast<bool>(after),
             after ? "another client got it" : after.status().message());
  return true;
}

bool run_competitor_checks(Rows& rows, const engine::Device& device) {
  auto incumbent = ApiCounts::subscribe();
  if (!is_usable(device)) return false;
  if (!incumbent) {
    rows.skip("cupti with a competitor", "there could be none: " + incumbent.status().message());
    return true;
  }
  auto attached = hooks::KernelWatch::attach();
  rows.check("cupti's place is taken: attaching says so", !attached,
             attached ? "it attached all the same" : attached.status().message());
  WatchedTrainer trainer(kSmall, "ops", device);
  double loss = 0;
  for (int i = 0; i < 3; ++i) loss = trainer.step().loss;
  rows.check("a run goes on without kernels", loss > 0, "loss " + std::to_string(loss) + " after 3 steps at level ops");
  const auto calls = (*incumbent)->calls();
  rows.check("the incumbent is left alone", !calls.empty(),
             std::to_string(calls.size()) + " functions were told to it");
  return true;
}

bool run_sync_checks(Rows& rows, const engine::Device& device) {
  auto counts = ApiCounts::subscribe();
  if (!is_usable(device)) return false;
  if (!counts) {
    rows.skip("host syncs", counts.status().message());
    return true;
  }
  constexpr int kSteps = 10;
  std::uint64_t unwatched = 0;
  for (const char* watch : {"off", "ops"}) {
    try {
      WatchedTrainer trainer(kSmall, watch, device);
      for (int i = 0; i < 11; ++i) trainer.step();
      std::string told;
      const std::uint64_t waits = waits_of(
          [&] {
            for (int i = 0; i + 1 < kSteps; ++i) trainer.step();
          },
          **counts, told);
      if (std::string(watch) == "off") {
        unwatched = waits;
        rows.check("host syncs of steps are counted", waits > 0, told + " in 9 unwatched steps");
        continue;
      }
      const double added = (static_cast<double>(waits) - static_cast<double>(unwatched)) / (kSteps - 1);
      rows.limit(std::string("host syncs added per step, ") + watch, added, 0, told + " in 9 steps");
    } catch (const std::exception& e) {
      rows.check(std::string("host syncs added per step, ") + watch, false, e.what());
    }
  }
  return true;
}

}  // namespace nanhunt::gpu
