// SPDX-License-Identifier: Apache-2.0
// Kernels of ops, lent out from hooks/cupti. Nothing of CUPTI is loaded before somebody attaches.
#include <cstdint>
#include <string>
#include <utility>

#include "nanhunt/c_adapter.h"
#include "src/c_api/handle.h"

namespace nanhunt::c_api {
namespace {

void add_note(nanhunt_recorder& to, const std::string& text, std::uint64_t count) {
  to.recorder->on_note({0, text, to.kernel_notes[text] += count});
}

hooks::KernelOptions kernel_options(const nanhunt_recorder& of, const nanhunt_kernel_options* given) {
  hooks::KernelOptions options;
  if (given != nullptr) {
    const nanhunt_kernel_options all = sized_copy("nanhunt_kernels_attach", given);
    if (all.flush_ms < 0) {
      throw Misuse("nanhunt_kernels_attach: flush_ms: expected 0 or more, got " + std::to_string(all.flush_ms));
    }
    if (all.flush_ms > 0) options.flush_ms = all.flush_ms;
    options.library = text_of(all.library);
    if (!text_of(all.driver).empty()) options.driver = all.driver;
  }
  options.earlier.assign(of.kernel_notes.size(), {});
  std::size_t i = 0;
  for (const auto& [text, count] : of.kernel_notes) options.earlier[i++] = {text, count};
  return options;
}

bool is_attached(const nanhunt_recorder& to) {
  return to.kernels.last() != nullptr && to.kernels.last()->is_attached();
}

nanhunt_status attach(nanhunt_recorder* handle, const nanhunt_kernel_options* given) {
  hooks::KernelOptions options;
  const nanhunt_status right = recording(handle, [&](nanhunt_recorder& to) {
    if (is_attached(to)) {
      throw Misuse("nanhunt_kernels_attach: this recorder watches kernels already");
    }
    options = kernel_options(to, given);
  });
  if (right != NANHUNT_OK) return right;
  auto watch = hooks::KernelWatch::attach(options);
  if (!watch) {
    add_note(*handle, hooks::not_watched_note(watch.status().message()), 1);
    return result_of(watch.status());
  }
  handle->kernels.put(std::move(*watch));
  return NANHUNT_OK;
}

// Calls that give nothing back.
template <typename F>
void watching(nanhunt_recorder* handle, F&& body) noexcept {
  if (handle == nullptr) return;
  handle->kernels.call(
      [&](hooks::KernelWatch& watch) {
        body(watch);
        return true;
      },
      false);
}

}  // namespace

void end_kernels(nanhunt_recorder& of) {
  if (!is_attached(of)) return;
  hooks::KernelWatch& watch = *of.kernels.last();
  watch.finish(*of.recorder);
  watch.detach();
  of.kernels.take_away();
  for (const hooks::KernelNote& note : hooks::kernel_notes(watch.stats())) of.kernel_notes[note.text] += note.count;
}

}  // namespace nanhunt::c_api

using namespace nanhunt;
using namespace nanhunt::c_api;

extern "C" {

nanhunt_status nanhunt_kernels_attach(nanhunt_recorder* recorder, const nanhunt_kernel_options* options) {
  return guarded([&] { return attach(recorder, options); });
}

uint64_t nanhunt_kernels_push(nanhunt_recorder* recorder) {
  if (recorder == nullptr) return 0;
  return recorder->kernels.call([](hooks::KernelWatch& watch) { return watch.push_op(); }, std::uint64_t{0});
}

void nanhunt_kernels_pop(nanhunt_recorder* recorder, uint64_t ticket, uint64_t seq, uint32_t step) {
  watching(recorder, [&](hooks::KernelWatch& watch) {
    // One launch may be for many rows: the kernel of the bad one is what a report has to name. Which one that is the
    // recorder may not know yet.
    const std::uint64_t next = seq == kNoSeq ? 0 : recorder->recorder->next_seq();
    if (next > seq && next - seq > 1) recorder->recorder->on_launch(seq, next - seq);
    watch.pop_op(ticket, seq, step);
  });
}

void nanhunt_kernels_push_own(nanhunt_recorder* recorder) {
  watching(recorder, [](hooks::KernelWatch& watch) { watch.push_own(); });
}

void nanhunt_kernels_pop_own(nanhunt_recorder* recorder) {
  watching(recorder, [](hooks::KernelWatch& watch) { watch.pop_own(); });
}

void nanhunt_kernels_place(nanhunt_recorder* recorder, uint32_t step, int32_t phase) {
  if (phase < 0 || phase > static_cast<int32_t>(Phase::kValidation)) return;
  watching(recorder, [&](hooks::KernelWatch& watch) { watch.set_place(step, static_cast<Phase>(phase)); });
}

nanhunt_status nanhunt_kernels_drain(nanhunt_recorder* recorder) {
  return recording(recorder, [](nanhunt_recorder& to) {
    if (is_attached(to)) to.kernels.last()->drain(*to.recorder);
  });
}

nanhunt_status nanhunt_kernels_detach(nanhunt_recorder* recorder) {
  return recording(recorder, [](nanhunt_recorder& to) { end_kernels(to); });
}

nanhunt_status nanhunt_kernel_counters(const nanhunt_recorder* recorder, nanhunt_kernel_counts* counts) {
  return guarded([&]() -> nanhunt_status {
    if (recorder == nullptr || counts == nullptr || counts->struct_size < sizeof(counts->struct_size)) {
      return fail(NANHUNT_USAGE, "nanhunt_kernel_counters: expected a recorder and counts with struct_size set");
    }
    nanhunt_kernel_counts all{};
    all.struct_size = counts->struct_size;
    if (recorder->kernels.last() != nullptr) {
      const hooks::KernelStats stats = recorder->kernels.last()->stats();
      all.version = stats.version;
      all.kernels = stats.join.kernels;
      all.own = stats.join.own;
      all.without_op = stats.join.without_op;
      all.lost =
          stats.dropped + stats.buffers_refused + stats.buffers_given_up + stats.incomplete + stats.join.given_up;
      all.tags_failed = stats.tags_failed;
      all.late = stats.late ? 1 : 0;
      all.finalized = stats.finalized ? 1 : 0;
    }
    give_back(all, counts);
    return NANHUNT_OK;
  });
}

}  // extern "C"
