// SPDX-License-Identifier: Apache-2.0
#include "src/record/device/device_elements.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <utility>

#include "src/record/measure/flush_count.h"
#include "src/record/measure/lost_updates.h"
#include "src/core/ops/op_info.h"

namespace nanhunt::record {
namespace {

using kernels::DeviceArray;
using kernels::EvidenceCall;
using Strides = std::vector<std::int64_t>;

bool same_contents(const ValueView& a, const ValueView& b) {
  return a.storage != 0 && a.storage == b.storage && a.version == b.version && a.offset == b.offset &&
         std::ranges::equal(a.tensor.sizes, b.tensor.sizes) && std::ranges::equal(a.tensor.strides, b.tensor.strides);
}

// Strides of a tensor over `sizes`; false: it does not broadcast to them.
bool strides_over(std::span<const std::int64_t> sizes, const TensorView& tensor, Strides& strides) {
  strides.assign(sizes.size(), 0);
  if (tensor.numel() == 1) return true;
  if (tensor.sizes.size() > sizes.size()) return false;
  const std::size_t lead = sizes.size() - tensor.sizes.size();
  for (std::size_t d = 0; d < tensor.sizes.size(); ++d) {
    if (tensor.sizes[d] == 1) continue;
    if (tensor.sizes[d] != sizes[lead + d]) return false;
    strides[lead + d] = tensor.strides[d];
  }
  return true;
}

// Dimensions that all arrays have without a step between them become one. False: too many are left. strides[0] is the
// output's.
bool fill_walk(EvidenceCall& call, std::span<const std::int64_t> sizes, std::span<const Strides> strides) {
  const auto array = [&](std::size_t k) -> DeviceArray& { return k == 0 ? call.out : call.in[k - 1]; };
  kernels::Walk& walk = call.walk;
  walk.count = 1;
  walk.dims = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    walk.count *= sizes[d];
    if (sizes[d] == 1) continue;
    bool joins = walk.dims > 0;
    for (std::size_t k = 0; k < strides.size() && joins; ++k) {
      joins = array(k).strides[walk.dims - 1] == strides[k][d] * sizes[d];
    }
    if (!joins && walk.dims == kernels::kMaxWalkDims) return false;
    if (!joins) walk.sizes[walk.dims++] = 1;
    walk.sizes[walk.dims - 1] *= sizes[d];
    for (std::size_t k = 0; k < strides.size(); ++k) array(k).strides[walk.dims - 1] = strides[k][d];
  }
  if (walk.dims == 0) {  // one element
    walk.dims = 1;
    walk.sizes[0] = 1;
  }
  return true;
}

// Where in an operand the element lies that meets the output's at `flat`.
std::int64_t place_in(std::span<const std::int64_t> operand, std::span<const std::int64_t> sizes, std::int64_t flat) {
  if (operand.size() > sizes.size()) return 0;  // a single number of higher rank
  std::vector<std::int64_t> coords(sizes.size());
  for (std::size_t d = sizes.size(); d-- > 0;) {
    coords[d] = flat % sizes[d];
    flat /= sizes[d];
  }
  std::int64_t place = 0;
  const std::size_t lead = sizes.size() - operand.size();
  for (std::size_t d = 0; d < operand.size(); ++d) {
    place = place * operand[d] + (operand[d] == 1 ? 0 : coords[lead + d]);
  }
  return place;
}

// The first output's rule, where all that it asks of is among the call's inputs. places: 1 + an input's place there; 0:
// none.
void ask_flushed(const OpEvent& event, FlushRule rule, std::span<const std::size_t> places,
                 EvidenceCall& call) {
  std::vector<FlushInput> inputs;
  for (std::size_t k = 0; k < event.inputs.size(); ++k) {
    std::size_t first = 0;  // the same contents have the same id
    while (first < k && !same_contents(event.inputs[first].value, event.inputs[k].value)) ++first;
    inputs.push_back({&event.inputs[k], nullptr, first + 1});
  }
  const auto factors = flush_factors(rule, inputs, event.scalars);
  const bool all_there = std::ranges::all_of(factors, [&](const auto& factor) { return places[factor.input] != 0; });
  call.counts_flushed = !factors.empty() && all_there;
  if (!call.counts_flushed) return;
  for (const FlushFactor& factor : factors) {
    const auto bit = static_cast<std::uint8_t>(1u << (places[factor.input] - 1));
    (factor.must_be_nonzero ? call.must_be_nonzero : call.must_not_be_inf) |= bit;
  }
}

bool ask_output(const OpEvent& event, const DeviceOperands& operands, std::size_t output, EvidenceCall& call,
                ElementRequest::Output& asked) {
  const OpTraits traits = op_traits(event.op);
  const TensorView& shape = event.outputs[output].value.tensor;
  const DeviceOperand& made = operands.outputs[output];
  call.of = static_cast<std::uint32_t>(made.reading);
  call.out.dtype = shape.dtype;
  call.out.data = const_cast<void*>(made.address);
  asked.output = output;
  asked.sizes.assign(shape.sizes.begin(), shape.sizes.end());
  std::vector<Strides> strides(1, Strides(shape.strides.begin(), shape.strides.end()));
  std::vector<std::size_t> places(event.inputs.size(), 0);
  for (std::size_t i = 0; i < event.inputs.size() && call.inputs < kernels::kMaxFoundInputs; ++i) {
    const OpInput& in = event.inputs[i];
    const TensorView& view = in.value.tensor;
    const bool mixes = in.role != ArgRole::kMask && in.role != ArgRole::kIndex && in.role != ArgRole::kOverwritten;
    if (!mixes || traits.elements == ElementMap::kNone || view.numel() <= 0) continue;
    const bool same = std::ranges::equal(view.sizes, shape.sizes);
    if (traits.elements == ElementMap::kSameShape && !same && view.numel() != 1) continue;
    Strides mine;
    if (!strides_over(shape.sizes, view, mine)) continue;
    DeviceArray& array = call.in[call.inputs];
    array.dtype = view.dtype;
    if (const void* address = operands.inputs[i].address; address != nullptr) {
      array.data = const_cast<void*>(address);
    } else if (view.data != nullptr && view.numel() == 1) {  // of the host
      array.is_number = true;
      array.number = load_as_f64(view.dtype, view.data);
    } else {
      continue;
    }
    strides.push_back(std::move(mine));
    asked.operands.push_back({i, {view.sizes.begin(), view.sizes.end()}});
    places[i] = static_cast<std::size_t>(++call.inputs);
  }
  if (output == 0 && traits.flush != FlushRule::kNotMeasured) ask_flushed(event, traits.flush, places, call);
  asked.counts_flushed = call.counts_flushed;
  return fill_walk(call, shape.sizes, strides);
}

}  // namespace

bool ask_elements(const OpEvent& event, const DeviceOperands& operands, std::vector<EvidenceCall>& calls,
                  ElementRequest& asked) {
  asked.first_call = calls.size();
  for (std::size_t i = 0; i < event.outputs.size(); ++i) {
    const DeviceOperand& made = operands.outputs[i];
    // Kernels for elements know the dtypes of the engine's ops.
    const DType dtype = event.outputs[i].value.tensor.dtype;
    const bool known = is_floating(dtype) && dtype != DType::kE4M3FN && dtype != DType::kE5M2;
    if (made.address == nullptr || made.reading == kNoReading || !made.is_new || !known) continue;
    EvidenceCall call;
    ElementRequest::Output output;
    if (!ask_output(event, operands, i, call, output)) continue;
    calls.push_back(call);
    asked.outputs.push_back(std::move(output));
  }
  return !asked.outputs.empty();
}

std::optional<kernels::UpdatesCall> ask_updates(const OpEvent& event, const DeviceOperands& operands) {
  const std::optional<DeferredUpdate> update = deferred_update(event);
  if (!update) return std::nullopt;
  kernels::UpdatesCall call;
  call.formula = update->formula;
  call.count = update->self->numel();
  const auto fill = [&](DeviceArray& array, const TensorView* wanted) {
    if (wanted == nullptr) return true;
    array.dtype = wanted->dtype;
    const auto look_in = [&](auto values, std::span<const DeviceOperand> its) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (&values[i].value.tensor == wanted) array.data = const_cast<void*>(its[i].address);
      }
    };
    look_in(event.inputs, operands.inputs);
    look_in(event.outputs, operands.outputs);
    return array.data != nullptr;
  };
  if (!fill(call.self, update->self) || !fill(call.a, update->a) || !fill(call.b, update->b)) return std::nullopt;
  return call;
}

kernels::OriginCall ask_origins(const OpEvent& event, const DeviceOperands& operands, ElementRequest& asked) {
  kernels::OriginCall origins;
  if (!asked.outputs.empty()) {
    origins.decided_by = static_cast<std::uint32_t>(asked.first_call + asked.outputs.size() - 1);
  }
  const OpTraits traits = op_traits(event.op);
  const auto show = [&](bool of_output, std::size_t index, const DeviceOperand& its) {
    const TensorView& tensor = (of_output ? event.outputs[index].value : event.inputs[index].value).tensor;
    const bool is_shown = its.reading == kNoReading && its.shown != kNoReading;
    if ((its.reading == kNoReading && !is_shown) || !is_floating(tensor.dtype)) return;
    const std::uint32_t number = is_shown ? static_cast<std::uint32_t>(its.shown) | kernels::kShownOnly
                                          : static_cast<std::uint32_t>(its.reading);
    std::uint32_t k = 0;
    while (k < origins.tensors && origins.tensor[k] != number) ++k;
    if (k == kernels::kMaxOriginTensors) return;
    if (k == origins.tensors) origins.tensor[origins.tensors++] = number;
    asked.histograms.push_back({of_output, index, k});
  };
  const auto goes_in = [&](std::uint32_t reference) {
    if (reference != 0 && origins.inputs < kernels::kMaxOriginInputs) origins.reference[origins.inputs++] = reference;
  };
  for (std::size_t i = 0; i < event.inputs.size(); ++i) {
    const OpInput& in = event.inputs[i];
    if (in.role == ArgRole::kMask || in.role == ArgRole::kIndex) continue;
    if (in.role == ArgRole::kOverwritten) {
      if (!traits.ignores_old) goes_in(operands.inputs[i].reference);
      continue;
    }
    const TensorView& tensor = in.value.tensor;
    if (tensor.data != nullptr && tensor.numel() == 1 && is_floating(tensor.dtype)) {
      const double number = load_as_f64(tensor.dtype, tensor.data);
      if (std::isnan(number)) origins.known_in |= kernels::kNanBits;
      if (std::isinf(number)) origins.known_in |= kernels::kInfBits;
    }
    goes_in(operands.inputs[i].reference);
    show(false, i, operands.inputs[i]);
  }
  for (std::size_t i = 0; i < event.outputs.size(); ++i) {
    const DeviceOperand& made = operands.outputs[i];
    show(true, i, made);
    if (made.reading == kNoReading || !made.is_new || origins.outputs == kernels::kMaxOriginTensors) continue;
    origins.output[origins.outputs++] = static_cast<std::uint32_t>(made.reading);
  }
  return origins;
}

void report_elements(const ElementRequest& asked, const kernels::ReadingExtras& found, Recorder& recorder) {
  std::vector<DeferredElement> elements;
  std::deque<std::vector<DeferredOperand>> operands;  // stay where they are
  DeferredEvidence told;
  for (std::size_t i = 0; i < asked.outputs.size(); ++i) {
    const std::size_t call = asked.first_call + i;
    if (call >= found.findings.size() || !found.findings[call]) continue;
    const ElementRequest::Output& output = asked.outputs[i];
    const kernels::DeviceEvidence& one = *found.findings[call];
    if (output.counts_flushed) told.flushed = static_cast<std::int64_t>(one.flushed);
    for (const bool nan : {false, true}) {
      const std::uint64_t at = nan ? one.first_nan : one.first_inf;
      const double* numbers = nan ? one.at_nan : one.at_inf;
      if (at == kernels::kNoIndex) continue;
      DeferredElement element = {output.output, nan, static_cast<std::int64_t>(at), numbers[0]};
      std::vector<DeferredOperand>& met = operands.emplace_back();
      for (std::size_t k = 0; k < output.operands.size(); ++k) {
        const ElementRequest::Operand& operand = output.operands[k];
        met.push_back({operand.input, place_in(operand.sizes, output.sizes, element.flat_index), numbers[1 + k]});
      }
      element.operands = met;
      elements.push_back(element);
    }
  }
  told.elements = elements;
  std::vector<DeferredHistogram> histograms;
  for (const ElementRequest::Shown& shown : asked.histograms) {
    if (asked.origins >= found.histograms.size()) break;
    const auto& born = found.histograms[asked.origins];
    if (shown.tensor >= born.size() || !born[shown.tensor]) continue;
    const TensorStats& its = *born[shown.tensor];
    histograms.push_back({shown.of_output, shown.index, its.histogram_min_exponent, its.histogram});
  }
  told.histograms = histograms;
  if (asked.counts_updates && found.updates) {
    const kernels::DeviceUpdates& updates = *found.updates;
    told.updates = static_cast<std::int64_t>(updates.updates);
    told.lost_updates = static_cast<std::int64_t>(updates.lost);
    told.lost_update_share = updates.all_sizes > 0 ? updates.lost_sizes / updates.all_sizes : 0;
  }
  recorder.on_deferred_evidence(asked.number, told);
}

}  // namespace nanhunt::record
