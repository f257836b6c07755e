// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/checkpoint.h"

#include <algorithm>

#include "src/trace/run/safetensors.h"

namespace nanhunt::checkpoint {

bool Checkpoint::damaged() const {
  return std::any_of(notes.begin(), notes.end(), [](const Note& one) { return one.kind == NoteKind::kDamaged; }) ||
         std::any_of(tensors.begin(), tensors.end(), [](const Tensor& one) { return one.damaged; });
}

std::size_t Checkpoint::add_file(const std::string& file) {
  if (!files.empty() && files.back().path == file) return files.size() - 1;
  const auto found = std::find_if(files.begin(), files.end(), [&](const Source& one) { return one.path == file; });
  if (found != files.end()) return static_cast<std::size_t>(found - files.begin());
  files.push_back({file, nullptr});
  return files.size() - 1;
}

std::size_t Checkpoint::add_source(const Source& source) {
  if (!source.bytes) return add_file(source.path);
  if (files.empty() || files.back().bytes != source.bytes) files.push_back(source);
  return files.size() - 1;
}

Result<FileBytes> Checkpoint::open(std::size_t file) const {
  return files[file].bytes ? Result<FileBytes>(FileBytes::of(files[file].bytes)) : FileBytes::open(files[file].path);
}

std::vector<std::int64_t> contiguous_strides(const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t next = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    strides[i] = next;
    next *= std::max<std::int64_t>(sizes[i], 1);
  }
  return strides;
}

std::int64_t element_count(const Tensor& tensor) {
  if (tensor.pieces.empty()) return std::max<std::int64_t>(trace::numel_of(tensor.sizes), 0);
  std::int64_t count = 0;
  for (const Piece& piece : tensor.pieces) count += std::max<std::int64_t>(trace::numel_of(piece.sizes), 0);
  return count;
}

}  // namespace nanhunt::checkpoint
