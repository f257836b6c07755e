// SPDX-License-Identifier: Apache-2.0
// Copies of parameters that last as they do: an average of the weights, a teacher. They are state.
#pragma once

#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hooks/torch/tap/plan.h"
#include "hooks/torch/tap/rows/words.h"

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
    if (known_.size() < room_) return;
    std::erase_if(known_, [](const auto& one) { return one.second.front().storage.expired(); });
    room_ = std::max(kRoom, 2 * known_.size());
  }
  // A parameter, or a copy of one that lasts.
  bool is_weights(const at::Tensor& t) const {
    const auto* const storage = storage_of(t);
    return storage != nullptr && (parameters_.contains(storage) || known_.contains(storage));
  }
  bool is_parameter(const at::Tensor& t) const { return parameters_.contains(storage_of(t)); }
  // One of them, or made of one since the step began.
  bool is_of_weights(const at::Tensor& t) const { return is_weights(t) || derived_.contains(number_of(t)); }

  // After an op, in which badness `began`. Marks of copies that it wrote go to `marks`, and they themselves to
  // `written`. Whether it wrote weights, and one of the updates between these steps made something bad: they are written
  // by several ops.
  bool look(std::int64_t phase, const Plan& plan, const std::vector<c10::IValue>& args, const c10::Stack& stack,
            bool began, Words& marks, std::vector<at::Tensor>& written) {
    const bool updates = phase == NANHUNT_PHASE_UPDATE;
    // The first op of an average that is met writes what is not known to be one yet.
    bad_ = bad_ || (began && (updates || (phase == NANHUNT_PHASE_DATA && plan.writes)));
    if (parameters_.empty() || args.empty() || (!updates && phase != NANHUNT_PHASE_DATA)) return false;
    if (!plan.writes) {
      if (plan.fresh) note_made(plan, args, stack.back());
      return false;
    }
    if (!updates) return false;
    std::vector<at::Tensor> targets;
    for (const Arg& arg : plan.args) {
      if (!arg.written) continue;
      each_tensor(args[static_cast<std::size_t>(arg.index)], [&](const at::Tensor& t) { targets.push_back(t); });
    }
    const std::vector<std::int64_t> names = names_for(plan, args, targets);
    bool any = false;
    for (std::size_t i = 0; i < targets.size(); ++i) {
      const at::Tensor& t = targets[i];
      if (is_weights(t)) any = true;
      if (parameters_.contains(storage_of(t)) || derived_.contains(number_of(t))) continue;
      const Copy* const known = find(t);
      const std::int64_t name = known != nullptr ? known->name : names[i];
      const auto quad = name != 0 ? describer_.describe(t, true) : std::nullopt;
      if (!quad) continue;
      any = true;
      marks.insert(marks.end(), {NANHUNT_ROW_MARK, NANHUNT_STATE, state_->step, state_->micro_batch, name});
      put(marks, *quad);
      if (keep(t, name)) written.push_back(t);
    }
    if (any) state_->wrote_weights |= kWrote;
    for (const at::Tensor& t : written)
      if (t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16) state_->wrote_weights |= kWroteNarrow;
    return bad_ && any;
  }

  // Those on the host that are still there.
  std::vector<at::Tensor> alive() const {
    std::vector<at::Tensor> all;
    for (const auto& [storage, its] : known_) {
      const auto held = its.front().storage.lock();
      if (!held) continue;
      for (const Copy& one : its) {
        at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(held), one.keys, one.shown.dtype);
        t.unsafeGetTensorImpl()->set_sizes_and_strides(one.shown.sizes, one.shown.strides, one.shown.offset);
        t.unsafeGetTensorImpl()->set_version_counter(one.version);
        all.push_back(std::move(t));
      }
    }
    return all;
  }

 private:
  struct Copy {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    c10::DispatchKeySet keys;
    Shown shown;
    std::int64_t name;
    c10::VariableVersion version;
  };

  static c10::StorageImpl* storage_of(const at::Tensor& t) {
    return t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr;
  }
  std::int64_t number_of(const at::Tensor& t) const { return describer_.identities.number_of(t); }
  const Copy* find(const at::Tensor& t) const {
    const auto known = known_.find(storage_of(t));
    if (known == known_.end()) return nullptr;
    for (const Copy& one : known->second)
      if (one.shown.is_shown_by(t)) return &one;
    return nullptr;
  }

  // Whether it can be looked at later.
  bool keep(const at::Tensor& t, std::int64_t name) {
    if (!t.device().is_cpu() || t.is_inference()) return false;
    std::vector<Copy>& its = known_[storage_of(t)];
    Copy now{Identities::weak(storage_of(t)), t.key_set(), Shown(t), name, t.unsafeGetTensorImpl()->version_counter()};
    for (Copy& one : its) {
      if (!one.shown.is_shown_by(t)) continue;
      one = std::move(now);  // `.data` counts writes for itself
      return true;
    }
    if (its.size() >= kParts) return false;
    its.push_back(std::move(now));
    return true;
  }

  // What a copy of each target would be called, by what it is made of; 0: of no weights, or of others.
  std::vector<std::int64_t> names_for(const Plan& plan, const std::vector<c10::IValue>& args,
                                      const std::vector<at::Tensor>& targets) const {
    std::vector<std::int64_t> names(targets.size(), 0);
    for (std::size_t k = 0; k < args.size(); ++k) {
      if (k < plan.args.size() && plan.args[k].written) continue;
      std::size_t i = 0;
      each_tensor(args[k], [&](const at::Tensor& t) {
        const std::int64_t name = i < targets.size() && targets[i].sizes() == t.sizes() ? name_of(t) : 0;
        if (name != 0) names[i] = name;
        ++i;
      });
    }
    return names;
  }
  void note_made(const Plan& plan, const std::vector<c10::IValue>& args, const c10::IValue& result) {
    bool of_weights = false;
    for (const Arg& arg : plan.args) {
      if (arg.blind) continue;  // zeros of its shape
      each_tensor(args[static_cast<std::size_t>(arg.index)],
                  [&](const at::Tensor& t) { of_weights = of_weights || is_of_weights(t); });
    }
    if (!of_weights) return;
    std::vector<at::Tensor> made;
    each_tensor(result, [&](const at::Tensor& t) { made.push_back(t); });
    const std::vector<std::int64_t> names = names_for(plan, args, made);
    for (std::size_t i = 0; i < made.size(); ++i)
      if (const std::int64_t number = number_of(made[i]); number != 0) derived_[number] = names[i];
  }

  // 0: it is none of them, and was made of none.
  std::int64_t name_of(const at::Tensor& t) const {
    if (!t.has_storage()) return 0;
    if (const auto name = parameters_.find(storage_of(t)); name != parameters_.end()) return name->second;
    if (const Copy* known = find(t); known != nullptr) return known->name;
    const auto name = derived_.find(number_of(t));
    return name == derived_.end() ? 0 : name->second;
  }

  static constexpr std::size_t kRoom = 8192, kParts = 4096;
  Describer& describer_;
  State*& state_;
  Names parameters_;
  std::unordered_map<const c10::StorageImpl*, std::vector<Copy>> known_;  // written between two steps
  std::size_t room_ = kRoom;  // entries before those that are gone are dropped
  bool bad_ = false;
  std::unordered_map<std::int64_t, std::int64_t> derived_;  // by number of the storage, of what was made of weights
};

}  // namespace nanhunt::tap
