// SPDX-License-Identifier: Apache-2.0
#include "src/trace/trace_names.h"

namespace nanhunt::trace {
namespace {

constexpr std::size_t kMaxNames = 1u << 20;
constexpr std::size_t kMaxRemembered = 1u << 20;  // values, ops

template <typename Map, typename Order, typename Key, typename Value>
void remember(Map& map, Order& order, Key key, const Value& value) {
  if (!map.insert_or_assign(key, value).second) return;
  order.push_back(key);
  if (order.size() > kMaxRemembered) {
    map.erase(order.front());
    order.pop_front();
  }
}

template <typename Map, typename Key>
auto find_in(const Map& map, Key key) -> const typename Map::mapped_type* {
  const auto found = map.find(key);
  return found == map.end() ? nullptr : &found->second;
}

}  // namespace

void TraceNames::add(const RecordBatch& batch) {
  for (const StringRecord& row : batch.strings) {
    if (strings_.size() < kMaxNames || strings_.contains(row.id)) strings_[row.id] = row.text;
  }
  for (const LayoutRecord& row : batch.layouts) {
    if (layouts_.size() < kMaxNames || layouts_.contains(row.id)) layouts_[row.id] = row;
  }
  for (const ValueRecord& row : batch.values) {
    remember(values_, value_order_, row.id,
             ValueBrief{row.layout, row.has_stats, row.has_stats && (row.stats.any_nonfinite || row.stats.nonfinite() > 0),
                        row.stats.nan, row.stats.pos_inf, row.stats.neg_inf});
  }
  for (const OpRecord& row : batch.ops) {
    remember(ops_, op_order_, row.seq, OpBrief{row.seq, row.step, row.micro_batch, row.phase, row.module, row.op});
  }
}

const std::string& TraceNames::text(StringId id) const {
  static const std::string kEmpty;
  const std::string* found = find_in(strings_, id);
  return found == nullptr ? kEmpty : *found;
}

const LayoutRecord* TraceNames::layout(LayoutId id) const { return find_in(layouts_, id); }
const ValueBrief* TraceNames::value(ValueId id) const { return find_in(values_, id); }
const OpBrief* TraceNames::op(std::uint64_t seq) const { return find_in(ops_, seq); }

}  // namespace nanhunt::trace
