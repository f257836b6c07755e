// SPDX-License-Identifier: Apache-2.0
#include "src/engine/amp/dispatch.h"

#include <fmt/format.h>

#include <stdexcept>
#include <unordered_map>

#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/ops.h"
#include "src/engine/amp/policy.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace amp::detail {

constinit thread_local bool is_on = false;

namespace {

// The rest of the state is read only while casting, or on entering and leaving a region.
struct CachedCast {
  std::weak_ptr<TensorImpl> source;  // its address may be recycled
  Tensor cast;
};
struct RegionState {
  DType dtype = DType::kF16;
  bool cache_enabled = true;
  CastLists lists = CastLists::kTorch;
  int depth = 0;
  std::unordered_map<const TensorImpl*, CachedCast> cache;
};
RegionState& state() {
  thread_local RegionState region;
  return region;
}

bool is_eligible(const Tensor& tensor) {
  return tensor.defined() && is_floating(tensor.dtype()) && tensor.dtype() != DType::kF64;
}

bool spans_its_storage(const Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_contiguous() &&
         static_cast<std::size_t>(tensor.numel()) * dtype_size(tensor.dtype()) == tensor.storage()->bytes();
}

// Parameters: fp32 leaves with gradient that are no view of something larger.
bool is_cacheable(const Tensor& input, DType dtype) {
  const RegionState& region = state();
  return region.cache_enabled && dtype == region.dtype && input.dtype() == DType::kF32 && input.is_leaf() &&
         input.requires_grad() && spans_its_storage(input);
}

// Backward uses the graph up here, so a cast that a backward went through cannot serve another one.
bool is_used_up(const Tensor& cast) {
  const std::shared_ptr<Node>& node = cast.impl()->grad_fn;
  return node != nullptr && !node->backward;
}

Policy row_of(std::string_view op) {
  const std::optional<Policy> policy = policy_of(op, state().lists);
  if (!policy) throw std::logic_error(fmt::format("[{}] expected a row in the autocast table, got none", op));
  return *policy;
}

DType promoted(std::string_view op, std::initializer_list<const Tensor*> inputs) {
  DType dtype = state().dtype;
  for (const Tensor* input : inputs) {
    if (!is_eligible(*input)) continue;
    if (input->dtype() == DType::kF32) {
      dtype = DType::kF32;
    } else if (input->dtype() != state().dtype) {
      fail(op, fmt::format("arguments of {} or fp32 under autocast", dtype_name(state().dtype)), describe(*input));
    }
  }
  return dtype;
}

}  // namespace

bool casts_arguments(std::string_view op) {
  const std::optional<Policy> policy = policy_of(op, state().lists);
  return policy && *policy != Policy::kFp32Output && *policy != Policy::kAppendDtype;
}

DType argument_dtype(std::string_view op, std::initializer_list<const Tensor*> inputs) {
  switch (row_of(op)) {
    case Policy::kLow:
      return state().dtype;
    case Policy::kFp32:
      return DType::kF32;
    case Policy::kPromote:
      return promoted(op, inputs);
    case Policy::kFp32Output:
    case Policy::kAppendDtype:
      break;
  }
  throw std::logic_error(fmt::format("[{}] expected an autocast policy that casts arguments", op));
}

Tensor cast_argument(const Tensor& input, DType dtype) {
  if (!is_eligible(input) || input.dtype() == dtype) return input;
  if (!is_cacheable(input, dtype)) return to(input, dtype);
  CachedCast& entry = state().cache[input.impl().get()];
  if (entry.source.lock() != input.impl() || is_used_up(entry.cast)) entry = {input.impl(), to(input, dtype)};
  return entry.cast;
}

}  // namespace amp::detail

DType amp::output_dtype(std::string_view op, const Tensor& self) {
  if (!intercepts() || !detail::is_eligible(self)) return self.dtype();
  const Policy policy = detail::row_of(op);
  if (policy != Policy::kFp32Output && policy != Policy::kAppendDtype) {
    throw std::logic_error(fmt::format("[{}] expected an autocast policy that widens the result", op));
  }
  return DType::kF32;
}

namespace {

AutocastOptions current_options() {
  const amp::detail::RegionState& region = amp::detail::state();
  return {.enabled = amp::detail::is_on, .dtype = region.dtype, .cache = region.cache_enabled, .lists = region.lists};
}

void apply(const AutocastOptions& options) {
  amp::detail::is_on = options.enabled;
  amp::detail::state().dtype = options.dtype;
  amp::detail::state().cache_enabled = options.cache;
  amp::detail::state().lists = options.lists;
}

}  // namespace

Autocast::Autocast(const AutocastOptions& options) : previous_(current_options()) {
  if (options.dtype != DType::kF16 && options.dtype != DType::kBF16) {
    fail("autocast", "fp16 or bf16", std::string(dtype_name(options.dtype)));
  }
  apply(options);
  ++amp::detail::state().depth;
}

Autocast::~Autocast() {
  if (--amp::detail::state().depth == 0) clear_autocast_cache();
  apply(previous_);
}

bool autocast_enabled() { return amp::detail::is_on; }
DType autocast_dtype() { return amp::detail::state().dtype; }
bool autocast_cache_enabled() { return amp::detail::state().cache_enabled; }
void clear_autocast_cache() { amp::detail::state().cache.clear(); }

}  // namespace nanhunt::engine
