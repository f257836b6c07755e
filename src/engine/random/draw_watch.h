// SPDX-License-Identifier: Apache-2.0
// Says whether this thread drew from a random stream that it was not told of.
#pragma once

#include <vector>

#include "nanhunt/engine/random.h"

namespace nanhunt::engine {

class ScopedDrawWatch {
 public:
  // Both must outlive it. `elsewhere` is set once a stream that is not `known` is drawn from.
  ScopedDrawWatch(const std::vector<RandomStream*>& known, bool& elsewhere);
  ~ScopedDrawWatch();
  ScopedDrawWatch(const ScopedDrawWatch&) = delete;
  ScopedDrawWatch& operator=(const ScopedDrawWatch&) = delete;

  void on_draw(const RandomStream* stream) noexcept;

 private:
  const std::vector<RandomStream*>& known_;
  bool& elsewhere_;
  const RandomStream* last_ = nullptr;  // is known
  ScopedDrawWatch* outer_;
};

}  // namespace nanhunt::engine
