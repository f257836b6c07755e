// SPDX-License-Identifier: Apache-2.0
// One program for what tools/gpu_check asks of the kernels. Exit status: 0 all passed, 1 something failed, 2 wrong
// usage, 5 there is no GPU to ask.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string>

#include "kernels/device_query.h"
#include "tests/gpu/checks.h"

namespace {

constexpr int kFailed = 1, kUsage = 2, kNoGpu = 5;

int print_usage() {
  std::fputs("Usage: gpu_kernels probe|kernels|quick|large|bench [--rows FILE]\n", stderr);
  return kUsage;
}

// One line of JSON for the table's head.
void print_devices(const std::vector<nanhunt::kernels::DeviceInfo>& devices) {
  const nanhunt::kernels::DeviceInfo& d = devices.front();
  std::printf(
      "{\"device\": \"%s\", \"compute\": \"%d.%d\", \"memory_mib\": %llu, \"multiprocessors\": %d, \"driver\": %d, "
      "\"runtime\": %d, \"devices\": %zu}\n",
      d.name.c_str(), d.compute_major, d.compute_minor, static_cast<unsigned long long>(d.memory_bytes >> 20),
      d.multiprocessors, d.driver_version, d.runtime_version, devices.size());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  std::string path;
  if (argc == 4 && std::strcmp(argv[2], "--rows") == 0) {
    path = argv[3];
  } else if (argc != 2) {
    return print_usage();
  }
  constexpr const char* kKnown[] = {"probe", "kernels", "quick", "large", "bench"};
  if (std::find(std::begin(kKnown), std::end(kKnown), what) == std::end(kKnown)) return print_usage();
  std::string why_none;
  const auto devices = nanhunt::kernels::query_devices(why_none);
  if (devices.empty()) {
    std::fprintf(stderr, "gpu_kernels: no GPU: %s\n", why_none.c_str());
    return kNoGpu;
  }
  if (what == "probe") {
    print_devices(devices);
    return 0;
  }
  nanhunt::gpu::Rows rows(path);
  if (!rows.is_open()) {
    std::fprintf(stderr, "gpu_kernels: %s cannot be written\n", path.c_str());
    return kUsage;
  }
  if (what == "kernels") {
    nanhunt::gpu::run_kernel_checks(rows, false);
    nanhunt::gpu::run_checksum_stats_checks(rows, false);
  } else if (what == "quick") {
    nanhunt::gpu::run_kernel_checks(rows, true);
    nanhunt::gpu::run_checksum_stats_checks(rows, true);
  } else if (what == "large") {
    nanhunt::gpu::run_large_checks(rows);
  } else {
    nanhunt::gpu::run_kernel_bench(rows);
    nanhunt::gpu::run_checksum_stats_bench(rows);
  }
  return rows.failed() ? kFailed : 0;
}
