// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>

#include "kernels/cpu/convert.h"
#include "src/checkpoint/blocks.h"
#include "src/checkpoint/file_bytes.h"

namespace nanhunt::checkpoint {
namespace {

constexpr std::int64_t kBlockElements = 1 << 16;

// One file stays open: tensors come in the order of their files.
class OpenFile {
 public:
  const FileBytes* get(const Checkpoint& checkpoint, std::size_t number) {
    if (!file_ || number != number_) {
      file_.reset();
      if (auto opened = checkpoint.open(number)) file_ = std::move(*opened);
      number_ = number;
    }
    return file_ ? &*file_ : nullptr;
  }

 private:
  std::optional<FileBytes> file_;
  std::size_t number_ = 0;
};

// The elements of a block in its order, exact in fp64 (int64 beyond 2^53 rounds).
void load_block(const Tensor& tensor, const Block& block, std::size_t side, const std::vector<std::byte>& bytes,
                std::vector<float>& narrow, std::vector<double>& out) {
  const DType dtype = *tensor.dtype;
  const auto n = static_cast<std::size_t>(block.elements);
  out.resize(n);
  const bool dense = block.span[side] == block.elements && block.dims.size() <= 1;
  if (dense && (dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32)) {
    narrow.resize(n);
    if (dtype == DType::kF32) {
      std::memcpy(narrow.data(), bytes.data(), n * sizeof(float));
    } else {
      const auto* codes = reinterpret_cast<const std::uint16_t*>(bytes.data());
      (dtype == DType::kF16 ? kernels::convert_f16_to_f32 : kernels::convert_bf16_to_f32)(codes, narrow.data(), n);
    }
    std::copy(narrow.begin(), narrow.end(), out.begin());
    return;
  }
  const std::size_t size = dtype_size(dtype);
  std::size_t next = 0;
  for_each_element(block, [&](std::int64_t a, std::int64_t b) {
    const std::byte* at = bytes.data() + static_cast<std::size_t>(side == 0 ? a : b) * size;
    out[next++] = tensor.byte_format != nullptr
                      ? load_byte_as_f64(*tensor.byte_format, std::to_integer<std::uint8_t>(*at))
                      : load_as_f64(dtype, at);
  });
}

struct Sums {
  double change = 0, base = 0;
};

void compare_values(const std::vector<double>& a, const std::vector<double>& b, std::int64_t times, TensorChange& out,
                    Sums& sums) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool finite_a = std::isfinite(a[i]), finite_b = std::isfinite(b[i]);
    if (finite_a && !finite_b) out.newly_nonfinite += times;
    if (!finite_a && finite_b) out.newly_finite += times;
    if (!finite_a || !finite_b) continue;
    const double change = std::fabs(b[i] - a[i]), base = std::fabs(a[i]);
    sums.base += base * base;
    if (change == 0) continue;
    sums.change += change * change;
    out.largest_change = std::max(out.largest_change, change);
    if (base > 0) out.largest_relative = std::max(out.largest_relative, change / base);
  }
}

// Elements whose bits differ; where formats differ, whose values do (a NaN equals a NaN).
std::int64_t count_changed(const Block& block, std::size_t size, const std::vector<std::byte>& bytes_a,
                           const std::vector<std::byte>& bytes_b) {
  std::int64_t changed = 0;
  for_each_element(block, [&](std::int64_t a, std::int64_t b) {
    changed += std::memcmp(bytes_a.data() + static_cast<std::size_t>(a) * size,
                           bytes_b.data() + static_cast<std::size_t>(b) * size, size) != 0;
  });
  return changed;
}
std::int64_t count_changed(const std::vector<double>& a, const std::vector<double>& b) {
  std::int64_t changed = 0;
  for (std::size_t i = 0; i < a.size(); ++i) changed += !(a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i])));
  return changed;
}

class Comparer {
 public:
  Comparer(const Checkpoint& a, const Checkpoint& b)
      : a_(a), b_(b), allowed_(most_bytes_to_read(a) + most_bytes_to_read(b)) {}

  void compare(const Tensor& a, const Tensor& b, TensorChange& out) {
    out.problem = !a.problem.empty() ? a.problem : b.problem;
    if (out.problem.empty() && (!a.dtype || !b.dtype)) out.problem = "a format that is not read";
    if (!out.problem.empty() || out.shapes_differ()) return;
    if (a.pieces.size() != b.pieces.size()) {
      out.problem = "it is cut into other parts";
      return;
    }
    Sums sums;
    for (std::size_t i = 0; i < a.pieces.size() && out.problem.empty(); ++i)
      compare_piece(a, a.pieces[i], b, b.pieces[i], out, sums);
    out.compared = out.problem.empty();
    if (!out.compared) return;
    const double base = std::sqrt(sums.base), change = std::sqrt(sums.change);
    out.relative_norm = change == 0 ? 0 : base == 0 ? std::numeric_limits<double>::infinity() : change / base;
  }
  bool damaged() const { return damaged_; }

 private:
  void compare_piece(const Tensor& tensor_a, const Piece& a, const Tensor& tensor_b, const Piece& b, TensorChange& out,
                     Sums& sums) {
    const FileBytes *file_a = open_a_.get(a_, a.file), *file_b = open_b_.get(b_, b.file);
    if (a.sizes != b.sizes) {
      out.problem = "it is cut into other parts";
      return;
    }
    const auto layout = layout_of(a, b);
    const auto size_a = static_cast<std::int64_t>(dtype_size(*tensor_a.dtype)),
               size_b = static_cast<std::int64_t>(dtype_size(*tensor_b.dtype));
    if (layout) asked_ += static_cast<std::uint64_t>(layout->elements() * (size_a + size_b));
    if (!layout || asked_ > allowed_) {
      out.problem = "its elements share bytes";
      return;
    }
    const bool all =
        file_a != nullptr && file_b != nullptr && for_each_block(*layout, kBlockElements, [&](const Block& block) {
          bytes_a_.resize(static_cast<std::size_t>(block.span[0] * size_a));
          bytes_b_.resize(static_cast<std::size_t>(block.span[1] * size_b));
          if (!file_a->read(a.at + static_cast<std::uint64_t>(block.offset[0] * size_a), bytes_a_) ||
              !file_b->read(b.at + static_cast<std::uint64_t>(block.offset[1] * size_b), bytes_b_))
            return false;
          out.elements += block.elements * layout->repeats;
          load_block(tensor_a, block, 0, bytes_a_, narrow_, values_a_);
          load_block(tensor_b, block, 1, bytes_b_, narrow_, values_b_);
          const bool same_layout = block.dims.size() <= 1 && block.span[0] == block.span[1];
          const bool same_dtype = tensor_a.dtype == tensor_b.dtype && tensor_a.byte_format == tensor_b.byte_format;
          const bool same = same_dtype && same_layout && bytes_a_ == bytes_b_;
          if (!same) {
            out.changed += layout->repeats *
                           (same_dtype ? count_changed(block, static_cast<std::size_t>(size_a), bytes_a_, bytes_b_)
                                       : count_changed(values_a_, values_b_));
          }
          compare_values(values_a_, values_b_, layout->repeats, out, sums);
          return true;
        });
    if (all) return;
    out.problem = "its bytes could not be read";
    damaged_ = true;
  }

  const Checkpoint &a_, &b_;
  OpenFile open_a_, open_b_;
  std::vector<std::byte> bytes_a_, bytes_b_;
  std::vector<float> narrow_;
  std::vector<double> values_a_, values_b_;
  std::uint64_t allowed_, asked_ = 0;
  bool damaged_ = false;
};

}  // namespace

bool Comparison::same() const {
  return only_in_a.empty() && only_in_b.empty() &&
         std::all_of(tensors.begin(), tensors.end(), [](const TensorChange& one) {
           return one.compared && one.changed == 0 && !one.dtypes_differ() && !one.shapes_differ();
         });
}

Comparison compare(const Checkpoint& a, const Checkpoint& b, const ReportProgress& progress) {
  Comparison out;
  std::unordered_map<std::string_view, const Tensor*> of_b;
  for (const Tensor& tensor : b.tensors) of_b.emplace(tensor.name, &tensor);
  std::unordered_map<std::string_view, bool> in_a;
  Comparer comparer(a, b);
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    const Tensor& tensor = a.tensors[i];
    if (!in_a.emplace(tensor.name, true).second) continue;
    const auto other = of_b.find(tensor.name);
    if (other == of_b.end()) {
      out.only_in_a.push_back(tensor.name);
      continue;
    }
    TensorChange change;
    change.name = tensor.name;
    change.dtype_a = tensor.dtype_name;
    change.dtype_b = other->second->dtype_name;
    change.sizes_a = tensor.sizes;
    change.sizes_b = other->second->sizes;
    comparer.compare(tensor, *other->second, change);
    out.tensors.push_back(std::move(change));
    if (progress) progress(i + 1, a.tensors.size());
  }
  for (const Tensor& tensor : b.tensors)
    if (in_a.emplace(tensor.name, true).second) out.only_in_b.push_back(tensor.name);
  out.damaged = comparer.damaged() || a.damaged() || b.damaged();
  return out;
}

}  // namespace nanhunt::checkpoint
