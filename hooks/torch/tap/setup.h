// SPDX-License-Identifier: Apache-2.0
// How the program has set up what no op shows: autocast. Looked at where a line runs for the first time, for a model may
// switch it on inside of its forward.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <string>

#include "hooks/torch/tap/recording.h"

namespace nanhunt::tap {

class Setup {
 public:
  Setup(const Recording& to, State*& state) : to_(to), state_(state) {}

  // The tap's mutex is held.
  void look(const std::string& site) {
    if (to_.setup == nullptr || !at::GradMode::is_enabled()) return;
    for (const at::DeviceType device : {at::kCPU, at::kCUDA}) {
      if (!at::autocast::is_autocast_enabled(device)) continue;
      const at::ScalarType format = at::autocast::get_autocast_dtype(device);
      if (format != at::kHalf && format != at::kBFloat16) continue;
      nanhunt_setup setup{};
      setup.struct_size = sizeof setup;
      setup.step = static_cast<std::uint32_t>(state_->step);
      setup.fact = NANHUNT_SETUP_AUTOCAST;
      setup.site = site.c_str();
      setup.dtype = format == at::kHalf ? NANHUNT_F16 : NANHUNT_BF16;
      const std::uint32_t bit = 1u << static_cast<unsigned>(setup.dtype);
      if ((reported_ & bit) != 0) continue;
      reported_ |= bit;
      (void)to_.setup(to_.self, &setup);
    }
  }

 private:
  const Recording& to_;
  State*& state_;
  std::uint32_t reported_ = 0;  // formats
};

}  // namespace nanhunt::tap
