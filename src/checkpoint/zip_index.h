// SPDX-License-Identifier: Apache-2.0
// The entries of a zip archive, or of one within a larger file: names and where their bytes are. Zip64 is read.
// Nothing is decompressed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nanhunt/status.h"
#include "src/checkpoint/file_bytes.h"

namespace nanhunt::checkpoint {

struct ZipEntry {
  std::string name;
  std::uint64_t at = 0, size = 0;  // in the file; 0, 0 where `problem` is not empty
  std::string problem;             // why its bytes cannot be read: compressed, encrypted, outside the file
};

// In the order of the central directory. `at`, `length`: where the archive lies in `file`.
Result<std::vector<ZipEntry>> read_zip_index(const FileBytes& file, std::uint64_t at, std::uint64_t length);

}  // namespace nanhunt::checkpoint
