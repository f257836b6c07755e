// SPDX-License-Identifier: Apache-2.0
// Define-by-run autograd: each differentiable op hangs a Node on its outputs. The backward pass runs nodes
// in reverse creation order; a node's kernel is one observed op, `<forward op>_backward`, in phase backward
// and with the forward op's module path. Gradients that meet are summed by an observed `add`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/engine/tensor.h"
#include "nanhunt/event.h"

namespace nanhunt::engine {

struct TensorImpl {
  std::shared_ptr<Storage> storage;
  DType dtype = DType::kF32;
  Shape sizes, strides;
  std::int64_t offset = 0;
  bool requires_grad = false;
  Tensor grad;
  std::shared_ptr<Node> grad_fn;  // null for leaves
};

// A value saved in forward for backward, with the version it had: using it after an in-place write throws.
// Holds the contents without their history, so an op may save its own output.
struct SavedTensor {
  std::string_view slot;
  Tensor tensor;
  std::uint32_t version = 0;
  ArgRole role = ArgRole::kSaved;
};
SavedTensor save(std::string_view slot, const Tensor& tensor, ArgRole role = ArgRole::kSaved);

// Where the gradient of one input goes: on to the op that made it, or into a leaf, or nowhere.
struct Edge {
  std::string_view slot;  // of the forward op
  Shape sizes;            // of the input, and so of its gradient
  DType dtype = DType::kF32;
  std::shared_ptr<Node> node;
  Tensor leaf;
  bool wanted() const { return node != nullptr || leaf.defined(); }
};

// One differentiable op that ran. Its text is string literals, except the module path.
struct Node {
  Node() = default;
  ~Node();  // takes long chains apart in a loop, not by recursion
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  std::string_view op;      // "addmm": its backward is "addmm_backward"
  std::string module;       // path at forward time
  std::uint64_t order = 0;  // creation number
  std::vector<Edge> edges;  // one per differentiable input
  std::vector<SavedTensor> saved;
  std::vector<OpScalar> scalars;
  DType dtype = DType::kF32;          // of the output, and so of its gradient
  DType compute_dtype = DType::kF32;  // in which backward computes
  bool custom = false;                // of a CustomFunction
  // Gets the gradient of the output; returns one gradient per edge (undefined: none). Empty once used.
  std::function<std::vector<Tensor>(const Tensor& grad_output, const Node& node)> backward;
};

bool grad_enabled();
class [[nodiscard]] NoGradGuard {
 public:
  NoGradGuard();
  ~NoGradGuard();
  NoGradGuard(const NoGradGuard&) = delete;
  NoGradGuard& operator=(const NoGradGuard&) = delete;

 private:
  bool previous_;
};

class [[nodiscard]] EnableGradGuard {
 public:
  EnableGradGuard();
  ~EnableGradGuard();
  EnableGradGuard(const EnableGradGuard&) = delete;
  EnableGradGuard& operator=(const EnableGradGuard&) = delete;

 private:
  bool previous_;
};

// Told of a backward() on this thread: each leaf once its gradient is whole, in the order in which the last part of it
// arrived, and the end. Not of grad().
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  virtual void on_gradient(const Tensor& leaf) = 0;
  virtual void on_backward_end() = 0;
};
class [[nodiscard]] ScopedGradientListener {
 public:
  explicit ScopedGradientListener(GradientListener& listener);
  ~ScopedGradientListener();
  ScopedGradientListener(const ScopedGradientListener&) = delete;
  ScopedGradientListener& operator=(const ScopedGradientListener&) = delete;

 private:
  GradientListener* previous_;
};

// Gradients of a one-element `loss` (seed 1, or `seed`) into .grad of every leaf reached; .grad accumulates.
// Both forms use the graph up: a second backward through any part of it throws.
void backward(const Tensor& loss, double seed = 1.0);
// Functional form: gradients with respect to `wrt`, no .grad is touched. Unreached entries are undefined.
std::vector<Tensor> grad(const Tensor& loss, const std::vector<Tensor>& wrt, double seed = 1.0);

}  // namespace nanhunt::engine
