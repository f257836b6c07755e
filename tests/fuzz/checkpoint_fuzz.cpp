// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "src/checkpoint/judge.h"
#include "src/checkpoint/read_file.h"
#include "src/checkpoint/statistics.h"

// A file in memory, read by its first bytes: safetensors, a zip or a pickle of torch.save.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const int file = ::memfd_create("checkpoint.pt", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  if (::ftruncate(file, 0) != 0 || ::pwrite(file, data, size, 0) != static_cast<ssize_t>(size)) return -1;
  nanhunt::checkpoint::Checkpoint checkpoint;
  if (!nanhunt::checkpoint::read_file(path, "", checkpoint)) return 0;
  const auto results = nanhunt::checkpoint::compute_statistics(checkpoint);
  static_cast<void>(nanhunt::checkpoint::judge(checkpoint, results));
  return results.size() == checkpoint.tensors.size() ? 0 : -1;
}
