// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/stream/names.h"

#include <algorithm>
#include <array>

namespace nanhunt::analyze {
namespace {

const std::string kEmpty;
const std::array<std::string, 3> kStandIns = {"<batch>", "<state>", "<unwatched>"};

// Grows to hold `id`, in big enough steps that many new ids cost little.
template <typename T>
void grow(std::vector<T>& table, std::uint32_t id) {
  if (id < table.size()) return;
  table.resize(std::max<std::size_t>(id + 1, table.size() + table.size() / 2));
}

}  // namespace

void Names::add(const StringRecord& record) {
  if (record.id == 0 || record.id > kMaxId) return;
  grow(strings_, record.id);
  Entry& entry = strings_[record.id];
  if (entry.text == record.text) return;  // restated by a new segment
  entry = Entry{record.text, nullptr};
}

void Names::add(const LayoutRecord& record) {
  if (record.id == 0 || record.id > kMaxId) return;
  grow(layouts_, record.id);
  layouts_[record.id] = record;
}

const std::string& Names::text(StringId id) const {
  if (id < strings_.size()) return strings_[id].text;
  return id >= kBatchOp && id - kBatchOp < kStandIns.size() ? kStandIns[id - kBatchOp] : kEmpty;
}

const OpInfo& Names::op(StringId id) {
  if (id >= strings_.size()) return op_info("");
  Entry& entry = strings_[id];
  if (entry.op == nullptr) entry.op = &op_info(entry.text);
  return *entry.op;
}

bool Names::is_exchange(Phase phase, StringId op) const {
  if (phase != Phase::kComm) return false;
  const std::string& name = text(op);
  if (name.find("::") != std::string::npos) return !name.starts_with("aten::");
  return !op_info(name).known();  // arithmetic on a bucket is known by its plain name
}

const LayoutRecord* Names::layout(LayoutId id) const {
  if (id >= layouts_.size() || layouts_[id].id == 0) return nullptr;
  return &layouts_[id];
}

}  // namespace nanhunt::analyze
