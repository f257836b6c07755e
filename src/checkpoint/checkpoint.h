// SPDX-License-Identifier: Apache-2.0
// What a checkpoint holds, whatever its format: tensors by name and where their bytes are, scalars by name, and what
// could not be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/dtype.h"
#include "nanhunt/status.h"
#include "src/checkpoint/byte_format.h"
#include "src/checkpoint/file_bytes.h"

namespace nanhunt::checkpoint {

// Where the bytes of pieces are: in a file, or in memory where they had to be decoded.
struct Source {
  std::string path;                          // empty: in memory
  std::shared_ptr<const std::string> bytes;  // null: in the file
};

// A part of a tensor that lies in one file. Most tensors have one, those of a sharded run several.
struct Piece {
  std::size_t file = 0;   // in Checkpoint::files
  std::uint64_t at = 0;   // of the first element
  std::uint64_t end = 0;  // of its storage: no element reaches beyond
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;      // in elements, as many as sizes, none negative
  std::vector<std::int64_t> origin = {};  // of a sharded tensor: where the piece lies in the whole
};

struct Tensor {
  std::string name;            // "model.fc.weight", "optimizer.pt:state.0.exp_avg"
  std::string dtype_name;      // in the checkpoint's words: "bf16", "complex64", "F4"
  std::optional<DType> dtype;  // how it is read; complex numbers as pairs. Empty: not read
  const ByteFormat* byte_format = nullptr;  // of one byte that no DType names: `dtype` is then kU8
  std::vector<std::int64_t> sizes;
  std::vector<Piece> pieces;
  std::string problem;  // why nothing of it is read; its bytes are missing where `damaged`
  bool damaged = false;
  bool always_finite = false;  // no bit pattern is a NaN or an Inf, so it need not be read: integers, fp4

  bool is_floating() const { return byte_format != nullptr || (dtype && nanhunt::is_floating(*dtype)); }
};

// Ends the name of what a quantised tensor's integers are multiplied with: a scalar, or a tensor.
inline constexpr std::string_view kQuantiserScale = ".q_scale";

struct Scalar {
  std::string name;
  double value = 0;
};

enum class NoteKind : std::uint8_t { kNotRun, kNotRead, kDamaged };

struct Note {
  NoteKind kind = NoteKind::kNotRead;
  std::string text;
};

struct Checkpoint {
  std::string path, format;        // "safetensors", "torch", "torch (legacy)", "sharded", "distributed", "folder"
  std::vector<Source> files;
  std::vector<Tensor> tensors;     // in the order of the files
  std::vector<Scalar> scalars;
  std::vector<Note> notes;

  bool damaged() const;
  void note(NoteKind kind, std::string text) { notes.push_back({kind, std::move(text)}); }
  std::size_t add_file(const std::string& file);  // its number; one that is there keeps its own
  std::size_t add_source(const Source& source);   // the same
  Result<FileBytes> open(std::size_t file) const;
};

// Row-major strides of a shape.
std::vector<std::int64_t> contiguous_strides(const std::vector<std::int64_t>& sizes);
// Elements of the pieces, or of the shape where there are none; 0 where that is beyond 2^40.
std::int64_t element_count(const Tensor& tensor);

}  // namespace nanhunt::checkpoint
