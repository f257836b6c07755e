// SPDX-License-Identifier: Apache-2.0
// One file of a checkpoint, read by what it is: safetensors, or what torch.save writes (zip, or the format before it).
#pragma once

#include <cstdint>
#include <string>

#include "nanhunt/status.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/file_bytes.h"

namespace nanhunt::checkpoint {

enum class FileKind : std::uint8_t { kNone, kSafetensors, kTorchZip, kTorchLegacy };

// By the first bytes; where they say nothing, by the ending of the name. kNone: no checkpoint.
FileKind file_kind(const std::string& path);
bool has_checkpoint_ending(const std::string& name);

// Adds what the file holds to `out`, each name behind `prefix`. Fails where nothing of the file can be read.
Status read_file(const std::string& path, const std::string& prefix, Checkpoint& out);

// Of one part of a larger file, which torch.save wrote there.
Status read_torch_zip(const FileBytes& file, std::uint64_t at, std::uint64_t length, const std::string& prefix,
                      Checkpoint& out);
Status read_torch_legacy(const FileBytes& file, const std::string& prefix, Checkpoint& out);
Status read_safetensors_file(const FileBytes& file, const std::string& prefix, Checkpoint& out);

}  // namespace nanhunt::checkpoint
