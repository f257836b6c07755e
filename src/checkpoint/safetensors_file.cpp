// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "src/checkpoint/read_file.h"
#include "src/core/byte_order.h"
#include "src/trace/run/safetensors.h"

namespace nanhunt::checkpoint {
namespace {

// What the format allows; the number of arrays is bounded by the header's own length.
constexpr trace::SafetensorsLimits kCheckpointLimits{100'000'000, 2'000'000};

bool is_integer_format(const std::string& format) {
  return format == "BOOL" || format.starts_with('I') || format.starts_with('U');
}

}  // namespace

Status read_safetensors_file(const FileBytes& file, const std::string& prefix, Checkpoint& out) {
  const std::string what = "'" + file.path() + "'";
  const std::string begin = file.text(0, trace::kSafetensorsLengthBytes);
  const std::uint64_t length = begin.empty() ? 0 : load_little_endian(begin.data(), begin.size());
  const std::uint64_t data_at = trace::kSafetensorsLengthBytes + length;
  if (begin.empty() || length > kCheckpointLimits.header_bytes || data_at > file.size())
    return {StatusCode::kUnreadable, what +
                                         " is no safetensors file that can be read: its header claims more bytes than "
                                         "there are. Was it copied whole?"};
  const std::string json = file.text(trace::kSafetensorsLengthBytes, static_cast<std::size_t>(length));
  auto header = trace::parse_safetensors_header(json, file.size() - data_at, what, kCheckpointLimits);
  if (!header) return header.status();
  const std::size_t number = out.add_file(file.path());
  for (trace::SafetensorsEntry& entry : header->entries) {
    Tensor tensor;
    tensor.name = prefix + entry.name;
    tensor.dtype_name = entry.dtype ? std::string(dtype_name(*entry.dtype)) : entry.format;
    tensor.sizes = entry.sizes;
    tensor.integer = is_integer_format(entry.format);
    tensor.dtype = entry.dtype;
    if (!entry.problem.empty()) {
      tensor.problem = entry.problem;
      tensor.damaged = true;
    } else if (entry.dtype) {
      tensor.pieces.push_back(
          {number, data_at + entry.begin, data_at + entry.end, entry.sizes, contiguous_strides(entry.sizes)});
    } else if (entry.format == "C64" && trace::numel_of(entry.sizes) >= 0 &&
               entry.end - entry.begin == static_cast<std::uint64_t>(trace::numel_of(entry.sizes)) * 8) {
      tensor.dtype_name = "complex64";  // read as pairs
      tensor.dtype = DType::kF32;
      std::vector<std::int64_t> pairs = entry.sizes;
      pairs.push_back(2);
      tensor.pieces.push_back({number, data_at + entry.begin, data_at + entry.end, pairs, contiguous_strides(pairs)});
    } else if (!tensor.integer) {
      tensor.problem = "a format that is not read";
    }
    out.tensors.push_back(std::move(tensor));
  }
  if (out.format.empty()) out.format = "safetensors";
  return {};
}

}  // namespace nanhunt::checkpoint
