// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/watched_trainer.h"

#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace nanhunt::gpu {
namespace {

std::string temp_folder() {
  std::string path = (std::filesystem::temp_directory_path() / "nanhunt-gpu-XXXXXX").string();
  if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("no temporary folder could be made: set TMPDIR");
  return path;
}

}  // namespace

WatchedTrainer::WatchedTrainer(const std::string& size, const std::string& watch, const engine::Device& device) {
  const bool kernels = watch == "ops+cupti" || watch == "cupti" || watch == "detached";
  if (kernels) {  // before anything asks for a context
    auto attached = hooks::KernelWatch::attach();
    if (!attached) throw std::runtime_error("CUPTI: " + attached.status().message());
    kernels_ = std::move(*attached);
  }
  if (const std::string why = engine::why_unusable(device); !why.empty()) {
    throw std::runtime_error(engine::describe(device) + " cannot be used: " + why);
  }
  trainer_ = make_gpt_trainer(*find_gpt_size(size), device);
  if (watch == "off") return;
  folder_ = temp_folder();
  RecorderOptions options;
  options.run_dir = folder_ + "/run";
  const std::size_t plus = watch.find('+');  // and then how a device is read, or CUPTI
  const std::string way = plus == std::string::npos ? "" : watch.substr(plus + 1);
  auto opened = Recorder::open(options, RunInfo{});
  if (!opened) throw std::runtime_error(opened.status().message());
  recorder_ = std::move(*opened);
  if (watch.substr(0, plus) == "ops") {
    watch_.emplace(
        *trainer_, *recorder_,
        hooks::WatchOptions{.device_stats = hooks::parse_device_stats(way).value_or(hooks::DeviceStats::kDeferred),
                            .kernels = kernels_.get()});
    return;
  }
  tags_ = std::make_unique<hooks::KernelTags>(*recorder_, *kernels_);
  tags_->observe_first();
  tags_->observe_last();
  if (watch != "detached") return;
  for (int i = 0; i < 3; ++i) trainer_->step();
  tags_.reset();
  kernels_->finish(*recorder_);
  kernels_->detach();
}

WatchedTrainer::~WatchedTrainer() {
  watch_.reset();
  tags_.reset();
  kernels_.reset();
  recorder_.reset();
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

engine::StepResult WatchedTrainer::step() { return trainer_->step(); }

}  // namespace nanhunt::gpu
