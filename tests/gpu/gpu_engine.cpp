// SPDX-License-Identifier: Apache-2.0
// One program for what tools/gpu_check asks of the engine and its hooks. Exit status: 0 all passed, 1 something failed,
// 2 wrong usage, 5 the device cannot be used.
//
//   gpu_engine step SIZE WATCH   says "ready PARAMETERS LOSS" after a first step; then, for each line with a count N on
//   its
//                                input, runs N steps and prints the number of the first one and the milliseconds of
//                                each
//   gpu_engine cupti             kernels tied to ops, and what detaching leaves
//   gpu_engine competitor        the same where another has CUPTI's one place
//   gpu_engine syncs             how often the host waits for the device in a step, unwatched and watched
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "nanhunt/engine/device.h"
#include "tests/gpu/engine_checks.h"

namespace {

constexpr int kFailed = 1, kUsage = 2, kUnusable = 5;

int print_usage() {
  std::fputs(
      "Usage: gpu_engine step SIZE off|ops[+sync|+cupti]|cupti|detached"
      " [--device D]\n"
      "       gpu_engine cupti|competitor|syncs [--device D] [--rows FILE]\n",
      stderr);
  return kUsage;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words;
  std::string device_name = "cuda", path;
  for (int i = 1; i < argc; ++i) {
    const bool option = std::strcmp(argv[i], "--device") == 0 || std::strcmp(argv[i], "--rows") == 0;
    if (!option) {
      words.emplace_back(argv[i]);
    } else if (i + 1 == argc) {
      return print_usage();
    } else {
      (std::strcmp(argv[i], "--rows") == 0 ? path : device_name) = argv[i + 1];
      ++i;
    }
  }
  const auto device = nanhunt::engine::parse_device(device_name);
  const std::string what = words.empty() ? "" : words[0];
  const bool step = what == "step" && words.size() == 3 && nanhunt::gpu::knows_step(words[1], words[2]);
  const bool check = (what == "cupti" || what == "competitor" || what == "syncs") && words.size() == 1;
  if (!device || (!step && !check)) return print_usage();
  try {
    // CUPTI comes before the context that asking for the device makes.
    if (what == "step") return nanhunt::gpu::run_steps(words[1], words[2], *device);
    nanhunt::gpu::Rows rows(path);
    if (!rows.is_open()) {
      std::fprintf(stderr, "gpu_engine: %s cannot be written\n", path.c_str());
      return kUsage;
    }
    const bool ran = what == "cupti"        ? nanhunt::gpu::run_cupti_checks(rows, *device)
                     : what == "competitor" ? nanhunt::gpu::run_competitor_checks(rows, *device)
                                            : nanhunt::gpu::run_sync_checks(rows, *device);
    return !ran ? kUnusable : rows.failed() ? kFailed : 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gpu_engine: %s\n", e.what());
    return kFailed;
  }
}
