// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/pickle/element_format.h"

#include <algorithm>
#include <utility>

namespace nanhunt::checkpoint {
namespace {

constexpr ElementFormat kElementFormats[] = {
    {"float32", "FloatStorage", "fp32", 4, DType::kF32},
    {"float64", "DoubleStorage", "fp64", 8, DType::kF64},
    {"float16", "HalfStorage", "fp16", 2, DType::kF16},
    {"bfloat16", "BFloat16Storage", "bf16", 2, DType::kBF16},
    {"float8_e4m3fn", "", "e4m3fn", 1, DType::kE4M3FN},
    {"float8_e5m2", "", "e5m2", 1, DType::kE5M2},
    {"int64", "LongStorage", "int64", 8, DType::kI64, false, true},
    {"int32", "IntStorage", "int32", 4, DType::kI32, false, true},
    {"uint8", "ByteStorage", "uint8", 1, DType::kU8, false, true},
    {"bool", "BoolStorage", "bool", 1, DType::kBool, false, true},
    {"int16", "ShortStorage", "int16", 2, std::nullopt, false, true},
    {"int8", "CharStorage", "int8", 1, std::nullopt, false, true},
    {"uint16", "", "uint16", 2, std::nullopt, false, true},
    {"uint32", "", "uint32", 4, std::nullopt, false, true},
    {"uint64", "", "uint64", 8, std::nullopt, false, true},
    {"complex64", "ComplexFloatStorage", "complex64", 8, DType::kF32, true},
    {"complex128", "ComplexDoubleStorage", "complex128", 16, DType::kF64, true},
    {"complex32", "ComplexHalfStorage", "complex32", 4, DType::kF16, true},
    {"", "UntypedStorage", "", 1, std::nullopt},
    {"float8_e4m3fnuz", "", "e4m3fnuz", 1, DType::kU8},
    {"float8_e5m2fnuz", "", "e5m2fnuz", 1, DType::kU8},
    {"float8_e8m0fnu", "", "e8m0", 1, DType::kU8},
    {"float4_e2m1fn_x2", "", "float4_e2m1fn_x2", 1, std::nullopt, false, true},
    {"", "QInt8Storage", "qint8", 1, std::nullopt, false, true},
    {"", "QUInt8Storage", "quint8", 1, std::nullopt, false, true},
    {"", "QInt32Storage", "qint32", 4, std::nullopt, false, true},
};

constexpr std::pair<std::string_view, std::string_view> kNumpyDtypes[] = {
    {"f2", "float16"}, {"f4", "float32"}, {"f8", "float64"}, {"c8", "complex64"}, {"c16", "complex128"},
    {"b1", "bool"},    {"i1", "int8"},    {"i2", "int16"},   {"i4", "int32"},     {"i8", "int64"},
    {"u1", "uint8"},   {"u2", "uint16"},  {"u4", "uint32"},  {"u8", "uint64"},
};

const ElementFormat* find_dtype(std::string_view dtype) {
  const auto* found = std::find_if(std::begin(kElementFormats), std::end(kElementFormats),
                                   [&](const auto& one) { return one.dtype == dtype; });
  return found == std::end(kElementFormats) ? nullptr : found;
}

}  // namespace

std::string_view last_word(std::string_view dotted) {
  const std::size_t dot = dotted.rfind('.');
  return dot == std::string_view::npos ? dotted : dotted.substr(dot + 1);
}

const ElementFormat* find_torch_format(std::string_view global) {
  if (!global.starts_with("torch.")) return nullptr;
  const std::string_view word = last_word(global);
  const auto* found = std::find_if(std::begin(kElementFormats), std::end(kElementFormats),
                                   [&](const auto& one) { return word == one.dtype || word == one.storage; });
  return found == std::end(kElementFormats) || word.empty() ? nullptr : found;
}

const ElementFormat* find_numpy_format(std::string_view dtype) {
  for (const auto& [numpy, torch] : kNumpyDtypes)
    if (numpy == dtype) return find_dtype(torch);
  return nullptr;
}

}  // namespace nanhunt::checkpoint
