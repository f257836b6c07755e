// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/autograd.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "nanhunt/engine/anomaly.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/tensor_stats.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

thread_local bool grad_mode = true;
thread_local GradientListener* gradient_listener = nullptr;

// One backward pass. A node's inputs were made before it, so going down the creation numbers meets every
// node after all of its gradient has arrived.
class BackwardPass {
 public:
  explicit BackwardPass(const std::vector<Tensor>* wanted) : wanted_(wanted) {}

  void run(const Tensor& loss, double seed) {
    const Tensor gradient = Tensor::full(loss.sizes(), seed, loss.dtype(), loss.device());
    const Edge start{.slot = "loss",
                     .sizes = loss.sizes(),
                     .dtype = loss.dtype(),
                     .node = loss.impl()->grad_fn,
                     .leaf = loss.impl()->grad_fn ? Tensor() : loss};
    if (wanted_ != nullptr && start.node != nullptr) find_needed(start.node.get());
    deliver(start, gradient, current_module());
    while (!pending_.empty()) {
      const Pending next = std::move(pending_.begin()->second);
      pending_.erase(pending_.begin());
      if (wanted_ != nullptr) capture(next.node.get(), next.gradient);
      run_node(*next.node, next.gradient);
    }
  }

  // Leaves in the order in which their first gradient arrived.
  void store_into_leaves() {
    for (Leaf& leaf : leaves_) {
      if (!leaf.tensor.grad().defined()) {
        leaf.tensor.set_grad(leaf.gradient);
        continue;
      }
      const ScopedModule scope(leaf.module);
      leaf.tensor.set_grad(add(leaf.tensor.grad(), leaf.gradient));
    }
  }

  // Leaves in the order in which the last part of their gradient arrived.
  std::vector<Tensor> leaves_by_arrival() const {
    std::vector<const Leaf*> order;
    for (const Leaf& leaf : leaves_) order.push_back(&leaf);
    std::sort(order.begin(), order.end(), [](const Leaf* a, const Leaf* b) { return a->arrived < b->arrived; });
    std::vector<Tensor> out;
    for (const Leaf* leaf : order) out.push_back(leaf->tensor);
    return out;
  }

  std::vector<Tensor> take_wanted() {
    std::vector<Tensor> out(wanted_->size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      const TensorImpl* impl = (*wanted_)[i].impl().get();
      if (const auto node = captured_.find(impl->grad_fn.get()); impl->grad_fn && node != captured_.end()) {
        out[i] = node->second;
      } else if (const auto leaf = leaf_index_.find(impl); leaf != leaf_index_.end()) {
        out[i] = leaves_[leaf->second].gradient;
      }
    }
    return out;
  }

 private:
  struct Pending {
    std::shared_ptr<Node> node;
    Tensor gradient;
  };
  struct Leaf {
    Tensor tensor;
    Tensor gradient;
    std::string module;
    std::uint64_t arrived = 0;  // number of the last delivery
  };

  // Only nodes that lead to a wanted tensor run. Creation numbers ascend from inputs to outputs.
  void find_needed(Node* root) {
    std::map<std::uint64_t, Node*> reached;
    std::vector<Node*> stack{root};
    while (!stack.empty()) {
      Node* node = stack.back();
      stack.pop_back();
      if (!reached.emplace(node->order, node).second) continue;
      for (const Edge& edge : node->edges) {
        if (edge.node) stack.push_back(edge.node.get());
      }
    }
    std::set<const void*> targets;
    for (const Tensor& tensor : *wanted_) {
      targets.insert(tensor.impl().get());
      if (tensor.impl()->grad_fn) targets.insert(tensor.impl()->grad_fn.get());
    }
    for (const auto& [order, node] : reached) {
      const bool leads = std::any_of(node->edges.begin(), node->edges.end(), [&](const Edge& edge) {
        return edge.node ? needed_.count(edge.node.get()) != 0 || targets.count(edge.node.get()) != 0
                         : edge.leaf.defined() && targets.count(edge.leaf.impl().get()) != 0;
      });
      if (leads) needed_.insert(node);
    }
  }

  void capture(const Node* node, const Tensor& gradient) {
    for (const Tensor& tensor : *wanted_) {
      if (tensor.impl()->grad_fn.get() == node) captured_[node] = gradient;
    }
  }

  void run_node(Node& node, const Tensor& gradient) {
    if (wanted_ != nullptr && needed_.count(&node) == 0) return;
    if (!node.backward) {
      throw std::invalid_argument(
          fmt::format("[backward] expected a graph that was not used yet, got one whose '{}' already ran backward: "
                      "run the forward pass again before the next backward",
                      node.op));
    }
    for (const SavedTensor& saved : node.saved) {
      if (!saved.tensor.defined() || saved.tensor.version() == saved.version) continue;
      throw std::invalid_argument(fmt::format(
          "[{0}_backward] expected saved '{1}' at version {2}, got version {3}: it was written in place after {0} "
          "used it; clone it before the write, or write after backward",
          node.op, saved.slot, saved.version, saved.tensor.version()));
    }
    const std::vector<Tensor> gradients = node.backward(gradient, node);
    check(node, gradients);
    observe(node, gradient, gradients);
    if (detects_anomaly()) expect_no_nan(node, gradients);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].defined() && node.edges[i].wanted()) deliver(node.edges[i], gradients[i], node.module);
    }
    // The graph goes as it is used, so that memory does too.
    node.backward = nullptr;
    node.saved.clear();
    node.edges.clear();
  }

  static void check(const Node& node, const std::vector<Tensor>& gradients) {
    if (gradients.size() != node.edges.size()) {
      throw std::logic_error(
          fmt::format("[{}_backward] expected {} gradients, got {}", node.op, node.edges.size(), gradients.size()));
    }
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const Edge& edge = node.edges[i];
      if (!gradients[i].defined()) continue;
      if (gradients[i].sizes() == edge.sizes && gradients[i].dtype() == edge.dtype) continue;
      throw std::logic_error(fmt::format("[{}_backward] expected grad_{} as {} {}, got {}", node.op, edge.slot,
                                         dtype_name(edge.dtype), describe(edge.sizes), describe(gradients[i])));
    }
  }

  static void expect_no_nan(const Node& node, const std::vector<Tensor>& gradients) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      const Tensor there = gradients[i].device().is_cpu() ? gradients[i] : gradients[i].on(Device{});
      if (compute_stats(there.view(), StatsLevel::kCounts).nan == 0) continue;
      const std::string name =
          node.custom ? std::string(node.op) + "Backward" : backward_function_name(node.op, node.scalars);
      throw AnomalyError(fmt::format("Function '{}' returned nan values in its {}th output.", name, i));
    }
  }

  static void observe(const Node& node, const Tensor& gradient, const std::vector<Tensor>& gradients) {
    if (!ops_observed()) return;
    const std::string op = std::string(node.op) + "_backward";
    std::vector<std::string> slots(gradients.size());
    std::vector<OpArgument> inputs{{"grad_output", &gradient, gradient.version(), ArgRole::kRead}};
    for (const SavedTensor& saved : node.saved) {
      if (saved.tensor.defined()) inputs.push_back({saved.slot, &saved.tensor, saved.version, saved.role});
    }
    std::vector<OpArgument> outputs;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      slots[i] = "grad_" + std::string(node.edges[i].slot);
      outputs.push_back({slots[i], &gradients[i], gradients[i].version(), ArgRole::kRead});
    }
    notify_op({.op = op,
               .phase = Phase::kBackward,
               .module = node.module,
               .compute_dtype = node.compute_dtype,
               .inputs = inputs,
               .outputs = outputs,
               .scalars = node.scalars});
  }

  void deliver(const Edge& edge, const Tensor& gradient, const std::string& sender) {
    if (edge.node) {
      auto [at, is_new] = pending_.try_emplace(edge.node->order, Pending{edge.node, gradient});
      if (!is_new) at->second.gradient = sum(at->second.gradient, gradient, edge.node->module);
      return;
    }
    const auto [at, is_new] = leaf_index_.try_emplace(edge.leaf.impl().get(), leaves_.size());
    if (is_new) {
      leaves_.push_back({edge.leaf, gradient, sender});
    } else {
      Leaf& leaf = leaves_[at->second];
      leaf.gradient = sum(leaf.gradient, gradient, sender);
      leaf.module = sender;
    }
    leaves_[at->second].arrived = ++deliveries_;
  }

  static Tensor sum(const Tensor& a, const Tensor& b, const std::string& module) {
    const ScopedModule scope(module);
    return add(a, b);
  }

  const std::vector<Tensor>* wanted_;  // null: all leaves
  std::map<std::uint64_t, Pending, std::greater<>> pending_;
  std::vector<Leaf> leaves_;
  std::map<const TensorImpl*, std::size_t> leaf_index_;
  std::set<const Node*> needed_;
  std::map<const Node*, Tensor> captured_;
  std::uint64_t deliveries_ = 0;  // to leaves
};

void check_loss(std::string_view op, const Tensor& loss) {
  expect_floating(op, loss, "loss");
  if (loss.numel() != 1) fail(op, "a loss of one element", describe(loss));
  if (!loss.requires_grad()) fail(op, "a loss that depends on a tensor with requires_grad", "one that does not");
}

}  // namespace

SavedTensor save(std::string_view slot, const Tensor& tensor, ArgRole role) {
  return {slot, tensor.detach(), tensor.version(), role};
}

Node::~Node() {
  std::vector<std::shared_ptr<Node>> chain;
  const auto take_edges = [&chain](Node& node) {
    for (Edge& edge : node.edges) {
      if (edge.node) chain.push_back(std::move(edge.node));
    }
  };
  take_edges(*this);
  while (!chain.empty()) {
    const std::shared_ptr<Node> node = std::move(chain.back());
    chain.pop_back();
    if (node.use_count() == 1) take_edges(*node);
  }
}

bool grad_enabled() { return grad_mode; }
NoGradGuard::NoGradGuard() : previous_(std::exchange(grad_mode, false)) {}
NoGradGuard::~NoGradGuard() { grad_mode = previous_; }
EnableGradGuard::EnableGradGuard() : previous_(std::exchange(grad_mode, true)) {}
EnableGradGuard::~EnableGradGuard() { grad_mode = previous_; }

ScopedGradientListener::ScopedGradientListener(GradientListener& listener)
    : previous_(std::exchange(gradient_listener, &listener)) {}
ScopedGradientListener::~ScopedGradientListener() { gradient_listener = previous_; }

void backward(const Tensor& loss, double seed) {
  check_loss("backward", loss);
  const NoGradGuard no_grad;
  const ScopedPhase phase(Phase::kBackward);
  BackwardPass pass(nullptr);
  pass.run(loss, seed);
  pass.store_into_leaves();
  if (gradient_listener == nullptr) return;
  for (const Tensor& leaf : pass.leaves_by_arrival()) gradient_listener->on_gradient(leaf);
  gradient_listener->on_backward_end();
}

std::vector<Tensor> grad(const Tensor& loss, const std::vector<Tensor>& wrt, double seed) {
  check_loss("grad", loss);
  for (const Tensor& tensor : wrt) {
    expect_defined("grad", tensor, "wrt");
    if (!tensor.requires_grad()) fail("grad", "wrt tensors with requires_grad", "one without");
  }
  const NoGradGuard no_grad;
  const ScopedPhase phase(Phase::kBackward);
  BackwardPass pass(&wrt);
  pass.run(loss, seed);
  return pass.take_wanted();
}

}  // namespace nanhunt::engine
