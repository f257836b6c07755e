// SPDX-License-Identifier: Apache-2.0
#include "src/trace/encoding/columns.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "src/trace/encoding/bytes.h"
#include "src/trace/encoding/limits.h"
#include "src/trace/encoding/planes.h"

namespace nanhunt::trace {
namespace {

enum Tag : unsigned { kConstant = 0, kPacked = 1, kPlainPart = 2 };
constexpr unsigned kDeltaBit = 16;
constexpr std::size_t kNoiseSample = 512;  // planes are judged by so many of their first bytes
constexpr unsigned kNoiseDistinct = 180;

// True for bytes that a Huffman coder would shrink by a tenth at most. 512 uniform bytes have 221 of the 256
// values (deviation 4.5); anything skewed or repeating has fewer.
bool is_noise(const std::byte* bytes) {
  std::array<std::uint8_t, 256> seen{};
  for (std::size_t i = 0; i < kNoiseSample; ++i) seen[std::to_integer<unsigned>(bytes[i])] = 1;
  unsigned distinct = 0;
  for (const std::uint8_t one : seen) distinct += one;
  return distinct >= kNoiseDistinct;
}

void append(std::vector<std::byte>& to, const std::byte* data, std::size_t n) { to.insert(to.end(), data, data + n); }

}  // namespace

std::uint64_t* Scratch::take(std::size_t n) {
  if (used_ == blocks_.size()) blocks_.emplace_back();
  Block& block = blocks_[used_++];
  if (block.size < n) {
    block.size = std::max<std::size_t>(n, 64);
    block.data.reset(new std::uint64_t[block.size]);
  }
  return block.data.get();
}

void ColumnWriter::clear() {
  scratch_.clear();
  packed_.clear();
  plain_.clear();
  refused_ = false;
}

void ColumnWriter::column(const std::uint64_t* values, std::size_t n, Coding coding, std::uint64_t limit) {
  if (n == 0) return;
  if (coding == Coding::kDelta && limit != kAnyNumber) check_limit(values, n, limit);
  std::uint64_t first = 0;
  if (coding == Coding::kDelta) {
    if (deltas_.size() < n) deltas_.resize(n);
    first = values[0];
    for (std::size_t i = 1; i < n; ++i) deltas_[i] = zigzag(values[i] - values[i - 1]);
    deltas_[0] = n > 1 ? deltas_[1] : 0;
    values = deltas_.data();
  }
  std::uint64_t any = 0, all = ~std::uint64_t{0};
  for (std::size_t i = 0; i < n; ++i) {
    any |= values[i];
    all &= values[i];
  }
  if (coding == Coding::kPlain && any > limit) check_limit(values, n, limit);  // `any` is at least the largest
  const std::uint64_t varies = any ^ all;
  const auto planes = static_cast<unsigned>((std::bit_width(any) + 7) / 8);
  const auto bits = [&](unsigned k) { return (varies >> (8 * k)) & 0xffu; };  // those that differ in byte k
  PlaneOutputs outputs{};
  for (unsigned k = 0; k < planes; ++k) {
    if (bits(k) == 0) continue;
    if (planes_[k].size() < n) planes_[k].resize(n);
    outputs[k] = planes_[k].data();
  }
  if (varies != 0) split_planes(values, n, outputs);
  unsigned tags = 0;
  for (unsigned k = 0; k < planes; ++k) {
    if (bits(k) == 0) continue;
    const bool noise = bits(k) == 0xff && n >= kNoiseSample && is_noise(outputs[k]);
    tags |= (noise ? kPlainPart : kPacked) << (2 * k);
  }
  packed_.push_back(static_cast<std::byte>(planes | (coding == Coding::kDelta ? kDeltaBit : 0u)));
  if (coding == Coding::kDelta) {
    const auto bytes = static_cast<unsigned>((std::bit_width(first) + 7) / 8);
    packed_.push_back(static_cast<std::byte>(bytes));
    for (unsigned k = 0; k < bytes; ++k) packed_.push_back(static_cast<std::byte>((first >> (8 * k)) & 0xffu));
  }
  if (planes == 0) return;
  packed_.push_back(static_cast<std::byte>(tags & 0xffu));
  packed_.push_back(static_cast<std::byte>(tags >> 8));
  for (unsigned k = 0; k < planes; ++k) {
    if (((tags >> (2 * k)) & 3u) == kConstant) packed_.push_back(static_cast<std::byte>((all >> (8 * k)) & 0xffu));
  }
  for (unsigned k = 0; k < planes; ++k) {
    const unsigned tag = (tags >> (2 * k)) & 3u;
    if (tag != kConstant) append(tag == kPlainPart ? plain_ : packed_, planes_[k].data(), n);
  }
}

void ColumnWriter::check_limit(const std::uint64_t* values, std::size_t n, std::uint64_t limit) {
  for (std::size_t i = 0; i < n; ++i) refused_ |= values[i] > limit;
}

void ColumnWriter::texts(std::span<const std::string* const> texts) {
  std::uint64_t* lengths = take(texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) lengths[i] = std::min(texts[i]->size(), kMaxTextBytes);
  column(lengths, texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    append(packed_, reinterpret_cast<const std::byte*>(texts[i]->data()), lengths[i]);
  }
}

const std::uint64_t* ColumnReader::fail(std::size_t n) {
  ok_ = false;
  std::uint64_t* zeros = scratch_.take(n);
  std::fill_n(zeros, n, 0);
  return zeros;
}

std::span<const std::byte> ColumnReader::cut(std::span<const std::byte>& from, std::size_t n) {
  if (n > from.size()) {
    ok_ = false;
    return {};
  }
  const auto piece = from.first(n);
  from = from.subspan(n);
  return piece;
}

const std::uint64_t* ColumnReader::column(std::size_t n, Coding coding, std::uint64_t limit) {
  if (n == 0) return scratch_.take(0);
  if (!ok_ || n > cells_) return fail(n);
  cells_ -= n;
  const auto head_bytes = cut(packed_, 1);
  if (!ok_) return fail(n);
  const auto head = std::to_integer<unsigned>(head_bytes[0]);
  const unsigned planes = head & 15u;
  const unsigned expected_head = planes | (coding == Coding::kDelta ? kDeltaBit : 0u);
  if (planes > 8 || head != expected_head) return fail(n);
  std::uint64_t first = 0;
  if (coding == Coding::kDelta) {
    const auto length = cut(packed_, 1);
    if (!ok_ || std::to_integer<unsigned>(length[0]) > 8) return fail(n);
    const auto bytes = cut(packed_, std::to_integer<std::size_t>(length[0]));
    if (!ok_) return fail(n);
    for (std::size_t k = 0; k < bytes.size(); ++k) first |= std::to_integer<std::uint64_t>(bytes[k]) << (8 * k);
  }
  unsigned tags = 0;
  std::uint64_t constants = 0;
  if (planes > 0) {
    const auto tag_bytes = cut(packed_, 2);
    if (!ok_) return fail(n);
    tags = std::to_integer<unsigned>(tag_bytes[0]) | std::to_integer<unsigned>(tag_bytes[1]) << 8;
    for (unsigned k = 0; k < planes; ++k) {
      const unsigned tag = (tags >> (2 * k)) & 3u;
      if (tag > kPlainPart) return fail(n);
      if (tag != kConstant) continue;
      const auto constant = cut(packed_, 1);
      if (!ok_) return fail(n);
      constants |= std::to_integer<std::uint64_t>(constant[0]) << (8 * k);
    }
  }
  PlaneInputs inputs{};
  for (unsigned k = 0; k < planes; ++k) {
    const unsigned tag = (tags >> (2 * k)) & 3u;
    if (tag == kConstant) continue;
    inputs[k] = cut(tag == kPlainPart ? plain_ : packed_, n).data();
    if (!ok_) return fail(n);
  }
  std::uint64_t* out = scratch_.take(n);
  join_planes(out, n, inputs, constants);
  if (coding == Coding::kDelta) {
    out[0] = first;
    for (std::size_t i = 1; i < n; ++i) out[i] = first += unzigzag(out[i]);
  }
  const bool may_exceed = coding == Coding::kDelta || planes == 8 || (std::uint64_t{1} << (8 * planes)) - 1 > limit;
  if (limit != kAnyNumber && may_exceed) {
    bool above = false;
    for (std::size_t i = 0; i < n; ++i) above |= out[i] > limit;
    if (above) return fail(n);
  }
  return out;
}

const std::uint64_t* ColumnReader::counts(std::size_t n, std::size_t& total) {
  total = 0;
  const std::uint64_t* lengths = column(n, Coding::kPlain, kMaxItems);
  for (std::size_t i = 0; i < n; ++i) total += lengths[i];  // at most 2^16 rows of 2^20: no overflow
  if (total <= kMaxItems) return lengths;
  total = 0;
  return fail(n);
}

void ColumnReader::texts(std::size_t n, std::vector<std::string>& out) {
  out.assign(n, {});
  const std::uint64_t* lengths = column(n, Coding::kPlain, kMaxTextBytes);
  for (std::size_t i = 0; i < n && ok_; ++i) {
    const auto bytes = cut(packed_, lengths[i]);
    if (ok_) out[i].assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
}

}  // namespace nanhunt::trace
