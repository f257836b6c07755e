// SPDX-License-Identifier: Apache-2.0
// Looks at contents on a GPU: the CPU's checksums, and statistics that are those of a reading without a check in every
// bit; and what one pass takes against two.
#include <algorithm>
#include <array>

#include "kernels/cpu/checksum.h"
#include "kernels/device_readings.h"
#include "kernels/foreign_stream.h"
#include "tests/gpu/checks.h"
#include "tests/gpu/device_tensors.h"

namespace nanhunt::gpu {
namespace {

using kernels::DeviceReadings;
using kernels::kFirstCheck;

// Readings on the session's stream.
struct Looks {
  std::unique_ptr<DeviceSession> session;
  std::unique_ptr<kernels::ForeignStream> stream;
  std::unique_ptr<DeviceReadings> readings;
  std::string why;

  bool open() {
    Result<std::unique_ptr<DeviceSession>> opened = DeviceSession::open(0);
    if (!opened) {
      why = opened.status().message();
      return false;
    }
    session = std::move(*opened);
    stream = kernels::ForeignStream::open(0, session->stream(), why);
    if (stream == nullptr) return false;
    const kernels::ReadingsOptions options{.references = 16};
    std::unique_ptr<kernels::ReadingsPort> port = stream->open_readings(options, why);
    if (port == nullptr) return false;
    readings = std::make_unique<DeviceReadings>(std::move(port), options);
    return true;
  }
  struct Seen {
    std::optional<TensorStats> stats;
    std::optional<kernels::Checked> check;
  };
  Seen look(const TensorView& view, std::optional<std::uint32_t> reference) {
    Seen seen;
    kernels::ReadingExtras extras;
    const std::array<std::uint32_t, 1> references = {reference.value_or(0)};
    const auto ticket = readings->enqueue({&view, 1}, {}, nullptr,
                                          std::span(references).first(reference ? 1 : 0));
    if (readings->wait(ticket, {&seen.stats, 1}, &extras) != kernels::ReadingsState::kReady) return seen;
    if (!extras.checks.empty()) seen.check = extras.checks[0];
    return seen;
  }
};

}  // namespace

void run_checksum_stats_checks(Rows& rows, bool quick) {
  Looks looks;
  if (!looks.open()) return rows.check("looks", false, looks.why);
  for (const DType dtype : kAllTypes) {
    std::int64_t compared = 0, wrong = 0;
    std::string first;
    const auto expect = [&](bool right, const std::string& what) {
      ++compared;
      if (!right && wrong++ == 0) first = what;
    };
    std::uint64_t seed = 1;
    for (const Content content : {Content::kNormal, Content::kOdd, Content::kBits}) {
      for (const std::size_t count : {1u, 7u, 4097u, 16384u, 100003u, 3000001u}) {
        if (quick && count > 200000) continue;
        OwnedTensor tensor = make_tensor(dtype, count, content, ++seed);
        const std::size_t bytes = count * dtype_size(dtype);
        for (const std::size_t shift : {std::size_t{0}, std::size_t{1}, dtype_size(dtype)}) {
          const std::string what = std::to_string(count) + " at " + std::to_string(shift);
          auto* memory = static_cast<unsigned char*>(looks.session->allocate(bytes + shift));
          if (memory == nullptr) return rows.check("looks", false, "no memory on the device");
          expect(static_cast<bool>(looks.session->copy_in(memory + shift, tensor.at(0), bytes)), what + ": copy");
          const TensorView host = tensor.view();
          const TensorView view{memory + shift, dtype, host.sizes, host.strides};
          const auto alone = looks.look(view, std::nullopt);
          const auto fresh = looks.look(view, 1 | kFirstCheck);
          expect(alone.stats && fresh.stats && *fresh.stats == *alone.stats, what + ": statistics of what is new");
          expect(fresh.check && fresh.check->checksum == kernels::checksum_bytes(tensor.at(0), bytes),
                 what + ": checksum");
          const auto known = looks.look(view, 1);
          expect(known.check && !known.check->differs && !known.stats, what + ": nothing changed");
          unsigned char last = 0;
          expect(static_cast<bool>(looks.session->copy_out(&last, memory + shift + bytes - 1, 1)), what + ": copy");
          last ^= 1;
          expect(static_cast<bool>(looks.session->copy_in(memory + shift + bytes - 1, &last, 1)), what + ": copy");
          const auto changed = looks.look(view, 1), again = looks.look(view, std::nullopt);
          expect(changed.check && changed.check->differs && changed.stats && again.stats &&
                     *changed.stats == *again.stats,
                 what + ": what changed is read anew");
          looks.session->release(memory);
        }
      }
    }
    rows.check("looks at " + std::string(dtype_name(dtype)), wrong == 0,
               std::to_string(compared) + " compared" +
                   (wrong == 0 ? "" : ", " + std::to_string(wrong) + " wrong; first: " + first));
  }
}

void run_checksum_stats_bench(Rows& rows) {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  constexpr int kRounds = 30;
  Looks looks;
  if (!looks.open()) return rows.check("looks, benchmark", false, looks.why);
  void* memory = looks.session->allocate(kBytes);
  if (memory == nullptr) return rows.skip("looks, benchmark", "not enough memory on the device for 1 GiB");
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    OwnedTensor made = make_tensor(dtype, (std::size_t{8} << 20) / dtype_size(dtype), Content::kNormal, 3);
    for (std::size_t at = 0; at < kBytes; at += std::size_t{8} << 20) {
      if (Status s = looks.session->copy_in(static_cast<unsigned char*>(memory) + at, made.at(0), std::size_t{8} << 20);
          !s) {
        return rows.check("looks, benchmark", false, s.message());
      }
    }
    const std::array<std::int64_t, 1> sizes = {static_cast<std::int64_t>(kBytes / dtype_size(dtype))}, strides = {1};
    const TensorView view{memory, dtype, sizes, strides};
    const auto enqueue = [&](std::span<const std::uint32_t> references) {
      looks.readings->drop(looks.readings->enqueue({&view, 1}, {}, nullptr, references));
    };
    const std::array<std::uint32_t, 1> fresh = {1 | kFirstCheck}, known = {1};
    const auto one_pass = [&] {
      enqueue(fresh);
      return Status::ok();
    };
    const auto two_passes = [&] {  // a checksum, then statistics
      enqueue(known);
      enqueue({});
      return Status::ok();
    };
    std::vector<double> ratios, one_ms;
    for (int round = -3; round < kRounds; ++round) {  // three to warm up
      const Result<double> one = looks.session->time(one_pass), two = looks.session->time(two_passes);
      if (!one || !two) return rows.check("looks, benchmark", false, (!one ? one : two).status().message());
      if (round < 0) continue;
      one_ms.push_back(*one);
      ratios.push_back(*two / *one);
    }
    std::ranges::sort(ratios);
    std::ranges::sort(one_ms);
    char text[128];
    std::snprintf(text, sizeof text, "one pass %.3f ms; rounds %.3f to %.3f", one_ms[one_ms.size() / 2],
                  ratios.front(), ratios.back());
    rows.measure("1 GiB of new " + std::string(dtype_name(dtype)) + ", checksum then statistics over both in one pass",
                 ratios[ratios.size() / 2], 0, text);
  }
  looks.session->release(memory);
}

}  // namespace nanhunt::gpu
