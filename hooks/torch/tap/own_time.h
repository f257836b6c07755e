// SPDX-License-Identifier: Apache-2.0
// Time of the training thread that the tap takes for itself. One op in kTimedEvery is timed and stands for the others:
// reading a clock at each would cost as much as some of what is timed.
#pragma once

#include <chrono>
#include <cstdint>

namespace nanhunt::tap {

inline constexpr std::uint64_t kTimedEvery = 17;  // a prime, so that the ops of a layer do not come out even

class OwnTime {
 public:
  explicit OwnTime(std::uint64_t& ops) : on_(++ops % kTimedEvery == 0), since_(on_ ? Clock::now() : Clock::time_point()) {}

  void pause() {
    if (on_) spent_ += Clock::now() - since_;
  }
  void go_on() {
    if (on_) since_ = Clock::now();
  }
  // Of all ops since the last one that was timed, in nanoseconds: what this one took, as often as there were ops.
  std::int64_t end() {
    pause();
    const auto each = std::chrono::duration_cast<std::chrono::nanoseconds>(spent_).count();
    return static_cast<std::int64_t>(each) * static_cast<std::int64_t>(kTimedEvery);
  }

 private:
  using Clock = std::chrono::steady_clock;

  bool on_;
  Clock::time_point since_;
  Clock::duration spent_{};
};

}  // namespace nanhunt::tap
