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
  if (!files.empty() && files.back() == file) return files.size() - 1;
  const auto found = std::find(files.begin(), files.end(), file);
  if (found != files.end()) return static_cast<std::size_t>(found - files.begin());
  files.push_back(file);
  return files.size() - 1;
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
