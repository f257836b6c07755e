// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/device_reader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "hooks/engine/late_group.h"
#include "src/engine/backend.h"
#include "src/record/flush_count.h"
#include "src/record/lost_updates.h"
#include "src/record/op_table.h"

namespace nanhunt::hooks {
namespace {

using kernels::DeviceArray;
using kernels::FindingsCall;
using kernels::ReadingsState;

// Every tensor that an op names takes a result: a step of a large model some ten thousand.
constexpr kernels::ReadingsOptions kReadings = {
    .tensors = 1 << 17, .tickets = 1 << 15, .references = 1 << 17, .arena_words = 1 << 19};
constexpr std::size_t kTensorsToACopy = 2048;  // a copy begins after so many, or with the end of the step

bool same_contents(const ValueView& a, const ValueView& b) {
  return a.storage == b.storage && a.version == b.version && a.offset == b.offset &&
         std::ranges::equal(a.tensor.sizes, b.tensor.sizes) && std::ranges::equal(a.tensor.strides, b.tensor.strides);
}

// Strides of a tensor over `sizes`; false: it does not broadcast to them.
bool strides_over(std::span<const std::int64_t> sizes, const TensorView& tensor, std::vector<std::int64_t>& strides) {
  strides.assign(sizes.size(), 0);
  if (tensor.sizes.size() > sizes.size()) return false;
  const std::size_t lead = sizes.size() - tensor.sizes.size();
  for (std::size_t d = 0; d < tensor.sizes.size(); ++d) {
    if (tensor.sizes[d] == 1) continue;
    if (tensor.sizes[d] != sizes[lead + d]) return false;
    strides[lead + d] = tensor.strides[d];
  }
  return true;
}

// Dimensions that all arrays have without a step between them become one. False: too many are left.
bool fill_walk(FindingsCall& call, std::span<const std::int64_t> sizes,
               std::span<const std::vector<std::int64_t>> strides) {
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
  if (walk.dims == 0) {
    walk.dims = 1;
    walk.sizes[0] = 1;
    for (std::size_t k = 0; k < strides.size(); ++k) array(k).strides[0] = 0;
  }
  return true;
}

// Where in an operand the element lies that meets the output's at `flat`.
std::int64_t place_in(std::span<const std::int64_t> operand, std::span<const std::int64_t> sizes, std::int64_t flat) {
  std::vector<std::int64_t> coords(sizes.size());
  for (std::size_t d = sizes.size(); d-- > 0;) {
    coords[d] = flat % sizes[d];
    flat /= sizes[d];
  }
  if (operand.size() > sizes.size()) return 0;  // a single number of higher rank
  std::int64_t place = 0;
  const std::size_t lead = sizes.size() - operand.size();
  for (std::size_t d = 0; d < operand.size(); ++d) {
    place = place * operand[d] + (operand[d] == 1 ? 0 : coords[lead + d]);
  }
  return place;
}

}  // namespace

DeviceReader::~DeviceReader() {
  try {
    finish();
  } catch (...) {  // no memory: the recorder gives up what it is not told
  }
}

void DeviceReader::finish() {
  if (readings_ == nullptr) return;
  while (!under_way_.empty()) {
    const Taken taken = std::move(under_way_.front());
    under_way_.pop_front();
    results_.resize(taken.readings.size());
    kernels::Besides found;
    const ReadingsState state = readings_->wait(taken.ticket, results_, &found);
    tell(taken, state, found);
  }
}

void DeviceReader::forget() noexcept {
  views_.clear();
  calls_.clear();
  at_hand_.ticket = 0;
  at_hand_.readings.clear();
  at_hand_.findings.reset();
  references_.clear();
  old_.clear();
  at_hand_.findings.reset();
}

bool DeviceReader::can_read(const engine::Tensor& tensor) {
  if (tensor.device().is_cpu()) return false;
  if (!opened_) {
    opened_ = true;
    device_ = tensor.device();
    std::string why;
    readings_ = kernels::DeviceReadings::open(engine::backend_of(device_), kReadings, why);
    if (readings_ == nullptr) recorder_.on_note({0, "statistics on the device, so contents were copied: " + why, 1});
  }
  return readings_ != nullptr && tensor.device() == device_;
}

void DeviceReader::read(const engine::Tensor& tensor, ValueView& value) {
  value.tensor.data = nullptr;
  Part& part = know(value);
  for (const Reading& reading : at_hand_.readings) {  // mul(x, x)
    if (reading.contents != part.contents) continue;
    value.late = reading.number;
    return;
  }
  const Contents& contents = *part.contents;
  views_.push_back(device_view(tensor));
  references_.push_back(contents.reference == 0   ? 0
                        : contents.has_reference ? contents.reference
                                                 : contents.reference | kernels::kFirstCheck);
  at_hand_.readings.push_back({++last_number_, part.contents, !contents.has_reference});
  value.late = last_number_;
}

DeviceReader::Part* DeviceReader::find(const ValueView& value) {
  const auto storage = parts_.find(value.storage);
  if (storage == parts_.end()) return nullptr;
  const TensorView& tensor = value.tensor;
  const std::int64_t numel = tensor.numel();
  const bool plain = tensor.is_contiguous();
  for (Part& part : storage->second) {
    if (part.version != value.version || part.offset != value.offset || part.dtype != tensor.dtype) continue;
    if (plain ? part.layout.size() == 1 && part.layout[0] == numel
              : part.layout.size() == 2 * tensor.sizes.size() &&
                    std::equal(tensor.sizes.begin(), tensor.sizes.end(), part.layout.begin()) &&
                    std::equal(tensor.strides.begin(), tensor.strides.end(),
                               part.layout.begin() + std::ssize(tensor.sizes))) {
      return &part;
    }
  }
  return nullptr;
}

bool DeviceReader::was_read(const ValueView& value) { return find(value) != nullptr; }

DeviceReader::Part& DeviceReader::know(const ValueView& value) {
  if (Part* part = find(value)) return *part;
  const auto known = parts_.find(value.storage);
  if (known != parts_.end() && !known->second.empty() && known->second.front().version != value.version)
    release(value.storage);
  Part part;
  part.version = value.version;
  part.offset = value.offset;
  part.dtype = value.tensor.dtype;
  if (value.tensor.is_contiguous()) {
    part.layout = {value.tensor.numel()};
  } else {
    part.layout.assign(value.tensor.sizes.begin(), value.tensor.sizes.end());
    part.layout.insert(part.layout.end(), value.tensor.strides.begin(), value.tensor.strides.end());
  }
  part.contents = std::make_shared<Contents>();
  std::vector<Part>& parts = parts_[value.storage];
  if (parts.size() >= kMostParts) {  // a new window of one tensor at every step
    const auto forgotten = parts.begin() + kMostParts / 2;
    for (auto its = parts.begin(); its != forgotten; ++its) retire(*its);
    parts.erase(parts.begin(), forgotten);
  }
  parts.push_back(std::move(part));
  Contents& contents = *parts.back().contents;
  if (!free_references_.empty()) {
    contents.reference = free_references_.back();
    free_references_.pop_back();
  } else if (last_reference_ < kReadings.references) {
    free_references_.reserve(last_reference_ + 1);  // giving one back needs no memory
    retired_.reserve(last_reference_ + 1);
    contents.reference = ++last_reference_;
  }
  return parts.back();
}

void DeviceReader::overwritten(std::size_t input, const ValueView& value) {
  const Part* part = find(value);
  if (part != nullptr && part->contents->reference != 0) old_.emplace_back(input, part->contents->reference);
}

// References are used again by launches that come after those which use them now.
void DeviceReader::release(std::uint64_t storage) noexcept {
  const auto known = parts_.find(storage);
  if (known == parts_.end()) return;
  for (const Part& part : known->second) retire(part);
  parts_.erase(known);
}

void DeviceReader::retire(const Part& part) noexcept {
  if (part.contents->reference != 0) retired_.push_back(part.contents->reference);
}

std::uint64_t DeviceReader::read_findings(const engine::OpCall& call, const OpEvent& event) {
  if (readings_ == nullptr) return 0;
  const std::vector<Reading>& readings = at_hand_.readings;
  at_hand_.findings.emplace();
  std::size_t i = 0;  // the event's outputs are the call's that are defined
  for (const engine::OpArgument& out : call.outputs) {
    if (out.tensor == nullptr || !out.tensor->defined()) continue;
    const std::size_t output = i++;
    const ValueView& value = event.outputs[output].value;
    const auto its = std::ranges::find(readings, value.late, &Reading::number);
    if (value.late == 0 || its == readings.end() || !its->is_first) continue;
    if (!is_floating(value.tensor.dtype) || !plan(call, event, output, *out.tensor)) continue;
    calls_.back().of = static_cast<std::uint32_t>(its - readings.begin());
  }
  if (calls_.empty()) {
    at_hand_.findings.reset();
    return 0;
  }
  at_hand_.findings->counts_updates = plan_updates(call, event);
  plan_births(event);
  at_hand_.findings->number = ++last_number_;
  return last_number_;
}

bool DeviceReader::plan(const engine::OpCall& call, const OpEvent& event, std::size_t output,
                        const engine::Tensor& made) {
  const record::OpTraits traits = record::op_traits(event.op);
  const TensorView shape = event.outputs[output].value.tensor;
  FindingsCall planned;
  planned.out.dtype = shape.dtype;
  planned.out.data = const_cast<void*>(device_view(made).data);
  OutputFindings findings;
  findings.output = output;
  findings.sizes.assign(shape.sizes.begin(), shape.sizes.end());
  std::vector<std::vector<std::int64_t>> strides(1, {shape.strides.begin(), shape.strides.end()});
  std::vector<std::size_t> places(event.inputs.size(), 0);  // 1 + its place in planned.in

  // The event's inputs are the call's that are defined, in order.
  std::size_t i = 0;
  const auto add = [&](std::size_t input, const engine::OpArgument& argument) {
    const TensorView& view = event.inputs[input].value.tensor;
    if (planned.inputs == kernels::kMaxFoundInputs || view.numel() <= 0) return false;
    std::vector<std::int64_t> mine;
    if (view.numel() == 1) {
      mine.assign(shape.sizes.size(), 0);
    } else if (!strides_over(shape.sizes, view, mine)) {
      return false;
    }
    DeviceArray& array = planned.in[planned.inputs];
    array.dtype = view.dtype;
    if (argument.tensor->device().is_cpu()) {
      if (view.numel() != 1 || view.data == nullptr) return false;
      array.is_number = true;
      array.number = load_as_f64(view.dtype, view.data);
    } else {
      array.data = const_cast<void*>(device_view(*argument.tensor).data);
    }
    strides.push_back(std::move(mine));
    findings.operands.push_back({input, {view.sizes.begin(), view.sizes.end()}});
    places[input] = static_cast<std::size_t>(++planned.inputs);
    return true;
  };
  for (const engine::OpArgument& in : call.inputs) {
    if (in.tensor == nullptr || !in.tensor->defined()) continue;
    const std::size_t input = i++;
    const bool is_there = in.role != ArgRole::kOverwritten && in.tensor->version() == in.version;
    const bool mixes = in.role != ArgRole::kMask && in.role != ArgRole::kIndex;
    if (!is_there || !mixes || traits.elements == record::ElementMap::kNone) continue;
    const TensorView& view = event.inputs[input].value.tensor;
    const bool same = std::ranges::equal(view.sizes, shape.sizes);
    if (traits.elements == record::ElementMap::kSameShape && !same && view.numel() != 1) continue;
    add(input, in);
  }

  if (output == 0 && traits.flush != record::FlushRule::kNotMeasured) {
    std::vector<record::FlushInput> inputs;
    for (std::size_t k = 0; k < event.inputs.size(); ++k) {
      std::size_t first = 0;  // the same contents have the same id
      while (!same_contents(event.inputs[first].value, event.inputs[k].value)) ++first;
      inputs.push_back({&event.inputs[k], nullptr, first + 1});
    }
    const auto factors = record::flush_factors(traits.flush, inputs, event.scalars);
    planned.counts_flushed = !factors.empty();
    for (const record::FlushFactor& factor : factors) {
      if (places[factor.input] == 0) {  // its contents are gone, or there are too many inputs
        planned.counts_flushed = false;
        break;
      }
      const auto bit = static_cast<std::uint8_t>(1u << (places[factor.input] - 1));
      if (factor.must_be_nonzero) planned.must_be_nonzero |= bit;
      if (!factor.must_be_nonzero) planned.must_not_be_inf |= bit;
    }
  }
  findings.counts_flushed = planned.counts_flushed;
  if (!fill_walk(planned, shape.sizes, strides)) return false;
  calls_.push_back(planned);
  at_hand_.findings->outputs.push_back(std::move(findings));
  return true;
}

bool DeviceReader::plan_updates(const engine::OpCall& call, const OpEvent& event) {
  const std::optional<record::LateUpdate> update = record::late_update(event);
  if (!update) return false;
  updates_ = {};
  updates_.formula = update->formula;
  updates_.count = update->self->numel();
  // The event's lists are the call's without what is not defined.
  const auto fill = [&](DeviceArray& array, const TensorView* wanted) {
    if (wanted == nullptr) return true;
    array.dtype = wanted->dtype;
    const auto look_in = [&](auto arguments, auto views) {
      std::size_t i = 0;
      for (const engine::OpArgument& argument : arguments) {
        if (argument.tensor == nullptr || !argument.tensor->defined()) continue;
        if (&views[i++].value.tensor != wanted) continue;
        if (argument.tensor->device().is_cpu() || argument.tensor->version() != argument.version) return;
        array.data = const_cast<void*>(device_view(*argument.tensor).data);
      }
    };
    look_in(call.inputs, event.inputs);
    look_in(call.outputs, event.outputs);
    return array.data != nullptr;
  };
  return fill(updates_.self, update->self) && fill(updates_.a, update->a) && fill(updates_.b, update->b);
}

std::size_t DeviceReader::reading_of(const ValueView& value) const {
  const auto its = std::ranges::find(at_hand_.readings, value.late, &Reading::number);
  return value.late == 0 ? at_hand_.readings.size() : static_cast<std::size_t>(its - at_hand_.readings.begin());
}

// What is not known to be bad counts as good: whether anything was born is judged by the recorder.
void DeviceReader::plan_births(const OpEvent& event) {
  births_ = {};
  const record::OpTraits traits = record::op_traits(event.op);
  const std::vector<Reading>& readings = at_hand_.readings;
  const auto show = [&](bool of_output, std::size_t index, std::size_t reading) {
    const TensorView& tensor = (of_output ? event.outputs[index].value : event.inputs[index].value).tensor;
    if (reading == readings.size() || !is_floating(tensor.dtype)) return;
    std::uint32_t k = 0;
    while (k < births_.tensors && births_.tensor[k] != reading) ++k;
    if (k == kernels::kMaxBirthTensors) return;
    if (k == births_.tensors) births_.tensor[births_.tensors++] = static_cast<std::uint32_t>(reading);
    at_hand_.findings->histograms.push_back({of_output, index, k});
  };
  const auto goes_in = [&](std::uint32_t reference) {
    if (reference != 0 && births_.inputs < kernels::kMaxBirthInputs) births_.reference[births_.inputs++] = reference;
  };
  for (std::size_t i = 0; i < event.inputs.size(); ++i) {
    const OpInput& in = event.inputs[i];
    if (in.role == ArgRole::kMask || in.role == ArgRole::kIndex) continue;
    if (in.role == ArgRole::kOverwritten) {
      for (const auto& [input, reference] : old_) {
        if (input == i && !traits.ignores_old) goes_in(reference);
      }
      continue;
    }
    const TensorView& tensor = in.value.tensor;
    if (tensor.data != nullptr && tensor.numel() == 1 && is_floating(tensor.dtype)) {
      const double number = load_as_f64(tensor.dtype, tensor.data);
      if (std::isnan(number)) births_.known_in |= kernels::kNanBits;
      if (std::isinf(number)) births_.known_in |= kernels::kInfBits;
    }
    const std::size_t reading = reading_of(in.value);
    if (reading < readings.size()) goes_in(readings[reading].contents->reference);
    show(false, i, reading);
  }
  for (std::size_t i = 0; i < event.outputs.size(); ++i) {
    const std::size_t reading = reading_of(event.outputs[i].value);
    show(true, i, reading);
    if (reading == readings.size() || !readings[reading].is_first || births_.outputs == kernels::kMaxBirthTensors)
      continue;
    births_.output[births_.outputs++] = static_cast<std::uint32_t>(reading);
  }
}

void DeviceReader::take() {
  if (views_.empty() || readings_ == nullptr) return;
  const bool counts_updates = at_hand_.findings && at_hand_.findings->counts_updates;
  at_hand_.ticket = readings_->enqueue(views_, StatsLevel::kSums, calls_, counts_updates ? &updates_ : nullptr,
                                       references_, at_hand_.findings ? &births_ : nullptr);
  for (const Reading& reading : at_hand_.readings) {
    reading.contents->has_reference = at_hand_.ticket != 0 && reading.contents->reference != 0;
  }
  calls_.clear();
  references_.clear();
  tensors_since_copy_ += views_.size();
  views_.clear();
}

void DeviceReader::tell_lost() {
  views_.clear();  // where there was no memory to take them
  calls_.clear();
  references_.clear();
  old_.clear();
  free_references_.insert(free_references_.end(), retired_.begin(), retired_.end());
  retired_.clear();
  if (at_hand_.readings.empty()) return;
  Taken taken = std::exchange(at_hand_, {});
  if (taken.ticket == 0) {
    results_.resize(taken.readings.size());
    tell(taken, ReadingsState::kLost, {});
  } else {
    under_way_.push_back(std::move(taken));
  }
  if (tensors_since_copy_ < kTensorsToACopy) return;
  readings_->hand_over();
  tensors_since_copy_ = 0;
  poll();
}

void DeviceReader::end_step() {
  if (readings_ == nullptr) return;
  readings_->hand_over();
  tensors_since_copy_ = 0;
  poll();
}

void DeviceReader::poll() {
  while (!under_way_.empty()) {
    const Taken& taken = under_way_.front();
    results_.resize(taken.readings.size());
    kernels::Besides found;
    const ReadingsState state = readings_->poll(taken.ticket, results_, &found);
    if (state == ReadingsState::kPending) return;
    tell(taken, state, found);
    under_way_.pop_front();
  }
}

void DeviceReader::tell(const Taken& taken, ReadingsState state, const kernels::Besides& besides) {
  for (std::size_t i = 0; i < taken.readings.size(); ++i) {
    const bool came = state == ReadingsState::kReady && i < besides.checks.size();
    tell(taken.readings[i], came ? besides.checks[i] : std::nullopt, came ? results_[i] : std::nullopt);
  }
  if (!taken.findings) return;
  if (state == ReadingsState::kReady) {
    tell_findings(*taken.findings, besides);
  } else {
    recorder_.on_late_lost(taken.findings->number);
  }
}

// Readings are told in the order in which they were taken.
void DeviceReader::tell(const Reading& reading, const std::optional<kernels::Checked>& check,
                        const std::optional<TensorStats>& stats) {
  Contents& contents = *reading.contents;
  if (!check) {
    contents.has_reference = false;  // read whole the next time
    return recorder_.on_late_lost(reading.number);
  }
  KnownContents& known = contents.known;
  // The same as at the last look: as what is known of them, unless that look was lost.
  const bool still = !check->differs && known.checksum == check->checksum;
  if (!still) known.has_stats = stats.has_value();
  if (stats) {
    known.stats = *stats;
    known.has_stats = true;
  }
  known.checksum = check->checksum;
  if (!known.has_stats) contents.has_reference = false;
  recorder_.on_late_contents(reading.number, known);
}

void DeviceReader::tell_findings(const Findings& findings, const kernels::Besides& besides) {
  std::vector<LateElement> elements;
  std::deque<std::vector<LateOperand>> operands;  // stay where they are
  LateFindings told;
  for (std::size_t i = 0; i < findings.outputs.size() && i < besides.findings.size(); ++i) {
    if (!besides.findings[i]) continue;
    const OutputFindings& output = findings.outputs[i];
    const kernels::DeviceFindings& found = *besides.findings[i];
    if (output.counts_flushed) told.flushed = static_cast<std::int64_t>(found.flushed);
    for (const bool nan : {false, true}) {
      const std::uint64_t at = nan ? found.first_nan : found.first_inf;
      const double* numbers = nan ? found.at_nan : found.at_inf;
      if (at == kernels::kNoIndex) continue;
      LateElement element = {output.output, nan, static_cast<std::int64_t>(at), numbers[0]};
      std::vector<LateOperand>& met = operands.emplace_back();
      for (std::size_t k = 0; k < output.operands.size(); ++k) {
        const Operand& operand = output.operands[k];
        met.push_back({operand.input, place_in(operand.sizes, output.sizes, element.flat_index), numbers[1 + k]});
      }
      element.operands = met;
      elements.push_back(element);
    }
  }
  told.elements = elements;
  std::vector<LateHistogram> histograms;
  for (const Shown& shown : findings.histograms) {
    if (shown.tensor >= besides.histograms.size() || !besides.histograms[shown.tensor]) continue;
    const TensorStats& its = *besides.histograms[shown.tensor];
    histograms.push_back({shown.of_output, shown.index, its.histogram_min_exponent, its.histogram});
  }
  told.histograms = histograms;
  if (findings.counts_updates && besides.updates) {
    told.updates = static_cast<std::int64_t>(besides.updates->updates);
    told.lost_updates = static_cast<std::int64_t>(besides.updates->lost);
    told.lost_update_share =
        besides.updates->all_sizes > 0 ? besides.updates->lost_sizes / besides.updates->all_sizes : 0;
  }
  recorder_.on_late_findings(findings.number, told);
}

}  // namespace nanhunt::hooks
