// SPDX-License-Identifier: Apache-2.0
// What a step computed outside of modules, kept so that it can be run again: the ops between their calls and backward.
//
// The tape holds no tensor that was made in the step: those are named by a key, which says whose storage it is, what
// part of it is shown, and whether it requires a gradient. Tensors from outside are held, with their version. Used by
// the thread that trains alone.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>
#include <unordered_set>
#include <utility>
#include <vector>

#include "hooks/torch/tap/describe.h"
#include "hooks/torch/tap/identity.h"
#include "hooks/torch/tap/numbers.h"
#include "hooks/torch/tap/plan.h"
#include "hooks/torch/tap/rows/words.h"

namespace nanhunt::tap {

struct TapedOp {
  std::string op, overload;
  std::vector<c10::IValue> args;      // a tensor made in the step is a tuple (key), another one (tensor, version)
  std::vector<std::int64_t> outputs;  // keys of results
  std::vector<std::int64_t> writes;   // numbers of storages that it writes
  std::vector<std::pair<std::optional<c10::Device>, at::Tensor>> random;  // states that it draws from; none: the CPU's
  std::vector<std::pair<at::Generator, at::Tensor>> generators;           // of its arguments, and their states
  std::int64_t micro_batch = 0, phase = 0, segment = 0, site = 0;
  bool grad = false;    // gradients were on
  bool trains = false;  // it is given what requires a gradient
  bool after = false;   // it came between backward and the optimizer
};

// What is on a tape, which goes on: what was there stays as it is.
struct Taped {
  std::vector<std::shared_ptr<TapedOp>> ops;
  std::vector<std::pair<std::int64_t, at::Tensor>> start;  // from outside, and named by a key: as they were
};

class Tape {
 public:
  static constexpr int kKeyBits = 24;  // of a key: what part of the storage is shown, and in the last two a Gradient
  // What is computed from a tensor: no gradient; one that goes on to what it was made from; one that ends at it.
  enum Gradient : std::int64_t { kNone = 0, kPasses = 1, kEnds = 2 };
  static constexpr std::size_t kMaxOps = 4000;       // of a step
  static constexpr std::int64_t kMaxCopy = 1 << 22;  // bytes of a tensor from outside that an op writes in place

  bool listens = false;
  std::int64_t segment = 0;  // grows at each boundary
  bool bad_number = false;   // an op made a single number that is not finite of what is trained
  std::string refusal;      // why the step cannot be run again
  std::string given_up;     // why what the program does with gradients is not kept

  const Taped& taped() const { return taped_; }

  void refuse(std::string why) {
    std::string& said = after_ ? given_up : refusal;  // the step can be run again without that
    if (said.empty()) said = std::move(why);
  }

  // Between backward and the optimizer.
  void begin_after() { after_ = taped_.ops.size(); }
  void end_after() { after_.reset(); }
  void give_up_after() {
    if (after_) taped_.ops.resize(std::min(*after_, taped_.ops.size()));
    after_.reset();
    given_up.clear();
  }

  // A new step. What was held is given back by the caller, who may have to wait for Python's lock.
  Taped clear() {
    made_.clear();
    weighed_.clear();
    refusal.clear();
    given_up.clear();
    after_.reset();
    bad_number = false;
    held_ = segment = 0;
    count_ = 0;
    return std::exchange(taped_, {});
  }

  // Of the step before, whose last boundary came before these: their micro-batches are counted from `base`.
  void drop(std::size_t ops, std::int64_t base) {
    auto& all = taped_.ops;
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(ops, all.size())));
    for (const auto& op : all) op->micro_batch -= base;
  }

  // Names.
  // The key of a tensor that was made in the step; 0: it comes from outside. Refuses what could not be made again.
  std::int64_t name(const at::Tensor& t) {
    Made* const made = find(t);
    const bool requires_grad = t.requires_grad();
    if (requires_grad) {
      if (const auto& node = t.grad_fn(); node != nullptr) {
        if (is_custom(*node) && (made == nullptr || !made->returned)) meet_custom(node->name(), made);
        if (made == nullptr) refuse("a tensor that takes part in backward was made where nothing is watched");
      }
    }
    if (made != nullptr) return key_of(*made, t, gradient_of(t));
    // Parameters are there anyway.
    if (!requires_grad && t.has_storage() && weighed_.insert(t.unsafeGetTensorImpl()).second)
      held_ += t.numel() * static_cast<std::int64_t>(t.element_size());
    return 0;
  }
  // Bytes of tensors from outside that were held since this was asked last.
  std::int64_t take_held() { return std::exchange(held_, 0); }
  // The same, and nothing is refused.
  std::int64_t find_key(const at::Tensor& t) {
    Made* const made = find(t);
    return made == nullptr ? 0 : key_of(*made, t, kNone);
  }
  // The key of a tensor that now belongs to the step.
  std::int64_t belongs(const at::Tensor& t, bool returned) {
    Made& made = own(t);
    made.returned = made.returned || returned;
    return key_of(made, t, kNone);
  }

  // Ops.
  // Before the op runs: what it is given, by name. None: it is not kept.
  std::optional<TapedOp> begin_op(const Plan& plan, c10::ArrayRef<c10::IValue> args) {
    if (is_question(plan) || !refusal.empty() || !given_up.empty() || is_traced(args) || !are_nameable(args))
      return std::nullopt;
    if (plan.view && !shows_ours(args)) return std::nullopt;  // a view of something from outside is from outside itself
    if (after_ && (plans::starts(plan.op, "c10d::") || plans::starts(plan.op, "_c10d"))) {
      refuse("ranks exchange tensors");
      return std::nullopt;
    }
    if ((after_ ? taped_.ops.size() - *after_ : count_++) >= kMaxOps) {
      overflow("more than " + std::to_string(kMaxOps) + " operations ran outside of modules");
      return std::nullopt;
    }
    TapedOp taped;
    taped.op = plan.op, taped.overload = plan.overload;
    taped.segment = segment;
    taped.after = after_.has_value();
    for (const Arg& arg : plan.args) {
      if (!arg.written) continue;
      each_tensor(args[static_cast<std::size_t>(arg.index)], [&](const at::Tensor& t) { written(t, taped); });
    }
    taped.args.reserve(args.size());
    for (const c10::IValue& value : args) taped.args.push_back(packed(value, taped));
    taped.grad = c10::GradMode::is_enabled();
    if (plan.random) keep_random(args, taped);
    return taped;
  }
  void end_op(TapedOp&& taped, c10::ArrayRef<c10::IValue> results) {
    if (is_traced(results) || !are_nameable(results)) return;
    for (const c10::IValue& value : results)
      each_tensor(value, [&](const at::Tensor& t) { taped.outputs.push_back(key_of(own(t), t, kNone)); });
    if (taped.trains && !bad_number && !results.empty() && results[0].isTensor()) {  // of a loss the first: weights follow
      const std::optional<double> number = one_number(results[0].toTensor());
      bad_number = number && !std::isfinite(*number);
    }
    taped_.ops.push_back(std::make_shared<TapedOp>(std::move(taped)));
  }

  // Nothing of this step is kept: it is too much.
  void overflow(std::string why) {
    refuse(std::move(why));
    if (after_) return;
    taped_ = {};
    made_.clear();
    weighed_.clear();
  }

 private:
  struct Made {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // so that its address is not given away
    std::int64_t number;
    bool returned;  // by a module
    std::vector<Shown> shown;
  };
  // Makes nothing.
  static bool is_question(const Plan& plan) {
    static constexpr std::string_view kQuestions[] = {"aten::record_stream", "aten::is_same_size"};
    return plan.scalar_read || plans::starts(plan.op, "profiler::") || plans::starts(plan.op, "prim::") ||
           plans::among(plan.op, kQuestions);
  }

  static bool is_traced(c10::ArrayRef<c10::IValue> args) {  // not computed
    bool any = false;
    each_tensor(args, [&](const at::Tensor& t) { any = any || t.is_meta() || t.key_set().has(c10::DispatchKey::Python); });
    return any;
  }
  // Sparse tensors and nested ones have no storage, or no shape, to name them by.
  bool are_nameable(c10::ArrayRef<c10::IValue> values) {
    bool all = true;
    each_tensor(values, [&](const at::Tensor& t) {
      all = all && t.layout() == c10::kStrided && t.has_storage() && !t.is_nested();
    });
    if (!all) refuse("a sparse or nested tensor was used outside of modules");
    return all;
  }
  // Of a view: whether it is one of something that the step made. Parameters have a name once they are looked at so.
  bool shows_ours(c10::ArrayRef<c10::IValue> args) {
    for (const c10::IValue& value : args) {
      if (!value.isTensor() || !value.toTensor().defined()) continue;
      const at::Tensor& t = value.toTensor();
      if (t.requires_grad()) adopt(t, false);
      return find(t) != nullptr;
    }
    return true;
  }

  Made* find(const at::Tensor& t) {
    if (!t.has_storage()) return nullptr;
    const auto known = made_.find(t.storage().unsafeGetStorageImpl());
    return known == made_.end() ? nullptr : known->second.get();
  }
  static Gradient gradient_of(const at::Tensor& t) {
    return !t.requires_grad() ? kNone : t.is_leaf() ? kEnds : kPasses;
  }
  // Its storage belongs to the step from now on.
  Made& own(const at::Tensor& t) {
    c10::StorageImpl* const storage = t.storage().unsafeGetStorageImpl();
    std::unique_ptr<Made>& made = made_[storage];
    if (made == nullptr) made = std::make_unique<Made>(Made{Identities::weak(storage), ++last_number_, false, {}});
    return *made;
  }
  static std::int64_t key_of(Made& made, const at::Tensor& t, Gradient gradient) {
    std::size_t at = 0;
    while (at < made.shown.size() && !made.shown[at].is_shown_by(t)) ++at;
    if (at == made.shown.size()) made.shown.emplace_back(t);
    return made.number << kKeyBits | static_cast<std::int64_t>(at) << 2 | gradient;
  }

  static bool is_custom(const torch::autograd::Node& node) {
    return std::string_view(typeid(node).name()).find("6PyNode") != std::string_view::npos;
  }
  // A custom autograd function made it outside of modules: what it ran is known, its backward is not.
  void meet_custom(std::string name, const Made* made) {
    static constexpr std::string_view kBackward = "Backward";
    if (name.ends_with(kBackward)) name.resize(name.size() - kBackward.size());
    if (name == "_DDPSink" && made != nullptr) {  // of data parallel: a copy, whose backward hands on what it gets
      for (auto op = taped_.ops.rbegin(); op != taped_.ops.rend(); ++op) {
        for (const std::int64_t key : (*op)->outputs) {
          if (key >> kKeyBits != made->number) continue;
          (*op)->grad = true;
          return;
        }
      }
    }
    refuse("the custom autograd function " + name + " outside of modules cannot be called again");
  }

  // A tensor from outside of which a view is taken, or that is written: it gets a name.
  void adopt(const at::Tensor& t, bool copied) {
    if (find(t) != nullptr) return;
    const std::int64_t size = t.numel() * static_cast<std::int64_t>(t.element_size());
    if (copied && size > kMaxCopy)
      refuse("a tensor of " + std::to_string(size) + " bytes from outside of the step was written in place");
    const std::int64_t key = key_of(own(t), t, gradient_of(t));
    if (!copied || size > kMaxCopy) {
      taped_.start.emplace_back(key, t);
    } else {
      const Unheard unheard;
      taped_.start.emplace_back(key, t.detach().clone());
    }
  }
  void written(const at::Tensor& t, TapedOp& taped) {
    adopt(t, true);
    taped.writes.push_back(find(t)->number);
  }

  c10::IValue packed(const at::Tensor& t, TapedOp& taped) {
    taped.trains = taped.trains || t.requires_grad();
    if (const std::int64_t key = name(t); key != 0) return c10::ivalue::Tuple::create(key);
    if (!t.requires_grad() && one_number(t)) {  // a scale, most often halved before the step is looked at again
      const Unheard unheard;
      const at::Tensor copy = t.detach().clone();
      return c10::ivalue::Tuple::create(copy, version_of(copy));
    }
    return c10::ivalue::Tuple::create(t, version_of(t));
  }
  c10::IValue packed(const c10::IValue& value, TapedOp& taped) {
    if (value.isTensor()) {
      const at::Tensor& t = value.toTensor();
      if (!t.defined()) return {};
      if (!is_wrapped(t)) return packed(t, taped);
      const Unheard unheard;  // a number of Python's stays one
      return t.item();
    }
    bool any = false;
    if (value.isList()) each_tensor(value, [&](const at::Tensor&) { any = true; });
    if (!any) return value;
    c10::impl::GenericList list(c10::AnyType::get());
    for (const c10::IValue& item : value.toListRef()) list.push_back(packed(item, taped));
    return list;
  }
  static std::int64_t version_of(const at::Tensor& t) {
    return t.is_inference() ? -1 : t._version();
  }

  void keep_random(c10::ArrayRef<c10::IValue> args, TapedOp& taped) {
    const Unheard unheard;
    std::vector<c10::Device> devices;
    const auto note = [&](c10::Device device) {
      if (!device.is_cpu() && !device.is_meta() && std::find(devices.begin(), devices.end(), device) == devices.end())
        devices.push_back(device);
    };
    each_tensor(args, [&](const at::Tensor& t) { note(t.device()); });
    for (const c10::IValue& value : args) {
      if (value.isDevice()) note(value.toDevice());
      if (value.isGenerator()) taped.generators.emplace_back(value.toGenerator(), value.toGenerator().get_state());
    }
    taped.random.emplace_back(std::nullopt, state_of(at::globalContext().defaultGenerator(c10::Device(c10::kCPU))));
    for (const c10::Device device : devices)
      taped.random.emplace_back(device, state_of(at::globalContext().defaultGenerator(device)));
  }
  static at::Tensor state_of(at::Generator generator) {
    const std::lock_guard lock(generator.mutex());
    return generator.get_state();
  }

  Taped taped_;
  ska::flat_hash_map<c10::StorageImpl*, std::unique_ptr<Made>> made_;
  std::unordered_set<const c10::TensorImpl*> weighed_;
  std::optional<std::size_t> after_;  // ops before those, while these come
  std::size_t count_ = 0;             // of the others
  std::int64_t last_number_ = 0, held_ = 0;
};

}  // namespace nanhunt::tap
