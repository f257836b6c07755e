// SPDX-License-Identifier: Apache-2.0
#include "src/c_api/convert.h"

#include <limits>
#include <span>
#include <string>

namespace nanhunt::c_api {
namespace {

constexpr std::int32_t kMaxDims = 64;
constexpr std::int64_t kMaxElements = std::int64_t{1} << 48;

static_assert(NANHUNT_BOOL == static_cast<int>(DType::kBool) && NANHUNT_BOOL + 1 == kDTypeCount);
static_assert(NANHUNT_PHASE_VALIDATION == static_cast<int>(Phase::kValidation));
static_assert(NANHUNT_INDEX == static_cast<int>(ArgRole::kIndex));
static_assert(NANHUNT_LABEL == static_cast<int>(TensorRole::kLabel));
static_assert(NANHUNT_SCALER_GAVE_UP == static_cast<int>(ScalerAction::kGaveUp));

[[noreturn]] void misuse(const char* slot, const std::string& what) {
  throw Misuse(std::string("value '") + (slot == nullptr ? "" : slot) + "': " + what);
}

template <typename T>
void expect_list(const char* what, const T* list, std::size_t count) {
  if (list == nullptr && count != 0) {
    throw Misuse(std::string(what) + ": expected " + std::to_string(count) + " items, got NULL");
  }
}

}  // namespace

bool check_sizes(const char* slot, std::int32_t ndim, const std::int64_t* sizes) {
  if (ndim < 0 || ndim > kMaxDims) misuse(slot, "expected 0 to 64 dimensions, got " + std::to_string(ndim));
  const auto dims = static_cast<std::size_t>(ndim);
  if (dims != 0 && sizes == nullptr) misuse(slot, "expected sizes, got NULL");
  std::int64_t elements = 1;
  bool is_empty = false;
  for (const std::int64_t size : std::span(sizes, dims)) {
    if (size < 0) misuse(slot, "expected sizes of 0 and more, got " + std::to_string(size));
    is_empty |= size == 0;
    if (size > 0 && elements > kMaxElements / size) misuse(slot, "expected at most 2^48 elements, got more");
    if (size > 0) elements *= size;
  }
  return !is_empty;
}

void fill_strides(std::span<const std::int64_t> sizes, std::vector<std::int64_t>& strides) {
  strides.assign(sizes.size(), 0);
  std::int64_t step = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    strides[i] = step;
    step *= sizes[i] == 0 ? 1 : sizes[i];
  }
}

ValueView Converter::value(const char* slot, const nanhunt_value& given) {
  const bool has_elements = check_sizes(slot, given.ndim, given.sizes);
  ValueView view;
  view.tensor.data = given.data == nullptr && !has_elements ? &kNoElements : given.data;
  view.tensor.dtype = enum_of("dtype", given.dtype, DType::kBool);
  view.tensor.sizes = {given.sizes, static_cast<std::size_t>(given.ndim)};
  if (given.strides != nullptr) {
    view.tensor.strides = {given.strides, view.tensor.sizes.size()};
  } else {
    if (strides_used_ == strides_.size()) strides_.emplace_back();
    std::vector<std::int64_t>& strides = strides_[strides_used_++];
    fill_strides(view.tensor.sizes, strides);
    view.tensor.strides = strides;
  }
  view.storage = given.storage;
  view.version = given.version;
  view.offset = given.offset;
  return view;
}

OpEvent Converter::op(const nanhunt_op& given) {
  strides_used_ = 0;
  inputs_.clear();
  outputs_.clear();
  scalars_.clear();
  expect_list("inputs", given.inputs, given.input_count);
  expect_list("outputs", given.outputs, given.output_count);
  expect_list("scalars", given.scalars, given.scalar_count);
  for (const nanhunt_input& in : std::span(given.inputs, given.input_count)) {
    const ArgRole role = enum_of("role", in.role, ArgRole::kIndex);
    inputs_.push_back({text_of(in.slot), value(in.slot, in.value), role});
    if (role == ArgRole::kOverwritten) inputs_.back().value.tensor.data = nullptr;
  }
  for (const nanhunt_output& out : std::span(given.outputs, given.output_count)) {
    outputs_.push_back({text_of(out.slot), value(out.slot, out.value)});
  }
  for (const nanhunt_scalar& scalar : std::span(given.scalars, given.scalar_count)) {
    scalars_.push_back({text_of(scalar.name), scalar.value});
  }
  OpEvent event;
  event.step = given.step;
  event.micro_batch = given.micro_batch;
  event.phase = enum_of("phase", given.phase, Phase::kValidation);
  event.module = text_of(given.module);
  event.op = text_of(given.op);
  event.call_site = text_of(given.call_site);
  event.compute_dtype = enum_of("compute_dtype", given.compute_dtype, DType::kBool);
  event.inputs = inputs_;
  event.outputs = outputs_;
  event.scalars = scalars_;
  return event;
}

MarkEvent Converter::mark(const nanhunt_mark& given) {
  strides_used_ = 0;
  return {given.step, given.micro_batch, enum_of("mark", given.kind, TensorRole::kLabel), text_of(given.path),
          value(given.path, given.value)};
}

ScalerEvent Converter::scaler(const nanhunt_scaler_event& given) {
  ScalerEvent event;
  event.step = given.step;
  event.micro_batch = given.micro_batch;
  event.action = enum_of("action", given.action, ScalerAction::kGaveUp);
  event.optimizer = given.optimizer;
  event.found_inf = given.found_inf != 0;
  event.scale = given.scale;
  event.growth_tracker = given.growth_tracker;
  event.total_norm = given.total_norm;
  event.max_norm = given.max_norm;
  event.dynamic = given.dynamic != 0;
  event.growth_factor = given.growth_factor;
  event.backoff_factor = given.backoff_factor;
  event.growth_interval = given.growth_interval;
  event.text = text_of(given.text);
  return event;
}

nanhunt_stats stats_of(const TensorStats& from, std::uint32_t struct_size) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  nanhunt_stats to{};
  to.struct_size = struct_size;
  to.numel = from.numel;
  to.nan = from.nan;
  to.pos_inf = from.pos_inf;
  to.neg_inf = from.neg_inf;
  to.zero = from.zero;
  to.subnormal = from.subnormal;
  to.first_bad = from.first_nonfinite;
  const bool finite = from.has_finite();
  to.min = finite ? from.min : kNone;
  to.max = finite ? from.max : kNone;
  to.amax = finite ? from.amax : kNone;
  to.amin_nonzero = from.has_nonzero() ? from.amin_nonzero : kNone;
  to.sum = finite ? from.sum : kNone;
  to.sum_sq = finite ? from.sum_sq : kNone;
  return to;
}

}  // namespace nanhunt::c_api
