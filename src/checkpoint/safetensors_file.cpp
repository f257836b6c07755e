// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "src/checkpoint/read_file.h"
#include "src/core/byte_order.h"
#include "src/trace/run/safetensors.h"

namespace nanhunt::checkpoint {
namespace {

// What the format allows; the number of arrays is bounded by the header's own length.
constexpr trace::SafetensorsLimits kCheckpointLimits{100'000'000, 2'000'000};

// Integers, and floating-point formats of 4 and 6 bits.
bool is_always_finite(const std::string& format) {
  return format == "BOOL" || format.starts_with('I') || format.starts_with('U') || format == "F4" ||
         format.starts_with("F6_");
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
    tensor.always_finite = is_always_finite(entry.format);
    tensor.dtype = entry.dtype;
    const ByteFormat* byte_format = find_byte_format(entry.format);
    if (byte_format != nullptr) tensor.dtype_name = byte_format->name;
    const std::int64_t numel = trace::numel_of(entry.sizes);
    const auto holds = [&](std::uint64_t element) {
      return numel >= 0 && entry.end - entry.begin == static_cast<std::uint64_t>(numel) * element;
    };
    if (!entry.problem.empty()) {
      tensor.problem = entry.problem;
      tensor.damaged = true;
    } else if (entry.dtype) {
      tensor.pieces.push_back(
          {number, data_at + entry.begin, data_at + entry.end, entry.sizes, contiguous_strides(entry.sizes)});
    } else if (byte_format != nullptr && holds(1)) {
      tensor.dtype = DType::kU8;
      tensor.byte_format = byte_format;
      tensor.pieces.push_back(
          {number, data_at + entry.begin, data_at + entry.end, entry.sizes, contiguous_strides(entry.sizes)});
    } else if (entry.format == "C64" && holds(8)) {
      tensor.dtype_name = "complex64";  // read as pairs
      tensor.dtype = DType::kF32;
      std::vector<std::int64_t> pairs = entry.sizes;
      pairs.push_back(2);
      tensor.pieces.push_back({number, data_at + entry.begin, data_at + entry.end, pairs, contiguous_strides(pairs)});
    } else if (byte_format != nullptr || entry.format == "C64") {
      tensor.problem = "its shape does not fit its bytes";
      tensor.damaged = true;
    } else if (!tensor.always_finite) {
      tensor.problem = "a format that is not read";
    }
    out.tensors.push_back(std::move(tensor));
  }
  if (out.format.empty()) out.format = "safetensors";
  return {};
}

}  // namespace nanhunt::checkpoint
