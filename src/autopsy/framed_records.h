// SPDX-License-Identifier: Apache-2.0
// Framed records: the two ways in which loggers part a file into checked messages. What is handed over has a right
// checksum; reading ends at the first frame that has not, for nothing says where the next one begins.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace nanhunt::autopsy {

using RecordVisitor = std::function<void(std::string_view record)>;

// TFRecord, as in TensorBoard's files: length, masked CRC-32C of it, data, masked CRC-32C of those.
// Returns what is damaged, "" for nothing.
std::string read_tfrecords(std::string_view file, const RecordVisitor& visit);

// W&B's files: ":W&B", then LevelDB's log: blocks of 32 KiB with fragments, each with its CRC-32.
std::string read_wandb_log(std::string_view file, const RecordVisitor& visit);

}  // namespace nanhunt::autopsy
