// SPDX-License-Identifier: Apache-2.0
// Columns of integers as byte planes, in two parts: what zstd should see and what it should not (FORMAT.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace nanhunt::trace {

enum class Coding : std::uint8_t { kPlain, kDelta };

// Arrays of numbers that are handed out, then all taken back at once. Keeps its memory.
class Scratch {
 public:
  std::uint64_t* take(std::size_t n);  // not initialised; valid until clear()
  void clear() { used_ = 0; }

 private:
  struct Block {
    std::unique_ptr<std::uint64_t[]> data;
    std::size_t size = 0;
  };
  std::vector<Block> blocks_;
  std::size_t used_ = 0;
};

inline constexpr std::uint64_t kAnyNumber = ~std::uint64_t{0};

class ColumnWriter {
 public:
  std::uint64_t* take(std::size_t n) { return scratch_.take(n); }
  // A number above `limit`, which a reader would not take, makes refused() true.
  void column(const std::uint64_t* values, std::size_t n, Coding coding = Coding::kPlain,
              std::uint64_t limit = kAnyNumber);
  void texts(std::span<const std::string* const> texts);
  void clear();
  // What was written since clear() must not be stored: some row cannot be.
  void refuse() { refused_ = true; }
  bool refused() const { return refused_; }

  const std::vector<std::byte>& packed() const { return packed_; }
  const std::vector<std::byte>& plain() const { return plain_; }

 private:
  void check_limit(const std::uint64_t* values, std::size_t n, std::uint64_t limit);

  Scratch scratch_;
  std::vector<std::byte> packed_, plain_;
  std::vector<std::uint64_t> deltas_;
  std::array<std::vector<std::byte>, 8> planes_;
  bool refused_ = false;
};

// Reads what ColumnWriter wrote, believing nothing: after the first thing that does not fit ok() is
// false and every column reads as zeros, so a decoder may run on and ask once at its end.
class ColumnReader {
 public:
  // `cells` is how many numbers may be decoded; it is counted down.
  ColumnReader(Scratch& scratch, std::span<const std::byte> packed, std::span<const std::byte> plain,
               std::uint64_t& cells)
      : scratch_(scratch), packed_(packed), plain_(plain), cells_(cells) {}

  static constexpr std::uint64_t kU32 = 0xffffffffu;

  // n numbers, none above `limit`; valid until the scratch is cleared.
  const std::uint64_t* column(std::size_t n, Coding coding = Coding::kPlain, std::uint64_t limit = kAnyNumber);
  // A column of list lengths: their sum is checked against kMaxItems and returned in `total`.
  const std::uint64_t* counts(std::size_t n, std::size_t& total);
  void texts(std::size_t n, std::vector<std::string>& out);

  bool ok() const { return ok_; }
  bool finished() const { return ok_ && packed_.empty() && plain_.empty(); }

 private:
  const std::uint64_t* fail(std::size_t n);
  std::span<const std::byte> cut(std::span<const std::byte>& from, std::size_t n);

  Scratch& scratch_;
  std::span<const std::byte> packed_, plain_;
  std::uint64_t& cells_;
  bool ok_ = true;
};

}  // namespace nanhunt::trace
