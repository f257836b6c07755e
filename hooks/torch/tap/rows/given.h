// SPDX-License-Identifier: Apache-2.0
// What an op is given, as it was before its kernel ran. The memory is kept for the next op.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "hooks/torch/tap/describe.h"
#include "hooks/torch/tap/held/saved.h"
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
  Saved saved;  // arguments with copies of what is written over, where there are any
  bool inputs_finite = true;       // as far as the step's rows stay here
  std::uint8_t old = 0;            // what is written over held
  int reach = 0;                   // of the widest input
  std::size_t memory = 0;  // of what is resized
  at::Tensor gaps;           // the first that shows memory of which not all was written
  bool reads_table = false;  // of which a few rows are read when they are written: see Identity::by_rows
  bool late = false;  // what it leaves in host memory is not there yet: nobody may read it, and nothing says when

  // As new, but for the memory.
  void clear() {
    args.clear(), words.clear(), key.clear(), numbers.clear(), written.clear(), saved.clear();
    inputs_finite = true, late = reads_table = false;
    old = 0, reach = 0, memory = 0;
    gaps.reset();
  }
};

// Ops nest, and run in several threads: each has its own.
class BorrowedGiven {
 public:
  BorrowedGiven() : given_(take()) {}
  ~BorrowedGiven() {
    given_->clear();
    if (spare().size() < kMost) spare().push_back(std::move(given_));
  }
  BorrowedGiven(const BorrowedGiven&) = delete;
  BorrowedGiven& operator=(const BorrowedGiven&) = delete;
  Given* get() const { return given_.get(); }

 private:
  using Spare = std::vector<std::unique_ptr<Given>>;
  static constexpr std::size_t kMost = 16;

  static Spare& spare() {
    static thread_local Spare of_this_thread;
    return of_this_thread;
  }
  static std::unique_ptr<Given> take() {
    Spare& all = spare();
    all.reserve(kMost);
    if (all.empty()) return std::make_unique<Given>();
    std::unique_ptr<Given> one = std::move(all.back());
    all.pop_back();
    return one;
  }

  std::unique_ptr<Given> given_;
};

}  // namespace nanhunt::tap
