// SPDX-License-Identifier: Apache-2.0
#include "src/c_api/calls.h"

#include <span>
#include <string>

#include "src/c_api/convert.h"

namespace nanhunt::c_api {
namespace {

// A caller that makes up calls without end must not eat the memory.
constexpr std::size_t kMaxCalls = 1u << 20, kMaxWords = 4u << 20;
constexpr std::size_t kMaxArguments = 1u << 16;  // of one kind, of one call

void check_list(const char* what, const void* list, std::size_t count) {
  if (count > kMaxArguments) {
    throw Misuse(std::string("nanhunt_intern_call: ") + what + ": expected at most 65536, got " +
                 std::to_string(count));
  }
  if (list == nullptr && count != 0) {
    throw Misuse(std::string("nanhunt_intern_call: ") + what + ": expected " + std::to_string(count) +
                 " names, got NULL");
  }
}

}  // namespace

std::int64_t CallTable::number(record::NumberingRecorder& recorder, const nanhunt_call& given) {
  check_list("input_slots", given.input_slots, given.input_count);
  check_list("output_slots", given.output_slots, given.output_count);
  check_list("scalar_names", given.scalar_names, given.scalar_count);
  const DType compute = enum_of("compute_dtype", given.compute_dtype, DType::kBool);
  std::vector<ArgRole> roles(given.input_count, ArgRole::kRead);
  if (given.input_roles != nullptr) {
    for (std::size_t i = 0; i < roles.size(); ++i) roles[i] = enum_of("role", given.input_roles[i], ArgRole::kIndex);
  }

  bool refused = false;
  const auto number_text = [&](const char* text) {
    const std::string_view view = text_of(text);
    const StringId id = recorder.number_text(view);
    refused |= id == 0 && !view.empty();
    return id;
  };
  Call call;
  const StringId op = number_text(given.op);
  for (const char* slot : std::span(given.input_slots, given.input_count)) call.slots.push_back(number_text(slot));
  for (const char* slot : std::span(given.output_slots, given.output_count)) call.slots.push_back(number_text(slot));
  for (const char* name : std::span(given.scalar_names, given.scalar_count)) call.slots.push_back(number_text(name));
  if (refused) return -1;

  std::vector<std::uint32_t> key = {op, static_cast<std::uint32_t>(compute),
                                    static_cast<std::uint32_t>(given.input_count),
                                    static_cast<std::uint32_t>(given.output_count)};
  key.insert(key.end(), call.slots.begin(), call.slots.end());
  for (const ArgRole role : roles) key.push_back(static_cast<std::uint32_t>(role));
  if (const auto known = numbers_.find(key); known != numbers_.end()) return known->second;
  if (calls_.size() >= kMaxCalls || words_ + key.size() > kMaxWords) return -1;

  const std::size_t inputs = given.input_count, outputs = given.output_count;
  for (std::size_t i = 0; i < inputs; ++i) call.inputs.push_back({recorder.text(call.slots[i]), {}, roles[i]});
  for (std::size_t i = 0; i < outputs; ++i) call.outputs.push_back({recorder.text(call.slots[inputs + i]), {}});
  for (std::size_t i = inputs + outputs; i < call.slots.size(); ++i) {
    call.scalars.push_back({recorder.text(call.slots[i]), 0});
  }
  call.layouts.assign(inputs + outputs, 0);
  call.event.op = recorder.text(op);
  call.event.compute_dtype = compute;
  call.numbers.op = op;
  call.numbers.traits = op_traits(call.event.op);
  calls_.push_back(std::move(call));
  // Spans of where it stays.
  Call& kept = calls_.back();
  kept.event.inputs = kept.inputs;
  kept.event.outputs = kept.outputs;
  kept.event.scalars = kept.scalars;
  const std::span<const StringId> slots = kept.slots;
  kept.numbers.input_slots = slots.first(inputs);
  kept.numbers.output_slots = slots.subspan(inputs, outputs);
  kept.numbers.scalar_names = slots.subspan(inputs + outputs);
  kept.numbers.input_layouts = std::span<const LayoutId>(kept.layouts).first(inputs);
  kept.numbers.output_layouts = std::span<const LayoutId>(kept.layouts).subspan(inputs);
  const auto number = static_cast<std::int64_t>(calls_.size() - 1);
  words_ += key.size();
  try {
    numbers_.emplace(std::move(key), number);
  } catch (...) {
    calls_.pop_back();
    throw;
  }
  return number;
}

Call& CallTable::of(std::int64_t number) {
  if (number < 0 || static_cast<std::uint64_t>(number) >= calls_.size()) {
    throw Misuse("there is no call number " + std::to_string(number) + "; nanhunt_intern_call() gives them out");
  }
  return calls_[static_cast<std::size_t>(number)];
}

}  // namespace nanhunt::c_api
