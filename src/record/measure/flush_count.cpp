// SPDX-License-Identifier: Apache-2.0
#include "src/record/measure/flush_count.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "src/record/measure/strided_rows.h"

namespace nanhunt::record {
namespace {

// What must hold of a factor's element for a 0 in the output to be a lost value.
enum class Must : std::uint8_t { kBeNonZero, kNotBeInf };

struct Factor {
  const FlushInput* input;
  Must must;
  const TensorView& view() const { return input->input->value.tensor; }
  // How many elements of the factor excuse a 0; -1: not known.
  std::int64_t excuses() const {
    if (input->stats == nullptr) return -1;
    return must == Must::kBeNonZero ? input->stats->zero : input->stats->inf();
  }
};

struct Question {
  std::vector<Factor> factors;
  bool measurable = false;  // false: -1
  bool exact_zero = false;  // a scalar makes every result exactly 0
};

const OpScalar* find_scalar(std::span<const OpScalar> scalars, std::string_view name) {
  for (const OpScalar& s : scalars) {
    if (s.name == name) return &s;
  }
  return nullptr;
}

// The numbers that are mixed: inputs read or overwritten, in order.
std::vector<const FlushInput*> operands_of(std::span<const FlushInput> inputs) {
  std::vector<const FlushInput*> operands;
  for (const FlushInput& in : inputs) {
    if (in.input->role != ArgRole::kMask && in.input->role != ArgRole::kIndex) operands.push_back(&in);
  }
  return operands;
}

Question ask(FlushRule rule, std::span<const FlushInput> inputs, std::span<const OpScalar> scalars) {
  Question q;
  const auto operands = operands_of(inputs);
  const OpScalar* other = find_scalar(scalars, "other");
  switch (rule) {
    case FlushRule::kNotMeasured:
      return q;
    case FlushRule::kProduct:
      if (operands.size() + (other != nullptr ? 1 : 0) != 2) return q;
      for (const FlushInput* in : operands) q.factors.push_back({in, Must::kBeNonZero});
      q.exact_zero = other != nullptr && other->value == 0;
      break;
    case FlushRule::kQuotient:
      if (operands.empty() || operands.size() + (other != nullptr ? 1 : 0) != 2) return q;
      q.factors.push_back({operands[0], Must::kBeNonZero});
      if (other == nullptr) q.factors.push_back({operands[1], Must::kNotBeInf});
      q.exact_zero = other != nullptr && std::isinf(other->value);
      break;
    case FlushRule::kPower: {
      const OpScalar* exponent = find_scalar(scalars, "exponent");
      if (exponent == nullptr || operands.size() != 1) return q;
      if (std::isinf(exponent->value)) return q;
      q.factors.push_back({operands[0], exponent->value > 0 ? Must::kBeNonZero : Must::kNotBeInf});
      break;
    }
    case FlushRule::kCopy: {
      const FlushInput* source = nullptr;
      for (const FlushInput* in : operands) {
        if (in->input->role == ArgRole::kOverwritten) continue;
        if (source != nullptr) return q;
        source = in;
      }
      if (source == nullptr) return q;
      q.factors.push_back({source, Must::kBeNonZero});
      break;
    }
    case FlushRule::kSquareAdd: {
      const OpScalar* value = find_scalar(scalars, "value");
      const bool is_square = operands.size() == 3 && operands[0]->input->role == ArgRole::kOverwritten &&
                             operands[1]->value == operands[2]->value;
      if (!is_square || value == nullptr || !(value->value > 0)) return q;
      const TensorStats* old = operands[0]->stats;
      if (old != nullptr && (old->neg_inf > 0 || (old->has_finite() && old->min < 0))) return q;
      q.factors.push_back({operands[1], Must::kBeNonZero});
      break;
    }
  }
  q.measurable = true;
  return q;
}

// Bits of an element's magnitude and of infinity, by dtype. Zero is magnitude 0 in every format.
struct BitLayout {
  std::uint64_t magnitude;
  std::uint64_t inf;  // ~0: the format has none
};
BitLayout bit_layout(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return {0x7FFF, 0x7C00};
    case DType::kBF16:
      return {0x7FFF, 0x7F80};
    case DType::kF32:
      return {0x7FFFFFFF, 0x7F800000};
    case DType::kF64:
      return {0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000};
    case DType::kE4M3FN:
      return {0x7F, ~std::uint64_t{0}};
    case DType::kE5M2:
      return {0x7F, 0x7C};
    case DType::kI64:
      return {~std::uint64_t{0}, ~std::uint64_t{0}};
    case DType::kI32:
      return {0xFFFFFFFF, ~std::uint64_t{0}};
    case DType::kU8:
    case DType::kBool:
      return {0xFF, ~std::uint64_t{0}};
  }
  return {~std::uint64_t{0}, ~std::uint64_t{0}};
}

constexpr std::int64_t kBlock = 1024;  // elements of a row looked at together, one flag each

enum class Keep : std::uint8_t { kWhereZero, kWhereNonZero, kWhereNotInf };

struct Reader {
  const std::byte* data;
  std::size_t size;
  std::int64_t stride;  // of the innermost dimension
  BitLayout bits;
  Keep keep;
};

// flags[i] &= condition on the element at data + i * stride. Flags as wide as elements let the compiler use vectors.
template <typename Word, typename Flag>
void filter(const Reader& reader, std::int64_t offset, std::int64_t count, Flag* flags) {
  const std::byte* const data = reader.data + offset * static_cast<std::ptrdiff_t>(sizeof(Word));
  const auto magnitude = static_cast<Word>(reader.bits.magnitude);
  const auto compare_to = static_cast<Word>(reader.keep == Keep::kWhereNotInf ? reader.bits.inf : 0);
  const Flag other = reader.keep == Keep::kWhereZero ? 0 : 1;
  const auto run = [&](std::ptrdiff_t step) {
    for (std::int64_t i = 0; i < count; ++i) {
      Word word;
      std::memcpy(&word, data + i * step, sizeof(Word));
      flags[i] &= static_cast<Flag>(static_cast<Word>(word & magnitude) == compare_to) ^ other;
    }
  };
  constexpr auto kWordSize = static_cast<std::ptrdiff_t>(sizeof(Word));
  if (reader.stride == 1) return run(kWordSize);  // a constant step
  run(reader.stride * kWordSize);
}

template <typename Flag>
void apply(const Reader& reader, std::int64_t offset, std::int64_t count, Flag* flags) {
  switch (reader.size) {
    case 1:
      return filter<std::uint8_t>(reader, offset, count, flags);
    case 2:
      return filter<std::uint16_t>(reader, offset, count, flags);
    case 4:
      return filter<std::uint32_t>(reader, offset, count, flags);
    default:
      return filter<std::uint64_t>(reader, offset, count, flags);
  }
}

// Elements that pass all readers.
template <typename Flag>
std::int64_t count_passed(const std::vector<Reader>& readers, std::span<const std::int64_t> sizes,
                          const std::vector<std::vector<std::int64_t>>& strides) {
  std::int64_t total = 0;
  std::array<Flag, kBlock> flags;
  for_each_row(sizes, strides, [&](std::span<const std::int64_t> offsets, std::int64_t, std::int64_t row) {
    for (std::int64_t first = 0; first < row; first += kBlock) {
      const std::int64_t count = std::min(kBlock, row - first);
      std::fill_n(flags.begin(), count, Flag{1});
      for (std::size_t k = 0; k < readers.size(); ++k)
        apply(readers[k], offsets[k] + first * readers[k].stride, count, flags.data());
      std::uint32_t passed = 0;
      for (std::int64_t i = 0; i < count; ++i) passed += static_cast<std::uint32_t>(flags[static_cast<std::size_t>(i)]);
      total += passed;
    }
    return true;
  });
  return total;
}

std::int64_t count_elements(const std::vector<Factor>& factors, const TensorView& output) {
  std::vector<Reader> readers;
  std::vector<std::vector<std::int64_t>> strides;
  const auto add = [&](const TensorView& view, Keep keep) {
    auto s = broadcast_strides(view, output.sizes);
    if (view.data == nullptr || !s) return false;
    // A format without infinities cannot fail kWhereNotInf.
    const BitLayout bits = bit_layout(view.dtype);
    if (keep == Keep::kWhereNotInf && bits.inf == ~std::uint64_t{0}) return true;
    readers.push_back(
        {static_cast<const std::byte*>(view.data), dtype_size(view.dtype), s->empty() ? 0 : s->back(), bits, keep});
    strides.push_back(std::move(*s));
    return true;
  };
  if (!add(output, Keep::kWhereZero)) return -1;
  for (const Factor& f : factors) {
    if (!add(f.view(), f.must == Must::kBeNonZero ? Keep::kWhereNonZero : Keep::kWhereNotInf)) return -1;
  }
  return readers[0].size == sizeof(std::uint32_t) ? count_passed<std::uint32_t>(readers, output.sizes, strides)
                                                  : count_passed<std::uint16_t>(readers, output.sizes, strides);
}

}  // namespace

namespace {

std::int64_t settle(const Question& q, FlushRule rule, DType output_dtype, const TensorStats& output_stats) {
  if (rule == FlushRule::kNotMeasured || output_stats.level < StatsLevel::kCounts || !is_floating(output_dtype))
    return -1;
  if (!q.measurable) return -1;
  if (output_stats.zero == 0 || q.exact_zero) return 0;

  // No factor excuses any zero: all zeros are losses.
  if (std::all_of(q.factors.begin(), q.factors.end(), [](const Factor& f) { return f.excuses() == 0; })) {
    return output_stats.zero;
  }
  // One factor whose zeros stay zeros: the new zeros are the losses. (Not for a square: old contents may fill in.)
  if (q.factors.size() == 1 && rule != FlushRule::kSquareAdd && q.factors[0].must == Must::kBeNonZero) {
    const Factor& f = q.factors[0];
    if (f.input->stats != nullptr && f.input->stats->numel == output_stats.numel) {
      const std::int64_t flushed = output_stats.zero - f.input->stats->zero;
      return flushed >= 0 ? flushed : -1;
    }
  }
  return kNeedsElements;
}

}  // namespace

std::int64_t settle_flushed(FlushRule rule, std::span<const FlushInput> inputs, std::span<const OpScalar> scalars,
                            DType output_dtype, const TensorStats& output_stats) {
  return settle(ask(rule, inputs, scalars), rule, output_dtype, output_stats);
}

std::vector<FlushFactor> flush_factors(FlushRule rule, std::span<const FlushInput> inputs,
                                       std::span<const OpScalar> scalars) {
  const Question q = ask(rule, inputs, scalars);
  std::vector<FlushFactor> factors;
  if (!q.measurable || q.exact_zero) return factors;
  for (const Factor& f : q.factors) {
    factors.push_back({static_cast<std::size_t>(f.input - inputs.data()), f.must == Must::kBeNonZero});
  }
  return factors;
}

std::int64_t count_flushed(FlushRule rule, std::span<const FlushInput> inputs, std::span<const OpScalar> scalars,
                           const TensorView& output, const TensorStats& output_stats) {
  const Question q = ask(rule, inputs, scalars);
  const std::int64_t settled = settle(q, rule, output.dtype, output_stats);
  return settled == kNeedsElements ? count_elements(q.factors, output) : settled;
}

}  // namespace nanhunt::record
