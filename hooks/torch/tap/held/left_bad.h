// SPDX-License-Identifier: Apache-2.0
// What a program made that is not finite before it trains, as data that it made ready: whether some of it is still
// there when training begins, which may read it, and whether what comes from elsewhere (another process that loads
// data, a file, a copy by NumPy) is a part of it, byte for byte.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hooks/torch/tap/describe.h"
#include "hooks/torch/tap/held/births.h"
#include "hooks/torch/tap/held/finite.h"
#include "hooks/torch/tap/plan.h"

namespace nanhunt::tap {

class LeftBad {
 public:
  // After an op, with the numbers that it was given.
  void note(const Plan& plan, const std::vector<c10::IValue>& args, const std::vector<double>& numbers,
            const std::vector<Births::Made>& made) {
    std::uint8_t bad = 0;
    found_.clear();
    for (const Births::Made& one : made) {
      const std::uint8_t bits = one.bits();
      if (bits != 0) found_.push_back(&one);
      bad |= bits;
    }
    if (bad == 0) return;
    const bool computed = is_computed(plan, args, numbers, made, bad);
    for (const Births::Made* one : found_) {
      c10::StorageImpl* const storage = one->tensor->storage().unsafeGetStorageImpl();
      const auto known = made_.find(storage);  // whose address is not given away while it is here
      if (known == made_.end()) {
        made_.emplace(storage, One{Identities::weak(storage), one->tensor->scalar_type(), computed});
      } else {
        known->second.computed = known->second.computed || computed;
      }
    }
    if (made_.size() > most_) sweep();
  }

  bool is_empty() const { return made_.empty(); }

  // All of the memory that the numbers of `t` are found in, which an op made; undefined: nowhere, or they are too few to
  // tell.
  at::Tensor source_of(const at::Tensor& t) const {
    const std::optional<finite::Format> format = finite::format_of(t.scalar_type());
    if (!format || !t.device().is_cpu() || t.dim() == 0 || !Describer::holds(t)) return {};
    const std::string_view sample = first_bad_sample(t, *format);
    if (sample.empty()) return {};
    for (const auto& [address, one] : made_) {
      c10::intrusive_ptr<c10::StorageImpl> storage = one.computed && one.type == t.scalar_type() ? one.storage.lock() : nullptr;
      if (!storage || storage->data() == nullptr) continue;
      const std::string_view all(static_cast<const char*>(storage->data()), storage->nbytes());
      for (std::size_t at = all.find(sample); at != all.npos; at = all.find(sample, at + 1)) {
        if (at % format->bytes != 0) continue;
        return whole_of(c10::Storage(std::move(storage)), t);
      }
    }
    return {};
  }

  // Whether something that an op made of finite numbers is not finite, and still there.
  bool any() const {
    return std::any_of(made_.begin(), made_.end(), [](const auto& one) {
      const auto storage = one.second.storage.lock();
      return one.second.computed && storage && is_bad(*storage, one.second.type);
    });
  }

 private:
  struct One {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    at::ScalarType type;
    bool computed;  // else the program wrote an infinity, a mask, say; or it came from outside
  };

  // An infinity of what was finite, or of such an infinity; a NaN but one that came from outside.
  bool is_computed(const Plan& plan, const std::vector<c10::IValue>& args, const std::vector<double>& numbers,
                   const std::vector<Births::Made>& made, std::uint8_t bad) const {
    bool of_computed = false;
    std::uint8_t meant = 0;
    for (const double number : numbers) meant |= std::isinf(number) ? finite::kInf : 0;
    for (const Arg& arg : plan.args) {
      if (arg.role == NANHUNT_MASK || arg.role == NANHUNT_INDEX || arg.blind) continue;
      each_tensor(args[static_cast<std::size_t>(arg.index)], [&](const at::Tensor& t) {
        if (t.layout() != c10::kStrided || !t.has_storage() || finite::reach_of(t.scalar_type()) == 0) return;
        c10::StorageImpl* const storage = t.storage().unsafeGetStorageImpl();
        const auto known = made_.find(storage);
        if (known != made_.end()) {
          of_computed = of_computed || known->second.computed;
          if (!known->second.computed) meant |= finite::kNan | finite::kInf;
          return;
        }
        const bool written = std::any_of(made.begin(), made.end(), [&](const Births::Made& one) {
          return one.written && one.tensor->storage().unsafeGetStorageImpl() == storage;
        });
        // A NaN without dimensions is the program's own number.
        if (!written && t.device().is_cpu() && Describer::holds(t))
          meant |= finite::bits_of(t).value_or(0) & (t.dim() == 0 ? finite::kInf : finite::kNan | finite::kInf);
      });
    }
    if (of_computed || meant == 0) return true;
    return (bad & finite::kNan) != 0 && (meant & finite::kNan) == 0;
  }

  // Of a batch the first row that is not finite; of what has one dimension all. "": there is none, it does not lie in
  // one piece, or it holds next to nothing beside what is not finite, as other rows may.
  static std::string_view first_bad_sample(const at::Tensor& t, const finite::Format& format) {
    constexpr std::int64_t kFewest = 2;  // finite numbers, but zeros
    std::int64_t count = 1;
    for (std::int64_t d = t.dim() - 1; d >= (t.dim() == 1 ? 0 : 1); --d) {
      if (t.stride(d) != count && t.size(d) != 1) return {};
      count *= t.size(d);
    }
    const std::int64_t samples = t.dim() == 1 ? 1 : t.size(0), stride = t.dim() == 1 ? 0 : t.stride(0);
    const auto* const data = static_cast<const char*>(t.storage().data()) + t.storage_offset() * static_cast<std::int64_t>(t.itemsize());
    const std::size_t size = static_cast<std::size_t>(count) * t.itemsize();
    for (std::int64_t i = 0; i < samples && count > 0; ++i) {
      const char* const sample = data + i * stride * static_cast<std::int64_t>(t.itemsize());
      finite::detail::Scan scan;
      scan.read(sample, size / format.bytes, format);
      if (scan.bits == 0) continue;
      std::int64_t told = 0;
      for (std::size_t at = 0; at < size; at += format.bytes) {
        std::uint64_t bits = 0;
        std::memcpy(&bits, sample + at, format.bytes);
        told += (bits & format.magnitude) != 0 && (bits & format.exponent) != format.exponent;
      }
      if (told >= kFewest) return {sample, size};
    }
    return {};
  }

  static bool is_bad(const c10::StorageImpl& storage, at::ScalarType type) {
    const auto format = finite::format_of(type);
    const auto* const data = static_cast<const char*>(storage.data());
    if (!format || data == nullptr) return false;
    finite::detail::Scan scan;
    scan.read(data, storage.nbytes() / format->bytes, *format);
    return scan.bits != 0;
  }

  void sweep() {
    for (auto one = made_.begin(); one != made_.end();)
      one = one->second.storage.expired() ? made_.erase(one) : std::next(one);
    most_ = std::max<std::size_t>(kMost, 2 * made_.size());
  }

  static constexpr std::size_t kMost = 1024;
  std::unordered_map<const c10::StorageImpl*, One> made_;
  std::size_t most_ = kMost;
  std::vector<const Births::Made*> found_;
};

}  // namespace nanhunt::tap
