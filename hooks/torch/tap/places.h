// SPDX-License-Identifier: Apache-2.0
// Where an op runs: the module path in forward, and the same for its backward.
//
// Autograd numbers its nodes in forward, so the numbers handed out while a module was on top belong to it, and those
// handed out since the op before belong to the op. A device's part of a backward runs in a thread of the device. What a
// checkpoint runs again there is counted there, and a backward inside of that backward meets those nodes.
#pragma once

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string_view>
#include <thread>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

namespace nanhunt::tap {

struct Place {
  std::int64_t path = 0, site = 0;  // numbers of texts; 0: none
};

class Places {
 public:
  explicit Places(std::int64_t loss) : loss_(loss), thread_(std::this_thread::get_id()) { claims_ = &own_; }

  std::int64_t path = 0;
  bool recomputing() const { return recomputing_ > 0; }

  void enter_root(std::int64_t root) {
    claim({path, 0});
    stack_.assign(1, path);
    recomputing_ = 0;
    path = root;
  }
  // `loss`: what follows computes one.
  void exit_root(bool loss) {
    claim({path, 0});
    stack_.clear();
    path = loss ? loss_ : 0;
  }
  bool is_outside() const { return stack_.empty(); }
  // -1: a module without a name, whose ops belong to the one around it.
  void enter(std::int64_t module) {
    claim({path, 0});
    stack_.push_back(path);
    if (torch::autograd::get_current_graph_task_id() >= 0) {  // inside backward: a checkpoint runs it again
      if (recomputing_++ == 0) {
        path = backward().path;
        claims_ = &of_this_thread();
      }
    }
    if (module >= 0) path = module;
  }
  void exit() {
    claim({path, 0});
    if (!stack_.empty()) {
      path = stack_.back();
      stack_.pop_back();
    }
    if (recomputing_ > 0 && --recomputing_ == 0) claims_ = &own_;
  }

  // Numbers handed out since the last claim are this place's.
  bool is_to_claim() const { return at::sequence_number::peek() > claims_->last; }
  void claim(Place place) {
    const std::uint64_t end = at::sequence_number::peek();
    if (end <= claims_->last) return;
    claims_->last = end;
    claims_->ends.push_back(end);
    claims_->owners.push_back(place);
  }

  void begin_step() {
    claims_ = &own_;
    thread_ = std::this_thread::get_id();
    own_.forget();
    for (auto& [thread, claims] : threads_) claims.forget();
    claim({0, 0});
    path = 0;
  }
  void begin_backward() { outermost_ = -1; }

  void forget_parameters() { parameters_.clear(); }
  void name_parameter(const void* tensor, std::int64_t text) { parameters_[tensor] = text; }

  static bool is_backward_running() { return torch::autograd::get_current_graph_task_id() >= 0; }

  // Of the node that runs now; the loss's where there is none.
  Place backward() {
    const auto node = torch::autograd::get_current_node();
    if (node == nullptr) return {loss_, 0};
    const std::uint64_t number = node->sequence_nr();
    if (number == UINT64_MAX) {
      const auto* accumulate = dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get());
      if (accumulate == nullptr) return {0, 0};
      const auto known = parameters_.find(accumulate->variable.unsafeGetTensorImpl());
      return {known == parameters_.end() ? 0 : known->second, 0};
    }
    const int task = torch::autograd::get_current_graph_task_id();
    if (outermost_ < 0) outermost_ = task;
    const Claims& claims = task == outermost_ ? own_ : of_this_thread();
    const auto at = std::upper_bound(claims.ends.begin(), claims.ends.end(), number) - claims.ends.begin();
    return static_cast<std::size_t>(at) < claims.owners.size() ? claims.owners[static_cast<std::size_t>(at)]
                                                               : Place{loss_, 0};
  }

  // Whether Python may run what runs: an autograd.Function's backward, whose class is in a library that is not linked,
  // or a hook of the node, or what follows where a gradient is accumulated.
  static bool may_be_python() {
    const auto node = torch::autograd::get_current_node();
    return node == nullptr || !node->tensor_pre_hooks().empty() || !node->pre_hooks().empty() ||
           !node->post_hooks().empty() || std::string_view(typeid(*node).name()) == "N5torch8autograd6PyNodeE" ||
           dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get()) != nullptr;
  }

  std::int64_t loss() const { return loss_; }

 private:
  // Whose the nodes are that one thread has made: autograd counts them for each thread.
  struct Claims {
    static constexpr std::size_t kMost = std::size_t{1} << 20;
    std::uint64_t last = 0;           // the first number that nobody has claimed
    std::vector<std::uint64_t> ends;  // of intervals of sequence numbers, ascending
    std::vector<Place> owners;
    std::size_t previous = 0;         // where the claims of this step begin

    // What the step before the last claimed.
    void forget() {
      const auto keep = static_cast<std::ptrdiff_t>(ends.size() < kMost ? previous : ends.size());
      ends.erase(ends.begin(), ends.begin() + keep);
      owners.erase(owners.begin(), owners.begin() + keep);
      previous = ends.size();
    }
  };
  Claims& of_this_thread() {
    const auto thread = std::this_thread::get_id();
    return thread == thread_ ? own_ : threads_[thread];
  }

  const std::int64_t loss_;
  std::vector<std::int64_t> stack_;
  int recomputing_ = 0;  // depth of modules that a checkpoint runs again, inside backward
  std::thread::id thread_;
  Claims own_;
  Claims* claims_;
  std::map<std::thread::id, Claims> threads_;
  int outermost_ = -1;  // autograd's number of the backward that the program called
  std::unordered_map<const void*, std::int64_t> parameters_;
};

}  // namespace nanhunt::tap
