// SPDX-License-Identifier: Apache-2.0
// The caller's structs in the recorder's words. Everything is checked before it is believed; what is wrong is said by
// throwing Misuse, which the border turns into NANHUNT_USAGE.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/c_adapter.h"
#include "nanhunt/tensor_stats.h"
#include "nanhunt/event.h"

namespace nanhunt::c_api {

class Misuse : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

inline std::string_view text_of(const char* text) { return text == nullptr ? std::string_view() : text; }

// Sizes that a tensor can have; Misuse says what is wrong. False: it has no elements.
bool check_sizes(const char* slot, std::int32_t ndim, const std::int64_t* sizes);
// Strides of a row-major tensor without gaps.
void fill_strides(std::span<const std::int64_t> sizes, std::vector<std::int64_t>& strides);
// Elsewhere NULL means that contents are not available; those of a tensor without elements always are.
inline constexpr std::int64_t kNoElements = 0;

// A copy of a struct that may be older (shorter) or newer (longer) than ours; what the caller does not have stays as
// `defaults` say.
template <typename T>
T sized_copy(const char* function, const T* given, T defaults = {}) {
  if (given == nullptr) throw Misuse(std::string(function) + ": expected a struct, got NULL");
  if (given->struct_size < sizeof(given->struct_size)) {
    throw Misuse(std::string(function) + ": struct_size is not set: it must be sizeof the struct");
  }
  std::memcpy(&defaults, given, given->struct_size < sizeof(T) ? given->struct_size : sizeof(T));
  return defaults;
}

// Statistics as C has them. `struct_size`: of the caller's.
nanhunt_stats stats_of(const TensorStats& from, std::uint32_t struct_size);

// As much of a result as the caller has room for.
template <typename T>
void give_back(const T& from, T* to) {
  std::memcpy(to, &from, from.struct_size < sizeof(T) ? from.struct_size : sizeof(T));
}

// One of the enumeration's numbers 0 ... last.
template <typename E>
E enum_of(const char* what, std::int32_t number, E last) {
  if (number < 0 || number > static_cast<std::int32_t>(last)) {
    throw Misuse(std::string(what) + ": expected 0 to " + std::to_string(static_cast<std::int32_t>(last)) + ", got " +
                 std::to_string(number));
  }
  return static_cast<E>(number);
}

// Converts one event at a time; what it returns borrows from the caller's structs and from this object.
class Converter {
 public:
  OpEvent op(const nanhunt_op& given);
  MarkEvent mark(const nanhunt_mark& given);
  ScalerEvent scaler(const nanhunt_scaler_event& given);
  TensorView tensor(const nanhunt_value& given) {
    strides_used_ = 0;
    return value("", given).tensor;
  }

 private:
  ValueView value(const char* slot, const nanhunt_value& given);

  std::vector<OpInput> inputs_;
  std::vector<OpOutput> outputs_;
  std::vector<OpScalar> scalars_;
  std::deque<std::vector<std::int64_t>> strides_;  // of values that came without; addresses stay
  std::size_t strides_used_ = 0;
};

}  // namespace nanhunt::c_api
