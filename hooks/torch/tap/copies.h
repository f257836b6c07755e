// SPDX-License-Identifier: Apache-2.0
// Copies of parameters that last as they do: an average of the weights, a teacher. They are state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hooks/torch/tap/plan.h"
#include "hooks/torch/tap/words.h"

namespace nanhunt::tap {

class Copies {
 public:
  // By storage: the text for a copy of the parameter there. Numbers of storages are given anew where ops ran unheard.
  using Names = std::unordered_map<const c10::StorageImpl*, std::int64_t>;

  Copies(Describer& describer, State*& state) : describer_(describer), state_(state) {}

  void name_parameters(Names names) { parameters_ = std::move(names); }
  void begin_step() {
    derived_.clear();
    bad_ = false;
  }
  // Whether it was made of a parameter since the step began.
  bool is_derived(std::int64_t storage) const { return derived_.contains(storage); }

  // After an op, in which badness `began`. Marks of copies that it wrote go to `marks`. Whether it is about a copy, and
  // one of the updates between these steps made something bad: a copy is written by several ops.
  bool look(std::int64_t phase, const Plan& plan, const std::vector<c10::IValue>& args, const c10::Stack& stack,
            bool began, Words& marks) {
    const bool updates = phase == NANHUNT_PHASE_UPDATE;
    bad_ = bad_ || (began && updates);
    if (parameters_.empty() || args.empty() || (!updates && (phase != NANHUNT_PHASE_DATA || !plan.fresh))) return false;
    std::vector<at::Tensor> written;
    each_tensor(updates ? args[0] : stack.back(), [&](const at::Tensor& t) { written.push_back(t); });
    std::vector<std::int64_t> names(written.size(), 0);
    for (std::size_t k = updates ? 1 : 0; k < args.size(); ++k) {
      std::size_t i = 0;
      each_tensor(args[k], [&](const at::Tensor& t) {
        const std::int64_t name = name_of(t);
        if (name != 0 && i < written.size() && written[i].sizes() == t.sizes()) names[i] = name;
        ++i;
      });
    }
    for (std::size_t i = 0; i < written.size(); ++i) {
      if (names[i] == 0) continue;
      const auto quad = describer_.describe(written[i], updates);
      if (!quad) continue;
      if (updates) {
        marks.insert(marks.end(), {NANHUNT_ROW_MARK, NANHUNT_STATE, state_->step, state_->micro_batch, names[i]});
        put(marks, *quad);
      } else {
        derived_[quad->word >> kVersionBits] = names[i];
      }
    }
    return bad_ && std::any_of(names.begin(), names.end(), [](std::int64_t name) { return name != 0; });
  }

 private:
  // 0: it is none of them, and was made of none.
  std::int64_t name_of(const at::Tensor& t) const {
    if (!t.has_storage()) return 0;
    c10::StorageImpl* const storage = t.storage().unsafeGetStorageImpl();
    if (const auto name = parameters_.find(storage); name != parameters_.end()) return name->second;
    const Identity* known = describer_.identities.find(storage);
    const auto name = known == nullptr ? derived_.end() : derived_.find(known->word >> kVersionBits);
    return name == derived_.end() ? 0 : name->second;
  }

  Describer& describer_;
  State*& state_;
  Names parameters_;
  bool bad_ = false;
  std::unordered_map<std::int64_t, std::int64_t> derived_;  // the same of what was made of one, by number of the storage
};

}  // namespace nanhunt::tap
