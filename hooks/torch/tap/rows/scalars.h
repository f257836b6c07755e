// SPDX-License-Identifier: Apache-2.0
// Numbers that were read out of tensors: where one is given to an op later, it stands for that tensor as well.
#pragma once

#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "hooks/torch/tap/describe.h"

namespace nanhunt::tap {

class Scalars {
 public:
  // `take` is called with the quad of each tensor that the number was read out of. One NaN, or infinity, is as any
  // other: it counts in the step in which it was read there first, and from then on if it was given to an op in that
  // step, for what is printed in each step is none that an op was given later. `negated`: an optimizer is given its
  // rate so; elsewhere -Inf is what scores are masked with, whatever a metric was.
  template <typename F>
  void each(double number, std::int64_t step, bool negated, F&& take) {
    if (all_.empty() || std::fmod(number, 1.0) == 0.0) return;
    for (Scalar& known : all_) {
      const bool same = is_same(known.number, number) || (negated && std::isinf(number) && known.number == -number);
      if (!same || known.alive.expired()) continue;
      if (!std::isfinite(number) && !known.given && known.since != step) continue;
      known.given = true;
      take(known.quad);
    }
  }

  // It was read out of `t`, which shows what `quad` says.
  void note(double number, const at::Tensor& t, const Quad& quad, std::int64_t step) {
    bool given = false;
    std::int64_t since = step;
    for (const Scalar& known : all_) {
      if (std::isfinite(number) || !is_same(known.number, number) || known.quad.word != quad.word ||
          known.quad.offset != quad.offset)
        continue;
      since = known.since;
      given = known.given;
    }
    std::erase_if(all_, [&](const Scalar& known) { return is_same(known.number, number); });
    if (all_.size() >= kMost) all_.erase(all_.begin());
    const c10::Storage& storage = t.storage();
    Scalar scalar{number, quad, Identities::weak(storage.unsafeGetStorageImpl()), {}, since, given};
    if (storage.nbytes() <= kMostBytes) scalar.storage = storage;
    all_.push_back(std::move(scalar));
  }
  // Whole numbers are too common to say where they come from.
  static bool tells(double number) { return !std::isfinite(number) || std::fmod(number, 1.0) != 0.0; }

  void clear() { all_.clear(); }

 private:
  // The recorder forgets contents that end. What is small lives on for as long as its number is known; the rest belongs
  // to the run, which may need the memory.
  static constexpr std::size_t kMost = 16, kMostBytes = std::size_t{1} << 16;
  struct Scalar {
    double number;
    Quad quad;
    c10::weak_intrusive_ptr<c10::StorageImpl> alive;
    c10::Storage storage;
    std::int64_t since;  // the step
    bool given;
  };

  static bool is_same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

  std::vector<Scalar> all_;  // oldest first
};

}  // namespace nanhunt::tap
