// SPDX-License-Identifier: Apache-2.0
// What an op is given, as it was before its kernel ran. The memory is kept for the next op.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "hooks/torch/tap/describe.h"
#include "hooks/torch/tap/plan.h"
#include "hooks/torch/tap/rows/words.h"

namespace nanhunt::tap {

// The tensors live until the row is written.
struct Given {
  std::vector<c10::IValue> args;
  Words words;
  Key key;
  std::vector<double> numbers;
  struct Written {
    std::ptrdiff_t at;  // of its old contents among the words; -1: not among them
    Quad quad;
    at::Tensor tensor;
    const Arg* arg;
    bool had_looked = false;  // whether it was known what its storage holds, and that
    std::uint8_t had = 0;
  };
  std::vector<Written> written;
  std::vector<c10::IValue> saved;  // arguments with copies of what is written over, where there are any
  bool inputs_finite = true;       // as far as the step's rows stay here
  std::uint8_t old = 0;            // what is written over held
  int reach = 0;                   // of the widest input
  std::size_t memory = 0;  // of what is resized
  bool late = false;  // what it leaves in host memory is not there yet: nobody may read it, and nothing says when

  // As new, but for the memory.
  void clear() {
    args.clear(), words.clear(), key.clear(), numbers.clear(), written.clear(), saved.clear();
    inputs_finite = true, late = false;
    old = 0, reach = 0, memory = 0;
  }
};

// Ops nest, and run in several threads: each has its own.
class SpareGiven {
 public:
  SpareGiven() { spare_.reserve(kMost); }

  class Borrowed {
   public:
    explicit Borrowed(SpareGiven& from) : from_(from), given_(from.take()) {}
    ~Borrowed() { from_.put(std::move(given_)); }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    Given* get() const { return given_.get(); }

   private:
    SpareGiven& from_;
    std::unique_ptr<Given> given_;
  };

 private:
  static constexpr std::size_t kMost = 16;

  std::unique_ptr<Given> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!spare_.empty()) {
        std::unique_ptr<Given> one = std::move(spare_.back());
        spare_.pop_back();
        return one;
      }
    }
    return std::make_unique<Given>();
  }
  void put(std::unique_ptr<Given> one) noexcept {
    one->clear();
    const std::lock_guard lock(mutex_);
    if (spare_.size() < kMost) spare_.push_back(std::move(one));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Given>> spare_;
};

}  // namespace nanhunt::tap
