// SPDX-License-Identifier: Apache-2.0
// What autocast does with an op: the whole op lists of torch.amp for CUDA and for the CPU, and Apex's of O1. An op that
// is on no list runs in the types it is given. Names are the dispatcher's without "aten::"; on Apex's list they are those
// of the functions that it patches, and the dispatcher's where an op of it is behind one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace nanhunt {

enum class CastPolicy : std::uint8_t {
  kLow,          // every argument to the region's 16-bit format
  kFp32,         // every argument to fp32
  kFp32Output,   // arguments as they are, result in fp32, unless the caller named a dtype
  kAppendDtype,  // the same, for an op that torch re-dispatches to its form with a dtype
  kPromote,      // every argument to fp32 if one of them is, else to the 16-bit format
  kBanned,       // an error: of torch whatever the arguments, of Apex where one of them is fp16
};

enum class CastList : std::uint8_t { kTorchCuda, kTorchCpu, kApex };

struct CastRow {
  std::string_view op;
  CastPolicy policy;
  std::string_view overloads = "default";  // those that torch intercepts, with a space between two
};

std::span<const CastRow> cast_rows(CastList list);  // in order of names
// "pow" (any overload) or "pow.Scalar" ("sum.default" for the one without a name); without "aten::".
std::optional<CastPolicy> cast_policy(std::string_view op, CastList list);

// The lists, one file each.
std::span<const CastRow> torch_cuda_rows();
std::span<const CastRow> torch_cpu_rows();
std::span<const CastRow> apex_rows();

}  // namespace nanhunt
