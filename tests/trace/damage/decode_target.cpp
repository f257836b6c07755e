// SPDX-License-Identifier: Apache-2.0
#include "tests/trace/damage/decode_target.h"

#include <cstdio>
#include <cstdlib>

#include "src/trace/encoding/end_chunk.h"
#include "src/trace/encoding/limits.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace_testing {
namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

// What consumers rely on without looking.
void require_sound(const RecordBatch& batch) {
  const auto in = [](std::uint32_t first, std::uint32_t count, std::size_t size) {
    return std::uint64_t{first} + count <= size;
  };
  for (const OpRecord& op : batch.ops) {
    require(in(op.first_input, op.input_count, batch.inputs.size()), "inputs of an op lie in the batch");
    require(in(op.first_output, op.output_count, batch.outputs.size()), "outputs of an op lie in the batch");
    require(in(op.first_scalar, op.scalar_count, batch.scalars.size()), "scalars of an op lie in the batch");
    require(op.phase <= Phase::kUpdate, "phases are known");
    require(static_cast<int>(op.compute_dtype) < kDTypeCount, "dtypes are known");
    require((op.module | op.op | op.call_site) <= trace::kMaxTableId, "string ids are small");
  }
  for (const OpArg& arg : batch.inputs) require(arg.role <= ArgRole::kIndex, "roles are known");
  for (const OpArg& arg : batch.outputs) require(arg.role <= ArgRole::kIndex, "roles are known");
  for (const MarkRecord& mark : batch.marks) require(mark.kind <= TensorRole::kOutput, "kinds of marks are known");
  for (const StringRecord& row : batch.strings) require(row.id <= trace::kMaxTableId, "string ids are small");
  for (const ValueRecord& row : batch.values) {
    require(row.layout <= trace::kMaxTableId, "layout ids are small");
    require(row.stats.level <= StatsLevel::kSums, "levels are at most sums");
  }
  for (const LayoutRecord& row : batch.layouts) {
    std::int64_t product = 1;
    for (const std::int64_t size : row.sizes) {
      require(size >= 0, "sizes are not negative");
      require(size == 0 || !__builtin_mul_overflow(product, size, &product), "sizes can be multiplied");
    }
  }
}

}  // namespace

void decode_columns(std::uint16_t type, std::size_t rows, std::span<const std::byte> packed,
                    std::span<const std::byte> plain) {
  trace::Scratch scratch;
  std::uint64_t cells = (4u << 20) + 512 * (packed.size() + plain.size());
  trace::ColumnReader columns(scratch, packed, plain, cells);
  if (type == trace::kEndType) {
    std::vector<trace::ChunkIndexRow> index;
    trace::decode_index(columns, rows, index);
    return;
  }
  const trace::RecordKind* kind = trace::find_record_kind(type);
  if (kind == nullptr || rows > trace::kMaxRows) return;
  RecordBatch batch;
  if (kind->decode(columns, rows, batch) != nullptr) return;
  require(kind->count(batch) == rows, "a chunk gives as many rows as it states");
  require_sound(batch);
}

void read_and_check(const std::string& path) {
  AttemptTrace attempt;
  attempt.dir = path;
  TraceHealth health;
  std::uint64_t rows = 0;
  const Status status = read_attempt(
      attempt,
      [&](const RecordBatch& batch) {
        require_sound(batch);
        for (const trace::RecordKind& kind : trace::record_kinds()) rows += kind.count(batch);
      },
      health);
  require(rows == health.rows, "the rows delivered are those counted");
  require(health.bytes_skipped <= health.bytes, "no more is skipped than there is");
  require(health.problems.size() <= trace::kMaxProblems, "the list of problems is bounded");
  require(status.is_ok() ? !health.damaged() : !status.message().empty(), "the status fits the account");
}

}  // namespace nanhunt::trace_testing
