// SPDX-License-Identifier: Apache-2.0
// Apex's DistributedDataParallel: buckets by the order of arrival, and the arithmetic of one.
#include "nanhunt/engine/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/ops.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

// The order in which Apex goes through the formats.
constexpr std::array kApexFormats = {DType::kF16, DType::kF32, DType::kF64, DType::kBF16};
constexpr std::size_t kMostJoined = 16;  // tensors of one cat

std::size_t format_index(DType dtype) {
  const auto at = std::find(kApexFormats.begin(), kApexFormats.end(), dtype);
  if (at == kApexFormats.end()) fail("data_parallel", "floating parameters", dtype_name(dtype));
  return static_cast<std::size_t>(at - kApexFormats.begin());
}

// A copy of all, one behind the other.
Tensor flattened(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> parts;
  for (const Tensor& tensor : tensors) parts.push_back(reshape(tensor, {tensor.numel()}));
  do {
    std::vector<Tensor> joined;
    for (std::size_t i = 0; i < parts.size(); i += kMostJoined) {
      const auto end = parts.begin() + static_cast<std::ptrdiff_t>(std::min(parts.size(), i + kMostJoined));
      joined.push_back(cat({parts.begin() + static_cast<std::ptrdiff_t>(i), end}));
    }
    parts = std::move(joined);
  } while (parts.size() > 1);
  return parts[0];
}

void copy_out(const Tensor& flat, const std::vector<Tensor>& tensors) {
  std::int64_t start = 0;
  for (Tensor tensor : tensors) {
    copy_(tensor, reshape(narrow(flat, 0, start, tensor.numel()), tensor.sizes()));
    start += tensor.numel();
  }
}

std::vector<std::vector<Tensor>> by_format(const std::vector<Tensor>& tensors) {
  std::vector<std::vector<Tensor>> out(kApexFormats.size());
  for (const Tensor& tensor : tensors) out[format_index(tensor.dtype())].push_back(tensor);
  return out;
}

}  // namespace

void broadcast_all(const std::vector<Tensor>& tensors, RankGroup& ranks) {
  const ScopedPhase phase(Phase::kComm);
  const ScopedModule module("");
  const NoGradGuard no_grad;
  for (const std::vector<Tensor>& group : by_format(tensors)) {
    if (group.empty()) continue;
    Tensor flat = flattened(group);
    copy_out(broadcast_(flat, ranks), group);
  }
}

DataParallel::DataParallel(std::vector<NamedTensor> parameters, const DataParallelOptions& options)
    : parameters_(std::move(parameters)), options_(options) {
  if (options_.ranks == nullptr) fail("data_parallel", "a group of ranks", "none");
  if (options_.message_size <= 0)
    fail("data_parallel", "a message_size above 0", std::to_string(options_.message_size));
  if (!(options_.gradient_predivide_factor > 0)) {
    fail("data_parallel", "a gradient_predivide_factor above 0", fmt::format("{}", options_.gradient_predivide_factor));
  }
  if (options_.delay_allreduce && !options_.allreduce_trigger_params.empty()) {
    fail("data_parallel", "allreduce_trigger_params without delay_allreduce", "both");
  }
  for (const std::string& path : options_.allreduce_trigger_params) {
    const bool known = std::any_of(parameters_.begin(), parameters_.end(),
                                   [&](const NamedTensor& entry) { return entry.path == path; });
    if (!known) fail("data_parallel", "paths of parameters as allreduce_trigger_params", "'" + path + "'");
  }
  std::vector<Tensor> all;
  for (const NamedTensor& entry : parameters_) all.push_back(entry.tensor);
  broadcast_all(all, *options_.ranks);
}

void DataParallel::begin_forward() {
  std::vector<Tensor> active;
  for (const NamedTensor& entry : parameters_) {
    if (entry.tensor.requires_grad()) active.push_back(entry.tensor);
  }
  const bool same = std::equal(active.begin(), active.end(), active_.begin(), active_.end(),
                               [](const Tensor& a, const Tensor& b) { return a.impl() == b.impl(); });
  arrived_ = false;
  if (!same || refresh_) {
    active_ = std::move(active);
    triggers_.clear();
    for (const NamedTensor& entry : parameters_) {
      if (!entry.tensor.requires_grad()) continue;
      triggers_.push_back(std::find(options_.allreduce_trigger_params.begin(), options_.allreduce_trigger_params.end(),
                                    entry.path) != options_.allreduce_trigger_params.end());
    }
    refresh_ = true;
    open_.assign(kApexFormats.size(), {});
    buckets_.clear();
    return;
  }
  next_bucket_ = 0;
  filled_.clear();
  for (const Bucket& bucket : buckets_) filled_.emplace_back(bucket.slots.size(), false);
}

std::size_t DataParallel::index_of(const Tensor& leaf) const {
  const auto at = std::find_if(active_.begin(), active_.end(),
                               [&](const Tensor& parameter) { return parameter.impl() == leaf.impl(); });
  return static_cast<std::size_t>(at - active_.begin());
}

void DataParallel::on_gradient(const Tensor& leaf) {
  const std::size_t index = index_of(leaf);
  if (!enabled_ || index == active_.size()) return;  // not a parameter of this model
  arrived_ = true;
  if (options_.delay_allreduce) return;
  if (refresh_) {
    record(index);
  } else {
    fill(index);
  }
}

void DataParallel::record(std::size_t index) {
  Open& open = open_[format_index(active_[index].dtype())];
  open.slots.push_back(index);
  open.elements += active_[index].numel();
  const bool by_size = options_.allreduce_trigger_params.empty();
  const bool full = by_size ? open.elements >= options_.message_size : triggers_[index];
  if (!full) return;
  buckets_.push_back({std::move(open.slots)});
  open = {};
}

void DataParallel::fill(std::size_t index) {
  const auto [bucket, slot] = place_[index];
  if (bucket == buckets_.size() || filled_[bucket][slot]) {
    throw std::logic_error(fmt::format(
        "[data_parallel] expected one gradient of each parameter in its slot between two forward passes, got {} of "
        "parameter {}: with several backward passes use delay_allreduce, or switch the reduction off until the last",
        bucket == buckets_.size() ? "an unexpected one" : "another one", index));
  }
  filled_[bucket][slot] = true;
  while (next_bucket_ < buckets_.size() && std::ranges::all_of(filled_[next_bucket_], [](bool is) { return is; })) {
    std::vector<Tensor> gradients;
    for (const std::size_t i : buckets_[next_bucket_].slots) gradients.push_back(active_[i].grad());
    ++next_bucket_;
    reduce(gradients);
  }
}

void DataParallel::on_backward_end() {
  if (!enabled_ || !arrived_) return;
  arrived_ = false;
  if (options_.delay_allreduce) {
    reduce_all();
  } else if (refresh_) {
    reduce_all();
    adopt_structure();
    refresh_ = false;
  } else if (next_bucket_ != buckets_.size()) {
    throw std::logic_error(
        fmt::format("[data_parallel] expected gradients for all {} buckets, got {}: a parameter got none in this "
                    "backward; use delay_allreduce for a model of which not all takes part in every step",
                    buckets_.size(), next_bucket_));
  }
}

// Rank 0's order is everybody's: a bucket must be the same on all ranks.
void DataParallel::adopt_structure() {
  for (Open& open : open_) {
    if (!open.slots.empty()) buckets_.push_back({std::move(open.slots)});
  }
  // How many buckets, how large each is, and the slots of all.
  std::vector<std::int64_t> told(1 + 2 * active_.size(), 0);
  told[0] = static_cast<std::int64_t>(buckets_.size());
  std::size_t at = 1 + active_.size();
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    told[1 + i] = static_cast<std::int64_t>(buckets_[i].slots.size());
    for (const std::size_t slot : buckets_[i].slots) told[at++] = static_cast<std::int64_t>(slot);
  }
  Tensor structure = Tensor::from_indices(told, {static_cast<std::int64_t>(told.size())});
  told = broadcast_(structure, *options_.ranks).to_indices();
  buckets_.assign(static_cast<std::size_t>(told[0]), {});
  place_.assign(active_.size(), {buckets_.size(), 0});
  at = 1 + active_.size();
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    for (std::int64_t k = 0; k < told[1 + i]; ++k) {
      const auto index = static_cast<std::size_t>(told[at++]);
      place_[index] = {i, buckets_[i].slots.size()};
      buckets_[i].slots.push_back(index);
    }
  }
}

void DataParallel::reduce_all() {
  std::vector<Tensor> gradients;
  for (const NamedTensor& entry : parameters_) {
    if (entry.tensor.grad().defined()) gradients.push_back(entry.tensor.grad());
  }
  for (const std::vector<Tensor>& group : by_format(gradients)) {
    if (!group.empty()) reduce(group);
  }
}

void DataParallel::reduce(const std::vector<Tensor>& gradients) {
  const ScopedPhase phase(Phase::kComm);
  const ScopedModule module("");
  const NoGradGuard no_grad;
  const double world = options_.ranks->size(), predivide = options_.gradient_predivide_factor;
  const DType dtype = gradients[0].dtype();
  Tensor flat = flattened(gradients);
  if (options_.allreduce_always_fp32) flat = to(flat, DType::kF32);
  if (predivide != 1) flat = mul(flat, 1 / predivide);
  all_reduce_(flat, *options_.ranks);
  if (options_.gradient_average) flat = mul(flat, predivide / world);
  copy_out(to(flat, dtype), gradients);
}

}  // namespace nanhunt::engine
