// SPDX-License-Identifier: Apache-2.0
// An op on lists of tensors (foreach and fused optimizers), turned into what each element has of it: with one row for
// all, every parameter would seem to be made from every other. Single tensors are among the inputs of each.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "hooks/torch/tap/describe.h"
#include "hooks/torch/tap/held/births.h"
#include "hooks/torch/tap/numbers.h"
#include "hooks/torch/tap/plan.h"
#include "hooks/torch/tap/rows/words.h"

namespace nanhunt::tap {

// One argument. The memory is kept for the next op.
struct Column {
  const Arg* arg = nullptr;
  std::vector<std::optional<Quad>> quads;  // of a list, or one of a single tensor
  std::vector<const at::Tensor*> tensors;  // the same
  std::vector<double> numbers;
  bool of_list = false, writes = false;

  void begin(const Arg& of, bool is_written) {
    arg = &of;
    quads.clear(), tensors.clear(), numbers.clear();
    of_list = of.kind == ArgKind::kTensors || of.kind == ArgKind::kNumbers;
    writes = is_written;
  }
};

class Columns {
 public:
  // `is_default`: whether a number is what the op takes where none is given.
  template <typename IsDefault>
  void take(const Plan& plan, const std::vector<c10::IValue>& args, bool happens, bool late, Describer& describer,
            IsDefault&& is_default) {
    count_ = elements_ = 0;
    for (const Arg& arg : plan.args) {
      const c10::IValue& value = args[static_cast<std::size_t>(arg.index)];
      if (value.isNone() || arg.kind == ArgKind::kOther) continue;
      if (count_ == columns_.size()) columns_.emplace_back();
      Column& column = columns_[count_];
      column.begin(arg, arg.written && (happens || arg.name != "grad"));
      double number = 0;
      if (arg.kind == ArgKind::kTensors) {
        each_tensor(value, [&](const at::Tensor& t) {
          column.quads.push_back(describer.describe(t, !(late && arg.written && t.device().is_cpu())));
          column.tensors.push_back(&t);
        });
        elements_ = std::max(elements_, column.quads.size());
        if (column.quads.empty()) continue;
      } else if (arg.kind == ArgKind::kNumbers) {
        take_numbers(value, column.numbers);
        column.writes = false;
      } else if (number_of(value, number)) {
        if (is_default(arg)) continue;
        column.numbers.push_back(number);
        column.writes = false;
      } else if (value.isTensor() && value.toTensor().defined()) {
        column.quads.push_back(describer.describe(value.toTensor(), true));
        column.tensors.push_back(&value.toTensor());
      } else {
        continue;
      }
      ++count_;
    }
    hide_what_is_gone();
  }

  std::size_t elements() const { return elements_; }
  Column* begin() { return columns_.data(); }
  Column* end() { return columns_.data() + count_; }

 private:
  static void take_numbers(const c10::IValue& value, std::vector<double>& numbers) {
    double number = 0;
    if (value.isDoubleList()) {
      for (const double x : value.toDoubleVector()) numbers.push_back(x);
    } else if (value.isList()) {
      for (const c10::IValue& x : value.toListRef()) {
        if (!number_of(x, number)) number = std::nan("");
        numbers.push_back(number);
      }
    }
  }

  // What is written over is no longer there to be read.
  void hide_what_is_gone() {
    gone_.clear();
    bool reads = false;
    for (const Column& column : *this) {
      reads = reads || (!column.writes && column.of_list && !column.quads.empty());
      if (!column.writes) continue;
      for (const auto& quad : column.quads)
        if (quad) gone_.push_back(quad->word);
    }
    if (gone_.empty() || !reads) return;
    std::sort(gone_.begin(), gone_.end());
    for (Column& column : *this) {
      if (column.writes || !column.of_list) continue;
      for (auto& quad : column.quads)
        if (quad && std::binary_search(gone_.begin(), gone_.end(), quad->word)) quad->data = 0;
    }
  }

  std::vector<Column> columns_;
  std::size_t count_ = 0, elements_ = 0;
  Words gone_;
};

}  // namespace nanhunt::tap
