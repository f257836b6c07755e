// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/kernel_watching.h"

namespace nanhunt::cli {

std::unique_ptr<hooks::KernelWatch> watch_kernels(const std::string& device, const std::string& level,
                                                  Recorder& recorder, const hooks::KernelOptions& options) {
  if (!device.starts_with("cuda")) return nullptr;
  std::string why = "only level ops ties them to operations";
  if (level == "ops") {
    auto watch = hooks::KernelWatch::attach(options);
    if (watch) return std::move(*watch);
    why = watch.status().message();
  }
  recorder.on_note({0, hooks::not_watched_note(why), 1});
  return nullptr;
}

}  // namespace nanhunt::cli
