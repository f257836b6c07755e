// SPDX-License-Identifier: Apache-2.0
// Counts the driver's and the runtime's calls of this process by name, through CUPTI's callbacks. No header of CUDA in
// it: what is used of libcupti has not changed since its first release.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "nanhunt/status.h"

namespace nanhunt::gpu {

class ApiCounts {
 public:
  // Takes CUPTI's one place; a failed Status says why it could not be had. `library`: a path, or empty for a search.
  static Result<std::unique_ptr<ApiCounts>> subscribe(const std::string& library = "");
  ~ApiCounts();
  ApiCounts(const ApiCounts&) = delete;
  ApiCounts& operator=(const ApiCounts&) = delete;

  void clear();
  std::map<std::string, std::uint64_t> calls() const;

 private:
  ApiCounts() = default;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Calls that wait for the device: of the driver where it told of any call, else of the runtime.
std::uint64_t host_waits(const std::map<std::string, std::uint64_t>& calls);
std::string described_waits(const std::map<std::string, std::uint64_t>& calls);  // "cuStreamSynchronize 2"

}  // namespace nanhunt::gpu
