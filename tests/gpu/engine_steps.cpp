// SPDX-License-Identifier: Apache-2.0
// Times steps of one trainer, on demand: whoever asks interleaves several of these. A step ends when its loss was read,
// so the clock of the host sees all of its work on the device.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>

#include "tests/gpu/engine_checks.h"
#include "tests/gpu/watched_trainer.h"

namespace nanhunt::gpu {

bool knows_step(const std::string& size, const std::string& watch) {
  return find_gpt_size(size) != nullptr &&
         std::find(std::begin(kWatches), std::end(kWatches), watch) != std::end(kWatches);
}

int run_steps(const std::string& size, const std::string& watch, const engine::Device& device) {
  WatchedTrainer watched(size, watch, device);
  const engine::StepResult first = watched.step();
  std::printf("ready %lld %.6f\n", static_cast<long long>(parameter_count(watched.trainer())), first.loss);
  std::fflush(stdout);
  for (int steps = 0; std::cin >> steps && steps > 0;) {
    std::printf("%u", watched.trainer().next_step());
    engine::wait_for(device);  // what the last step left behind its loss is not this one's
    for (int i = 0; i < steps; ++i) {
      const auto start = std::chrono::steady_clock::now();
      watched.step();
      engine::wait_for(device);  // the optimizer runs after the loss is read
      const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
      std::printf(" %.6f", took.count());
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace nanhunt::gpu
