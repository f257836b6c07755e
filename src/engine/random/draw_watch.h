// SPDX-License-Identifier: Apache-2.0
// Says whether this thread drew from a random stream that it was not told of.
#pragma once

#include <vector>

#include "nanhunt/engine/random.h"

namespace nanhunt::engine {

class ScopedDrawWatch {
 public:
  // Both must outlive it. `elsewhere` is set once a stream that is not `known` is drawn from. With `of_device` such
  // draws are refused, and words for the host: only what a device draws of known streams may be part of a graph.
  ScopedDrawWatch(const std::vector<RandomStream*>& known, bool& elsewhere, bool of_device = false);
  ~ScopedDrawWatch();
  ScopedDrawWatch(const ScopedDrawWatch&) = delete;
  ScopedDrawWatch& operator=(const ScopedDrawWatch&) = delete;

  void on_draw(const RandomStream* stream) noexcept;
  void on_word(const RandomStream* stream);  // for the host
  void on_skip(const RandomStream* stream);  // for a device

 private:
  const std::vector<RandomStream*>& known_;
  bool& elsewhere_;
  const bool of_device_;
  const RandomStream* last_ = nullptr;  // is known
  ScopedDrawWatch* outer_;
};

}  // namespace nanhunt::engine
