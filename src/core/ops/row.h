// SPDX-License-Identifier: Apache-2.0
// How a row of the op table is written: op("name", what its group says), and then what it has of its own.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "src/core/ops/op_info.h"

namespace nanhunt::ops {

constexpr std::uint32_t kEach = kArithmetic | kElementwise;
constexpr std::uint32_t kSums = kArithmetic | kAccumulates;

constexpr std::uint32_t kNumpyBoth = kNumpy | kNumpyGradient;

using Slots = std::array<std::string_view, 2>;
constexpr Slots kSelf = {"self", "input"};
constexpr Slots kOther = {"other", "divisor"};
constexpr Slots kOtherAlone = {"other", ""};
constexpr Slots kResult = {"result", "out"};
constexpr Slots kMatrixSlot = {"A", "self"};
constexpr Slots kLogProbs = {"log_probs", ""};
constexpr Slots kTarget = {"target", ""};
constexpr Slots kCompared = {"self", "target"};
constexpr Slots kVectorSlot = {"v", ""};
constexpr Slots kTensor2 = {"tensor2", ""};

constexpr ElementMap kByElement = ElementMap::kElementwise;
constexpr ElementMap kByShape = ElementMap::kSameShape;

struct Row {
  OpInfo info;

  constexpr explicit Row(std::uint32_t flags) { info.flags = flags; }
  template <typename T>
  constexpr Row set(T OpInfo::* member, T value) const {
    Row row = *this;
    row.info.*member = value;
    return row;
  }
  // A zero, a negative or another singular argument is looked for in these slots.
  constexpr Row pole(Pole pole, Slots slots) const {
    Row row = set(&OpInfo::pole, pole);
    row.info.pole_slots = slots;
    return row;
  }
  constexpr Row zero(ZeroRule zero) const { return set(&OpInfo::zero, zero); }
  constexpr Row bound(Bound bound) const { return set(&OpInfo::bound, bound); }
  constexpr Row eps(EpsForm eps) const { return set(&OpInfo::eps, eps); }
  constexpr Row meets(ElementMap elements) const { return set(&OpInfo::elements, elements); }
  constexpr Row loses(FlushRule flush) const { return set(&OpInfo::flush, flush); }
  constexpr Row updates(UpdateRule update) const { return set(&OpInfo::update, update); }
  constexpr Row scratch(std::uint16_t outputs) const { return set(&OpInfo::scratch, outputs); }
  constexpr Row gradient_of(std::string_view forward) const { return set(&OpInfo::forward, forward); }
  constexpr Row also(std::uint32_t flags) const { return set(&OpInfo::flags, info.flags | flags); }
};

constexpr Row op(std::string_view name, Row group) { return group.set(&OpInfo::name, name); }
constexpr Row op(std::string_view name, std::uint32_t flags) { return op(name, Row(flags)); }

}  // namespace nanhunt::ops
