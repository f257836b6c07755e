// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/watch/device_time.h"

#include <algorithm>
#include <limits>

namespace nanhunt::analyze {
namespace {

constexpr std::size_t kNamesOfGroup = 32;

// Durations come from a file: neither negative ones nor too many may spoil a sum.
void add_time(std::int64_t& sum, std::int64_t nanoseconds) {
  if (nanoseconds <= 0) return;
  sum += std::min(nanoseconds, std::numeric_limits<std::int64_t>::max() - sum);
}

std::uint64_t add_count(std::uint64_t a, std::uint64_t b) {
  return a + std::min(b, std::numeric_limits<std::uint64_t>::max() - a);
}

}  // namespace

void DeviceTimes::on_op(const OpInView& op) {
  if (ops_.empty()) ops_.resize(kOps);
  const OpRecord& record = *op.record;
  ops_[record.seq % kOps] = {record.seq, record.module, record.op, record.phase};
  const bool bad =
      std::any_of(op.out.begin(), op.out.end(), [](const Value* value) { return value != nullptr && value->bad != 0; });
  if (bad && bad_.size() < kBadOps) bad_.try_emplace(record.seq);
}

void DeviceTimes::on_kernel(const KernelRecord& record) {
  const std::uint64_t timed = std::min(record.timed, record.count);
  const std::int64_t nanoseconds = timed == 0 ? 0 : std::max<std::int64_t>(record.duration_ns, 0);
  kernels_ = add_count(kernels_, record.count);
  timed_ = add_count(timed_, timed);
  add_time(total_ns_, nanoseconds);
  if (record.own) {
    own_kernels_ = add_count(own_kernels_, record.count);
    add_time(own_ns_, nanoseconds);
    return;
  }
  if (record.seq == kNoSeq) add_time(without_op_ns_, nanoseconds);
  if (const auto bad = bad_.find(record.seq); bad != bad_.end() && record.name != 0)
    bad->second.see(record.name, nanoseconds);

  Key key{0, 0, Phase::kData, false};
  if (record.seq != kNoSeq && !ops_.empty()) {
    const Op& op = ops_[record.seq % kOps];
    if (op.seq == record.seq) key = {op.module, op.op, op.phase, true};
  }
  const auto found = groups_.find(key);
  Group& group = found != groups_.end() ? found->second : groups_.size() < kGroups ? groups_[key] : beyond_;
  group.kernels = add_count(group.kernels, record.count);
  group.timed = add_count(group.timed, timed);
  add_time(group.duration_ns, nanoseconds);
  if (record.name != 0 && (group.names.size() < kNamesOfGroup || group.names.contains(record.name))) {
    add_time(group.names[record.name], nanoseconds);
  }
}

std::string DeviceTimes::kernel_of(std::uint64_t seq) const {
  const auto bad = bad_.find(seq);
  return bad == bad_.end() ? std::string() : names_.text(bad->second.name);
}

std::optional<DeviceTime> DeviceTimes::section() const {
  if (kernels_ == 0) return std::nullopt;
  DeviceTime out;
  out.kernels = kernels_;
  out.untimed = kernels_ - timed_;
  out.own_kernels = own_kernels_;
  out.total_ns = total_ns_;
  out.own_ns = own_ns_;
  out.without_op_ns = without_op_ns_;
  std::vector<DeviceTimeRow> rows;
  for (const auto& [key, group] : groups_) {
    const auto& [module, op, phase, of_op] = key;
    DeviceTimeRow row;
    row.module = names_.text(module);
    row.op = of_op ? names_.text(op) : std::string();
    row.phase = phase;
    row.kernels = group.kernels;
    row.timed = group.timed;
    row.duration_ns = group.duration_ns;
    std::int64_t longest = -1;
    for (const auto& [name, nanoseconds] : group.names) {
      const std::string& text = names_.text(name);
      if (nanoseconds < longest || (nanoseconds == longest && text >= row.kernel)) continue;
      longest = nanoseconds;
      row.kernel = text;
    }
    rows.push_back(std::move(row));
  }
  // Longest first; names decide among equals, not their numbers.
  std::sort(rows.begin(), rows.end(), [](const DeviceTimeRow& a, const DeviceTimeRow& b) {
    return std::tie(b.duration_ns, b.kernels, a.module, a.op, a.phase) <
           std::tie(a.duration_ns, a.kernels, b.module, b.op, b.phase);
  });
  const std::size_t shown = std::min(rows.size(), kRows);
  for (std::size_t i = shown; i < rows.size(); ++i) add_time(out.omitted_ns, rows[i].duration_ns);
  add_time(out.omitted_ns, beyond_.duration_ns);
  out.rows_omitted = rows.size() - shown + (beyond_.kernels != 0);
  rows.resize(shown);
  out.rows = std::move(rows);
  return out;
}

}  // namespace nanhunt::analyze
