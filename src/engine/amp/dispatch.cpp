// SPDX-License-Identifier: Apache-2.0
#include "src/engine/amp/dispatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <unordered_map>

#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/ops.h"
#include "src/core/ops/autocast/cast_policy.h"
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
  AutocastState regions;
  int depth = 0;
  std::unordered_map<const TensorImpl*, CachedCast> cache;
};
RegionState& state() {
  thread_local RegionState region;
  return region;
}

std::size_t number_of(AutocastDevice device) { return static_cast<std::size_t>(device); }

// The 16-bit format that counts.
DType low_dtype() {
  const AutocastState& regions = state().regions;
  return regions.dtypes[number_of(regions.device)];
}

CastList list_now() {
  const AutocastState& regions = state().regions;
  if (regions.lists == CastLists::kApex) return CastList::kApex;
  return regions.device == AutocastDevice::kCpu ? CastList::kTorchCpu : CastList::kTorchCuda;
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
  return state().regions.cache && dtype == low_dtype() && input.dtype() == DType::kF32 && input.is_leaf() &&
         input.requires_grad() && spans_its_storage(input);
}

// Backward uses the graph up here, so a cast that a backward went through cannot serve another one.
bool is_used_up(const Tensor& cast) {
  const std::shared_ptr<Node>& node = cast.impl()->grad_fn;
  return node != nullptr && !node->backward;
}

// Apex asks whether a cast leads back to its parameter, where that matters.
bool is_lost_to_apex(const Tensor& cast) {
  return state().regions.lists == CastLists::kApex && grad_enabled() && !cast.requires_grad();
}

DType promoted(std::string_view op, std::span<const Tensor* const> inputs) {
  DType dtype = low_dtype();
  for (const Tensor* input : inputs) {
    if (!is_eligible(*input)) continue;
    // In order: once it is fp32, torch takes any format.
    if (input->dtype() == DType::kF32) {
      dtype = DType::kF32;
    } else if (dtype != DType::kF32 && input->dtype() != dtype) {
      fail(op, fmt::format("arguments of {} or fp32 under autocast", dtype_name(low_dtype())), describe(*input));
    }
  }
  return dtype;
}

// In the words of PyTorch and of Apex. Theirs is one op.
void refuse_banned(std::span<const Tensor* const> inputs) {
  if (list_now() != CastList::kApex) {
    throw std::invalid_argument(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
        "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
        "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
        "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
        "safe to autocast.");
  }
  const bool any_half = std::ranges::any_of(
      inputs, [](const Tensor* input) { return input->defined() && input->dtype() == DType::kF16; });
  if (!any_half) return;
  throw std::invalid_argument(
      "\namp does not work out-of-the-box with `F.binary_cross_entropy` or `torch.nn.BCELoss.` "
      "It requires that the output of the previous function be already a FloatTensor. \n\n"
      "Most models have a Sigmoid right before BCELoss. In that case, you can use\n"
      "    torch.nn.BCEWithLogitsLoss\nto combine Sigmoid+BCELoss into a single layer "
      "that is compatible with amp.\nAnother option is to add\n"
      "    amp.register_float_function(torch, 'sigmoid')\nbefore calling `amp.init()`.\n"
      "If you _really_ know what you are doing, you can disable this warning by passing "
      "allow_banned=True to `amp.init()`.");
}

}  // namespace

bool casts_arguments(std::string_view op) {
  const std::optional<CastPolicy> policy = cast_policy(op, list_now());
  return policy && *policy != CastPolicy::kFp32Output && *policy != CastPolicy::kAppendDtype;
}

std::optional<DType> argument_dtype(std::string_view op, std::span<const Tensor* const> inputs) {
  switch (cast_policy(op, list_now()).value_or(CastPolicy::kAppendDtype)) {
    case CastPolicy::kLow:
      return low_dtype();
    case CastPolicy::kFp32:
      return DType::kF32;
    case CastPolicy::kPromote:
      return promoted(op, inputs);
    case CastPolicy::kBanned:
      refuse_banned(inputs);
      return std::nullopt;
    case CastPolicy::kFp32Output:
    case CastPolicy::kAppendDtype:
      break;
  }
  throw std::logic_error(fmt::format("[{}] expected an autocast policy that casts arguments", op));
}

Tensor cast_argument(const Tensor& input, std::optional<DType> dtype) {
  if (!dtype || !is_eligible(input) || input.dtype() == *dtype) return input;
  if (!is_cacheable(input, *dtype)) return to(input, *dtype);
  CachedCast& entry = state().cache[input.impl().get()];
  if (entry.source.lock() != input.impl() || is_used_up(entry.cast) || is_lost_to_apex(entry.cast)) {
    const bool tracked = state().regions.lists == CastLists::kTorch && !state().regions.cache_drops_gradients;
    std::optional<EnableGradGuard> gradients;
    if (tracked) gradients.emplace();
    entry = {input.impl(), to(input, *dtype)};
  }
  return entry.cast;
}

}  // namespace amp::detail

DType amp::output_dtype(std::string_view op, const Tensor& self) {
  if (!amp::detail::is_on || !detail::is_eligible(self)) return self.dtype();
  const std::optional<CastPolicy> policy = cast_policy(op, detail::list_now());
  const bool widens = policy == CastPolicy::kFp32Output || policy == CastPolicy::kAppendDtype;
  return widens ? DType::kF32 : self.dtype();
}

Autocast::Autocast(const AutocastOptions& options)
    : previous_(amp::detail::state().regions), was_on_(amp::detail::is_on) {
  AutocastState next = previous_;
  const std::size_t at = amp::detail::number_of(options.device);
  next.dtypes[at] = options.dtype.value_or(next.dtypes[at]);
  next.enabled[at] = options.enabled;
  next.cache = options.cache.value_or(next.cache);
  next.lists = options.lists;
  next.cache_drops_gradients = options.cache_drops_gradients;
  if (options.enabled && next.dtypes[at] != DType::kF16 && next.dtypes[at] != DType::kBF16) {
    if (options.device != AutocastDevice::kCpu) {
      fail("autocast", "fp16 or bf16", std::string(dtype_name(next.dtypes[at])));
    }
    warning_ =
        "In CPU autocast, but the target dtype is not supported. Disabling autocast.\n"
        "CPU Autocast only supports dtypes of torch.bfloat16, torch.float16 currently.";
    next.enabled[at] = false;
  }
  if (next.enabled[at] || !next.enabled[amp::detail::number_of(next.device)]) next.device = options.device;
  if (!next.enabled[at] && next.enabled[1 - at]) next.device = static_cast<AutocastDevice>(1 - at);
  amp::detail::state().regions = next;
  amp::detail::is_on = next.enabled[amp::detail::number_of(next.device)];
  ++amp::detail::state().depth;
}

Autocast::~Autocast() {
  if (--amp::detail::state().depth == 0) clear_autocast_cache();
  amp::detail::state().regions = previous_;
  amp::detail::is_on = was_on_;
}

AutocastState autocast_state() {
  AutocastState now = amp::detail::state().regions;
  if (!amp::detail::is_on) now.enabled = {};  // inside an op that was cast
  return now;
}

bool autocast_enabled() { return amp::detail::is_on; }
DType autocast_dtype() { return amp::detail::low_dtype(); }
bool autocast_cache_enabled() { return amp::detail::state().regions.cache; }
void clear_autocast_cache() { amp::detail::state().cache.clear(); }

}  // namespace nanhunt::engine
