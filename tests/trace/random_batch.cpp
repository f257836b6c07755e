// SPDX-License-Identifier: Apache-2.0
#include "tests/trace/random_batch.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace nanhunt::trace_testing {

std::uint64_t RandomBatches::any_u64() {
  const std::uint64_t bits = random_();
  switch (below(6)) {
    case 0:
      return 0;
    case 1:
      return bits & 0xff;
    case 2:
      return bits & 0xffff;
    case 3:
      return ~(bits & 0xff);  // near the top, negative as signed
    default:
      return bits >> below(64);
  }
}

double RandomBatches::any_double() {
  constexpr auto kInf = std::numeric_limits<double>::infinity();
  constexpr std::array<double, 8> kSpecial = {0.0,    -0.0,      kInf,    -kInf,
                                              5e-324, -2.2e-308, 65504.0, std::numeric_limits<double>::max()};
  switch (below(5)) {
    case 0:
      return kSpecial[below(kSpecial.size())];
    case 1:
      return std::bit_cast<double>(0x7ff0000000000000u | random_());  // NaN with a payload, or an infinity
    case 2:
      return static_cast<double>(static_cast<float>(static_cast<std::int64_t>(random_())) * 1e-20f);
    case 3:
      return std::bit_cast<double>(random_() & ~std::uint64_t{0} << 42);
    default:
      return std::bit_cast<double>(random_());
  }
}

std::string RandomBatches::any_text() {
  std::string text(below(40), '\0');
  for (char& c : text) c = static_cast<char>(random_());
  return text;
}

TensorStats RandomBatches::any_stats() {
  TensorStats stats;
  stats.level = static_cast<StatsLevel>(below(3));
  stats.numel = any_i64();
  if (chance(30)) {
    stats.any_nonfinite = chance(80);
    stats.first_nonfinite = any_i64();
  }
  if (stats.level == StatsLevel::kFinite) return stats;
  if (chance(30)) {
    stats.nan = any_i64();
    stats.pos_inf = any_i64();
    stats.neg_inf = any_i64();
  }
  if (chance(50)) stats.zero = any_i64();
  if (chance(50)) stats.subnormal = any_i64();
  if (chance(80)) {
    stats.min = any_double();
    stats.max = any_double();
    stats.amin_nonzero = any_double();
    stats.amax = chance(20) ? any_double() : std::max(std::abs(stats.min), std::abs(stats.max));
  }
  if (stats.level == StatsLevel::kSums) {
    stats.sum = any_double();
    stats.sum_sq = any_double();
  }
  return stats;
}

ValueRecord RandomBatches::any_value() {
  ValueRecord value;
  value.id = next_value_++;
  value.storage = chance(50) ? below(20) : any_u64();
  value.version = chance(50) ? static_cast<std::uint32_t>(below(5)) : any_u32();
  value.offset = chance(70) ? 0 : any_i64();
  value.layout = static_cast<LayoutId>(below(next_layout_));
  value.producer = chance(30) ? kNoSeq : any_u64();
  value.base = chance(70) ? 0 : any_u64();
  value.has_stats = chance(80);
  if (value.has_stats) value.stats = any_stats();
  value.flushed = chance(40) ? -1 : chance(60) ? 0 : any_i64();
  return value;
}

void RandomBatches::add_op(RecordBatch& batch) {
  const auto add_args = [&](std::vector<OpArg>& to, std::uint32_t& first, std::uint32_t& count) {
    first = static_cast<std::uint32_t>(to.size());
    count = chance(3) ? static_cast<std::uint32_t>(below(60)) : static_cast<std::uint32_t>(below(4));
    for (std::uint32_t i = 0; i < count; ++i) {
      to.push_back({chance(90) ? below(next_value_) : any_u64(), any_name(),
                    static_cast<ArgRole>(below(5))});
    }
  };
  OpRecord op;
  op.seq = next_seq_;
  next_seq_ += 1 + (chance(5) ? below(100) : 0);
  op.step = chance(95) ? static_cast<std::uint32_t>(op.seq / 60) : any_u32();
  op.micro_batch = any_u32();
  op.phase = static_cast<Phase>(below(10));
  op.module = any_name();
  op.op = any_name();
  op.call_site = any_name();
  op.compute_dtype = static_cast<DType>(below(kDTypeCount));
  add_args(batch.inputs, op.first_input, op.input_count);
  add_args(batch.outputs, op.first_output, op.output_count);
  op.first_scalar = static_cast<std::uint32_t>(batch.scalars.size());
  op.scalar_count = static_cast<std::uint32_t>(below(3));
  for (std::uint32_t i = 0; i < op.scalar_count; ++i) {
    batch.scalars.push_back({any_name(), any_double()});
  }
  batch.ops.push_back(op);
}

RecordBatch RandomBatches::next(std::size_t rows) {
  RecordBatch batch;
  const auto some = [&] { return rows / 2 + below(rows + 1); };
  for (std::size_t n = some(); n > 0; --n) batch.strings.push_back({next_string_++, any_text()});
  for (std::size_t n = some(); n > 0; --n) {
    LayoutRecord layout{next_layout_++, static_cast<DType>(below(kDTypeCount)), {}, {}};
    for (std::uint64_t dims = below(7); dims > 0; --dims) layout.sizes.push_back(static_cast<std::int64_t>(below(700)));
    for (std::uint64_t dims = below(7); dims > 0; --dims) layout.strides.push_back(any_i64());
    batch.layouts.push_back(std::move(layout));
  }
  const std::uint64_t first_seq = next_seq_;
  for (std::size_t n = some(); n > 0; --n) batch.values.push_back(any_value());
  for (std::size_t n = some(); n > 0; --n) add_op(batch);
  const auto sorted_seqs = [&] {
    std::vector<std::uint64_t> seqs(some());
    for (auto& seq : seqs) seq = first_seq + below(next_seq_ - first_seq + 1);
    std::ranges::sort(seqs);
    return seqs;
  };
  for (const auto seq : sorted_seqs()) {
    batch.marks.push_back({seq, any_u32(), any_u32(), static_cast<TensorRole>(below(7)),
                           any_name(), below(next_value_)});
  }
  for (std::size_t n = some(); n > 0; --n) {
    SampleIdsRecord row{any_u32(), any_u32(), {}};
    for (std::uint64_t ids = below(20); ids > 0; --ids) row.sample_ids.push_back(any_i64());
    batch.sample_ids.push_back(std::move(row));
  }
  for (const auto seq : sorted_seqs()) {
    batch.steps.push_back({any_u32(), chance(20), any_double(), any_double(), any_double(), seq, any_i64()});
  }
  for (const auto seq : sorted_seqs()) {
    EvidenceRecord row{seq, any_u64(), any_i64(), any_double(), {}};
    for (std::uint64_t items = below(4); items > 0; --items) {
      row.operands.push_back({any_name(), any_u64(), any_i64(), any_double()});
    }
    batch.evidence.push_back(std::move(row));
  }
  for (const auto seq : sorted_seqs()) batch.ends_of_life.push_back({any_u64(), seq});
  for (std::size_t n = some() / 4; n > 0; --n) {
    batch.experiments.push_back({any_text(), any_text(), any_u32(), chance(50), any_u32(), any_double(), any_double(),
                                 any_double(), chance(50)});
  }
  for (const auto seq : sorted_seqs()) batch.drops.push_back({seq, any_u64(), any_u64(), any_u64()});
  for (const auto seq : sorted_seqs()) {
    ScalerRecord row{seq, any_u32(), any_u32(), static_cast<ScalerAction>(below(10)), any_u32(), chance(50), chance(50)};
    row.scale = any_double();
    row.growth_tracker = any_i64();
    row.growth_interval = any_i64();
    row.hysteresis = any_u32();
    row.total_norm = any_double();
    row.max_norm = any_double();
    row.growth_factor = any_double();
    row.backoff_factor = any_double();
    row.text = any_name();
    batch.scaler.push_back(row);
  }
  for (const auto seq : sorted_seqs()) {
    HistogramRecord row{seq, any_u64(), static_cast<std::int32_t>(below(2149)) - 1074, {}};
    for (std::uint64_t bins = below(40); bins > 0; --bins) row.bins.push_back(any_i64());
    batch.histograms.push_back(std::move(row));
  }
  for (const auto seq : sorted_seqs()) {
    batch.retired.push_back({seq, any_u64(), any_u64(), any_u64(), any_u64(), any_u64()});
  }
  for (const auto seq : sorted_seqs()) {
    batch.health.push_back({seq, any_u32(), any_u32(), any_u32(), any_name(), any_double(), any_double(), any_u32()});
  }
  for (const auto seq : sorted_seqs()) {
    batch.norms.push_back({seq, any_u32(), static_cast<TensorRole>(below(7)), any_name(), any_double(), any_double()});
  }
  for (const auto seq : sorted_seqs()) {
    batch.unheard.push_back({seq, any_u32(), any_name()});
  }
  for (const auto seq : sorted_seqs()) {
    batch.changed.push_back({seq, any_u32(), any_u64(), any_u64(), any_u64(), any_u32(), chance(50)});
  }
  for (const auto seq : sorted_seqs()) {
    batch.probes.push_back({seq, any_u32(), static_cast<ProbeMode>(below(4)), static_cast<DType>(below(kDTypeCount)),
                            any_u32(), chance(50), any_i64(), any_i64(), any_i64(), any_i64(), any_double(),
                            any_name()});
  }
  for (const auto seq : sorted_seqs()) batch.captures.push_back({seq, any_u32(), any_name(), any_u64()});
  for (const auto seq : sorted_seqs()) batch.notes.push_back({seq, any_u32(), any_name(), any_u64()});
  for (const auto seq : sorted_seqs()) {
    batch.frames.push_back({seq, any_name(), any_u32(), any_name(), any_u32(), any_name(), any_u32(), any_name()});
  }
  for (const auto seq : sorted_seqs()) {
    batch.setup.push_back({seq, any_u32(), static_cast<SetupFact>(below(9)), any_name(), any_name(),
                           static_cast<DType>(below(kDTypeCount)), any_double(), any_name()});
  }
  for (const auto seq : sorted_seqs()) {
    CollectiveRecord row{chance(20) ? kNoSeq : seq,
                         any_u32(),
                         any_name(),
                         any_u64(),
                         static_cast<CollectiveKind>(below(11)),
                         static_cast<Reduction>(below(6)),
                         static_cast<std::int32_t>(below(9)) - 1,
                         {}};
    for (std::uint64_t ranks = below(9); ranks > 0; --ranks) row.ranks.push_back(any_u32());
    batch.collectives.push_back(std::move(row));
  }
  for (const auto seq : sorted_seqs()) {
    batch.kernels.push_back(
        {chance(20) ? kNoSeq : seq, any_u32(), any_name(), chance(30), any_u64(), any_u64(), any_i64()});
  }
  return batch;
}

}  // namespace nanhunt::trace_testing
