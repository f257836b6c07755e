// SPDX-License-Identifier: Apache-2.0
// cat: tensors side by side along one dimension, promoted to a common dtype.
#include <array>

#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/ops/device/device_calls.h"
#include "src/engine/ops/op.h"
#include "src/engine/ops/loops/strided.h"

namespace nanhunt::engine {
namespace {

// Slots outlive the graph, so they are literals; that bounds how many tensors one call takes.
constexpr std::array<std::string_view, 16> kSlots = {
    "tensors0", "tensors1", "tensors2",  "tensors3",  "tensors4",  "tensors5",  "tensors6",  "tensors7",
    "tensors8", "tensors9", "tensors10", "tensors11", "tensors12", "tensors13", "tensors14", "tensors15"};

// The part [start, start + length) of a dimension.
Tensor part(const Tensor& whole, int dim, std::int64_t start, std::int64_t length) {
  const auto d = static_cast<std::size_t>(dim);
  Shape sizes = whole.sizes();
  sizes[d] = length;
  return make_view(whole, std::move(sizes), whole.strides(), whole.storage_offset() + start * whole.strides()[d]);
}

struct CatPlan {
  int dim = 0;
  DType dtype = DType::kF32;
  Shape sizes;
  std::vector<std::int64_t> starts;  // of each tensor
};

CatPlan check(const std::vector<Tensor>& tensors, int dim) {
  if (tensors.empty() || tensors.size() > kSlots.size()) {
    fail("cat", "1 to " + std::to_string(kSlots.size()) + " tensors", std::to_string(tensors.size()));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) expect_floating("cat", tensors[i], kSlots[i]);
  CatPlan plan{wrap_dim("cat", tensors[0], dim), tensors[0].dtype(), tensors[0].sizes(), {}};
  const auto d = static_cast<std::size_t>(plan.dim);
  plan.sizes[d] = 0;
  for (const Tensor& tensor : tensors) {
    Shape others = tensor.sizes();
    if (others.size() == plan.sizes.size()) others[d] = plan.sizes[d];
    if (others != plan.sizes) {
      fail("cat", "shapes that differ only in dimension " + std::to_string(plan.dim),
           describe(tensors[0].sizes()) + " and " + describe(tensor.sizes()));
    }
    plan.starts.push_back(plan.sizes[d]);
    plan.sizes[d] += tensor.size(plan.dim);
    plan.dtype = promote(plan.dtype, tensor.dtype());
  }
  return plan;
}

Device device_of(const std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors) common_device("cat", {&tensors[0], &tensor});
  return tensors[0].device();
}

}  // namespace

Tensor cat(const std::vector<Tensor>& tensors, int dim) {
  if (amp::intercepts("cat")) {
    return amp::run_list("cat", [dim](const std::vector<Tensor>& list) { return cat(list, dim); }, tensors);
  }
  const CatPlan plan = check(tensors, dim);
  const Tensor out = Tensor::empty(plan.sizes, plan.dtype, device_of(tensors));
  std::vector<Arg> inputs;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    copy_elements(part(out, plan.dim, plan.starts[i], tensors[i].size(plan.dim)), tensors[i]);
    inputs.push_back({kSlots[i], &tensors[i]});
  }
  return finish("cat", plan.dtype, out, Args(inputs), {{"dim", static_cast<double>(plan.dim)}}, {},
                [plan](const Tensor& g, const Node& node) {
                  std::vector<Tensor> gradients(node.edges.size());
                  for (std::size_t i = 0; i < gradients.size(); ++i) {
                    const Edge& edge = node.edges[i];
                    if (!edge.wanted()) continue;
                    const Tensor mine =
                        part(g, plan.dim, plan.starts[i], edge.sizes[static_cast<std::size_t>(plan.dim)]);
                    gradients[i] = Tensor::empty(edge.sizes, edge.dtype, g.device());
                    copy_elements(gradients[i], mine);
                  }
                  return gradients;
                });
}

}  // namespace nanhunt::engine
