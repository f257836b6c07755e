// SPDX-License-Identifier: Apache-2.0
#include "src/trace/segments/segment_rewriter.h"

#include <algorithm>
#include <functional>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "src/trace/attempt_reader.h"
#include "src/trace/encoding/frames.h"

namespace nanhunt::trace {
namespace {

constexpr std::size_t kHandOverRows = 4096;

Status read_sources(std::span<const std::string> sources, const std::function<void(const RecordBatch&)>& on_batch) {
  for (const std::string& source : sources) {
    auto file = InputFile::open(source, /*follow_links=*/false);
    if (!file) return file.status();
    TraceHealth health;
    AttemptReader reader(on_batch, health);
    reader.read_segment(*file, source, /*alone=*/true);
    // A damaged segment is kept as it is: its loss must not pass for retirement.
    if (Status status = reader.finish(source); !status) return status;
    if (!health.clean_end || health.unknown_chunks != 0) {
      return {StatusCode::kDamaged, "'" + source + "' is not whole. It is left as it is."};
    }
  }
  return Status::ok();
}

bool is_bad(const ValueRecord& value) {
  return value.has_stats && (value.stats.any_nonfinite || value.stats.nonfinite() > 0);
}

// First reading: which ops and values stay.
class Plan {
 public:
  explicit Plan(const StepRule& rule) : rule_(rule) {}

  void look_at(const RecordBatch& b) {
    for (const ValueRecord& value : b.values) {
      if (value.base != 0) bases_.emplace_back(value.id, value.base);
      if (is_bad(value)) bad_.push_back(value.id);
      if (value.storage != 0) note_living(value);
    }
    for (const OpRecord& op : b.ops) {
      if (!rule_.keeps(op.step)) {
        retired_ops_.push_back(op.seq);
        continue;
      }
      for (std::uint32_t i = 0; i < op.input_count; ++i) name(b.inputs[op.first_input + i].value);
      for (std::uint32_t i = 0; i < op.output_count; ++i) name(b.outputs[op.first_output + i].value);
    }
    for (const MarkRecord& mark : b.marks) {
      if (rule_.keeps(mark.step)) name(mark.value);
    }
    for (const ChangedRecord& row : b.changed) {
      if (rule_.keeps(row.step)) {
        name(row.before);
        name(row.after);
      }
    }
    for (const EvidenceRecord& row : b.evidence) {
      about_.emplace_back(row.seq, row.value);
      for (const Operand& operand : row.operands) about_.emplace_back(row.seq, operand.value);
    }
    for (const HistogramRecord& row : b.histograms) about_.emplace_back(row.seq, row.value);
    for (const EndOfLifeRecord& end : b.ends_of_life) living_.erase(end.storage);
  }

  void finish() {
    std::sort(retired_ops_.begin(), retired_ops_.end());
    for (const auto& [seq, id] : about_) {
      if (keeps_about(seq)) name(id);
    }
    for (const auto& [storage, living] : living_) {
      for (const auto& [version, id] : living.values) name(id);
    }
    std::sort(named_.begin(), named_.end());
    named_.erase(std::unique(named_.begin(), named_.end()), named_.end());
    std::sort(bad_.begin(), bad_.end());
    // A base is older than its views.
    std::sort(bases_.begin(), bases_.end(), std::greater<>());
    for (const auto& [id, base] : bases_) {
      if (keeps_value(id)) named_bases_.insert(base);
    }
  }

  bool keeps_step(std::uint32_t step) const { return rule_.keeps(step); }
  bool keeps_about(std::uint64_t seq) const {
    return !std::binary_search(retired_ops_.begin(), retired_ops_.end(), seq);
  }
  bool keeps_value(ValueId id) const {
    return std::binary_search(named_.begin(), named_.end(), id) || named_bases_.contains(id);
  }
  bool is_bad_value(ValueId id) const { return std::binary_search(bad_.begin(), bad_.end(), id); }

 private:
  struct Living {
    std::uint32_t newest = 0;
    std::vector<std::pair<std::uint32_t, ValueId>> values;  // (version, id)
  };

  void name(ValueId id) {
    if (id != 0) named_.push_back(id);
  }
  void note_living(const ValueRecord& value) {
    Living& living = living_[value.storage];
    if (value.version > living.newest || living.values.empty()) {
      living.newest = value.version;
      std::erase_if(living.values, [&](const auto& v) { return v.first + kNameableVersions <= value.version; });
    }
    living.values.emplace_back(value.version, value.id);
  }

  const StepRule& rule_;
  std::vector<std::uint64_t> retired_ops_;
  std::vector<ValueId> named_, bad_;
  std::vector<std::pair<std::uint64_t, ValueId>> about_;  // (op, value) of evidence and histograms
  std::vector<std::pair<ValueId, ValueId>> bases_;  // (view, base)
  std::unordered_set<ValueId> named_bases_;
  std::unordered_map<std::uint64_t, Living> living_;  // storages that have not ended
};

// Second reading: what stays is copied, what goes is counted.
class Copy {
 public:
  Copy(const Plan& plan, SegmentWriter& out) : plan_(plan), out_(out) {}

  void add(const RecordBatch& b) {
    for (const ValueRecord& value : b.values) {
      if (value.version == 0) born_.insert(value.storage);
      if (plan_.keeps_value(value.id)) {
        kept_storages_.insert(value.storage);
        batch_.values.push_back(value);
      } else {
        ++gone_.values;
      }
    }
    for (const DropRecord& drop : b.drops) {
      drops_.ops += drop.ops;
      drops_.values += drop.values;
      drops_.other += drop.other;
    }
    for (const RetiredRecord& row : b.retired) {
      gone_.steps += row.steps;
      gone_.anomalies += row.anomalies;
      gone_.ops += row.ops;
      gone_.values += row.values;
      gone_.other += row.other;
    }
    for (const OpRecord& op : b.ops) add_op(b, op);
    for (const RecordKind& kind : record_kinds()) {
      if (kind.retires != Retires::kByHand) keep(kind, b);
    }
    for (const NoteRecord& note : b.notes) {
      if (!notes_.insert_or_assign(note.text, note).second) ++gone_.other;
    }
    for (const EndOfLifeRecord& end : b.ends_of_life) {
      // Of a storage that did not begin here an earlier segment may have rows.
      if (kept_storages_.contains(end.storage) || !born_.contains(end.storage)) {
        batch_.ends_of_life.push_back(end);
      } else {
        ++gone_.other;
      }
      born_.erase(end.storage);
      kept_storages_.erase(end.storage);
    }
    if (batch_.values.size() >= kHandOverRows || batch_.ops.size() >= kHandOverRows) write();
  }

  Status finish() {
    for (const auto& [text, note] : notes_) batch_.notes.push_back(note);
    std::stable_sort(batch_.notes.begin(), batch_.notes.end(),
                     [](const NoteRecord& a, const NoteRecord& b) { return a.seq < b.seq; });
    tell(next_seq_);
    write();
    return std::move(status_);
  }

 private:
  void add_op(const RecordBatch& b, const OpRecord& op) {
    next_seq_ = op.seq + 1;
    if (!plan_.keeps_step(op.step)) {
      ++gone_.ops;
      for (std::uint32_t i = 0; i < op.output_count; ++i) {
        if (!plan_.is_bad_value(b.outputs[op.first_output + i].value)) continue;
        ++gone_.anomalies;
        break;
      }
      return;
    }
    tell(op.seq);
    OpRecord copy = op;
    const auto take = [](const auto& from, auto& to, std::uint32_t& first, std::uint32_t count) {
      const auto begin = from.begin() + first;
      first = static_cast<std::uint32_t>(to.size());
      to.insert(to.end(), begin, begin + count);
    };
    take(b.inputs, batch_.inputs, copy.first_input, copy.input_count);
    take(b.outputs, batch_.outputs, copy.first_output, copy.output_count);
    take(b.scalars, batch_.scalars, copy.first_scalar, copy.scalar_count);
    batch_.ops.push_back(copy);
  }

  // What went before op `seq`.
  void tell(std::uint64_t seq) {
    if (gone_ != RetiredRecord{}) {
      gone_.seq = seq;
      batch_.retired.push_back(gone_);
      gone_ = {};
    }
    if (drops_ != DropRecord{}) {
      drops_.seq = seq;
      batch_.drops.push_back(drops_);
      drops_ = {};
    }
  }

  void keep(const RecordKind& kind, const RecordBatch& b) {
    const std::size_t rows = kind.count(b);
    for (std::size_t row = 0; row < rows; ++row) {
      const bool stays = kind.retires == Retires::kNever ||
                         (kind.retires == Retires::kWithStep ? plan_.keeps_step(kind.step(b, row))
                                                             : plan_.keeps_about(kind.seq(b, row)));
      if (stays) {
        kind.copy(b, row, batch_);
        continue;
      }
      ++gone_.other;
      if (kind.type == kStepsType) ++gone_.steps;
    }
  }

  void write() {
    if (!batch_.empty() && status_) {
      for_each_frame(batch_, [&](const Frame& frame) {
        out_.begin_frame();
        for (const RecordKind& kind : record_kinds()) {
          const RowRange rows = frame.of(kind.type);
          if (rows.size() == 0 || !status_) continue;
          kind.encode(batch_, rows, out_.columns());
          status_ = out_.append_chunk(kind, batch_, rows);
        }
      });
    }
    batch_.clear();
  }

  const Plan& plan_;
  SegmentWriter& out_;
  RecordBatch batch_;
  Status status_;
  RetiredRecord gone_;  // since the last kept op
  DropRecord drops_;
  std::map<StringId, NoteRecord> notes_;  // the last one of each text
  std::uint64_t next_seq_ = 0;
  std::unordered_set<std::uint64_t> born_, kept_storages_;  // not ended
};

}  // namespace

Status rewrite_segments(std::span<const std::string> sources, const StepRule& rule, const FileHeader& header,
                        const RecordBatch& tables, TableCounts tables_end, const std::string& path,
                        SegmentWriter& out) {
  Plan plan(rule);
  Status status = read_sources(sources, [&](const RecordBatch& batch) { plan.look_at(batch); });
  if (!status) return status;
  plan.finish();

  auto file = SegmentWriter::create_file(path, header);
  if (!file) return file.status();
  out.begin(std::move(*file));
  out.set_sequence(header.first_sequence);
  status = out.write_tables(tables, tables_end);
  if (!status) return status;
  Copy copy(plan, out);
  status = read_sources(sources, [&](const RecordBatch& batch) { copy.add(batch); });
  if (status) status = copy.finish();
  if (status) status = out.write_end(0);
  if (status) status = out.close_file();
  if (status && out.sequence() > header.next_sequence) {
    return {StatusCode::kWriteFailed, "'" + path + "' needs more chunks than it stands for. It is given up."};
  }
  return status;
}

}  // namespace nanhunt::trace
