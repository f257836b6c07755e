// SPDX-License-Identifier: Apache-2.0
// A whole segment as it is read from disk. Checksums of the input are made right first, or mutations would seldom get
// past them: every place with the chunk magic is taken for a header.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "src/trace/encoding/chunk.h"
#include "src/trace/encoding/crc32c.h"
#include "src/trace/segments/segment.h"
#include "tests/trace/damage/decode_target.h"

namespace {

using namespace nanhunt::trace;

void make_checksums_right(std::vector<std::byte>& bytes) {
  if (bytes.size() < kFileHeaderBytes) return;
  const std::uint32_t file_crc = crc32c({bytes.data(), kFileHeaderBytes - 4});
  std::memcpy(bytes.data() + kFileHeaderBytes - 4, &file_crc, 4);
  for (std::size_t at = kFileHeaderBytes; at + kChunkHeaderBytes <= bytes.size(); ++at) {
    std::byte* header = bytes.data() + at;
    if (!std::equal(kChunkMagic.begin(), kChunkMagic.end(), header)) continue;
    std::uint32_t stored = 0;
    std::memcpy(&stored, header + 16, 4);
    const std::size_t left = bytes.size() - at - kChunkHeaderBytes;
    const std::uint32_t payload = crc32c({header + kChunkHeaderBytes, std::min<std::size_t>(stored, left)});
    std::memcpy(header + 32, &payload, 4);
    const std::uint32_t own = crc32c({header, 36});
    std::memcpy(header + 36, &own, 4);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto view = std::as_bytes(std::span(data, size));
  std::vector<std::byte> bytes(view.begin(), view.end());
  make_checksums_right(bytes);
  static const int fd = ::memfd_create("segment", 0);
  if (fd < 0 || ::ftruncate(fd, 0) != 0) std::abort();
  if (::pwrite(fd, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) std::abort();
  nanhunt::trace_testing::read_and_check("/proc/self/fd/" + std::to_string(fd));
  return 0;
}
