// SPDX-License-Identifier: Apache-2.0
#include "tests/trace/batch_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <iterator>

#include "src/core/text.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace_testing {
namespace {

// Bits first, since those are compared; the number is for people.
std::string number(double value) {
  return fmt::format("{:016x}({})", std::bit_cast<std::uint64_t>(value), format_number(value));
}

int as_int(auto value) { return static_cast<int>(value); }

class Text {
 public:
  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    out_ += '\n';
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

std::string stats_text(const TensorStats& s) {
  return fmt::format(
      "level={} numel={} any={} first={} nan={} +inf={} -inf={} zero={} subnormal={} amax={} amin={} min={} max={} "
      "sum={} "
      "sum_sq={}",
      as_int(s.level), s.numel, s.any_nonfinite, s.first_nonfinite, s.nan, s.pos_inf, s.neg_inf, s.zero, s.subnormal,
      number(s.amax), number(s.amin_nonzero), number(s.min), number(s.max), number(s.sum), number(s.sum_sq));
}

std::string op_text(const RecordBatch& batch, const OpRecord& op) {
  std::string text =
      fmt::format("op seq={} step={} mb={} phase={} module={} op={} site={} compute={}", op.seq, op.step,
                  op.micro_batch, as_int(op.phase), op.module, op.op, op.call_site, as_int(op.compute_dtype));
  for (std::size_t i = 0; i < op.input_count; ++i) {
    const OpArg& arg = batch.inputs.at(op.first_input + i);
    text += fmt::format(" in({},{},{})", arg.value, arg.slot, as_int(arg.role));
  }
  for (std::size_t i = 0; i < op.output_count; ++i) {
    const OpArg& arg = batch.outputs.at(op.first_output + i);
    text += fmt::format(" out({},{},{})", arg.value, arg.slot, as_int(arg.role));
  }
  for (std::size_t i = 0; i < op.scalar_count; ++i) {
    const ScalarArg& arg = batch.scalars.at(op.first_scalar + i);
    text += fmt::format(" scalar({},{})", arg.name, number(arg.value));
  }
  return text;
}

}  // namespace

std::string batch_text(const RecordBatch& batch) {
  Text out;
  for (const auto& row : batch.strings) out.line("string id={} text={}", row.id, printable(row.text));
  for (const auto& row : batch.layouts) {
    out.line("layout id={} dtype={} sizes=[{}] strides=[{}]", row.id, as_int(row.dtype), fmt::join(row.sizes, " "),
             fmt::join(row.strides, " "));
  }
  for (const auto& row : batch.values) {
    out.line("value id={} storage={} version={} offset={} layout={} producer={} base={} flushed={} {}", row.id,
             row.storage, row.version, row.offset, row.layout, row.producer, row.base, row.flushed,
             row.has_stats ? stats_text(row.stats) : "no stats");
  }
  for (const auto& row : batch.ops) out.line("{}", op_text(batch, row));
  for (const auto& row : batch.marks) {
    out.line("mark seq={} step={} mb={} kind={} path={} value={}", row.seq, row.step, row.micro_batch, as_int(row.kind),
             row.path, row.value);
  }
  for (const auto& row : batch.sample_ids) {
    out.line("samples step={} mb={} ids=[{}]", row.step, row.micro_batch, fmt::join(row.sample_ids, " "));
  }
  for (const auto& row : batch.steps) {
    out.line("step step={} skipped={} loss={} lr={} scale={} end={} wall={} watch={}", row.step, row.skipped, number(row.loss),
             number(row.lr), number(row.scale), row.end_seq, row.wall_ns, row.watch_ns);
  }
  for (const auto& row : batch.evidence) {
    std::string operands;
    for (const Operand& item : row.operands) {
      operands += fmt::format(" ({},{},{},{})", item.slot, item.value, item.flat_index, number(item.number));
    }
    out.line("evidence seq={} value={} index={} number={}{}", row.seq, row.value, row.flat_index, number(row.number),
             operands);
  }
  for (const auto& row : batch.ends_of_life) out.line("end of life storage={} seq={}", row.storage, row.seq);
  for (const auto& row : batch.experiments) {
    out.line("experiment fix={} description={} step={} finite={} further={} before={} after={} factor={} verified={}",
             printable(row.fix), printable(row.description), row.step, row.finite, row.further_steps,
             number(row.loss_before), number(row.loss_after), number(row.update_factor), row.verified);
  }
  for (const auto& row : batch.drops) {
    out.line("drop seq={} ops={} values={} other={}", row.seq, row.ops, row.values, row.other);
  }
  for (const auto& row : batch.scaler) {
    out.line(
        "scaler seq={} step={} mb={} action={} optimizer={} found_inf={} dynamic={} scale={} tracker={} interval={} "
        "hysteresis={} norm={} max={} growth={} backoff={} text={}",
        row.seq, row.step, row.micro_batch, scaler_action_name(row.action), row.optimizer, row.found_inf, row.dynamic,
        number(row.scale), row.growth_tracker, row.growth_interval, row.hysteresis, number(row.total_norm), number(row.max_norm),
        number(row.growth_factor), number(row.backoff_factor), row.text);
  }
  for (const auto& row : batch.histograms) {
    out.line("histogram seq={} value={} from={} bins=[{}]", row.seq, row.value, row.min_exponent,
             fmt::join(row.bins, " "));
  }
  for (const auto& row : batch.retired) {
    out.line("retired seq={} steps={} anomalies={} ops={} values={} other={}", row.seq, row.steps, row.anomalies,
             row.ops, row.values, row.other);
  }
  for (const auto& row : batch.health) {
    out.line("health seq={} step={} bad={} tensors={} first={} gradient={} weight={}", row.seq, row.step, row.bad,
             row.bad_tensors, row.first_bad, number(row.gradient_norm), number(row.weight_norm));
  }
  for (const auto& row : batch.norms) {
    out.line("norm seq={} step={} kind={} path={} norm={} amax={}", row.seq, row.step, tensor_role_name(row.kind),
             row.path, number(row.norm), number(row.amax));
  }
  for (const auto& row : batch.unheard) {
    out.line("unheard seq={} step={} text={}", row.seq, row.step, row.text);
  }
  for (const auto& row : batch.changed) {
    out.line("changed seq={} step={} before={} after={} since={} since_step={} opaque={}", row.seq, row.step,
             row.before, row.after, row.since_seq, row.since_step, row.opaque);
  }
  for (const auto& row : batch.probes) {
    out.line(
        "probe seq={} step={} mode={} dtype={} ops={} ran={} nan={} pos_inf={} neg_inf={} index={} number={} text={}",
        row.seq, row.step, probe_mode_name(row.mode), dtype_name(row.dtype), row.ops, row.ran, row.nan, row.pos_inf,
        row.neg_inf, row.flat_index, number(row.number), row.text);
  }
  for (const auto& row : batch.captures) {
    out.line("capture seq={} step={} file={} bytes={}", row.seq, row.step, row.file, row.bytes);
  }
  for (const auto& row : batch.notes) {
    out.line("note seq={} step={} text={} count={}", row.seq, row.step, row.text, row.count);
  }
  for (const auto& row : batch.frames) {
    out.line("frame seq={} site={} depth={} file={} line={} function={} first_line={} code={}", row.seq, row.site,
             row.depth, row.file, row.line, row.function, row.first_line, row.code);
  }
  for (const auto& row : batch.setup) {
    out.line("setup seq={} step={} fact={} path={} site={} dtype={} number={} text={}", row.seq, row.step,
             setup_fact_name(row.fact), row.path, row.site, dtype_name(row.dtype), number(row.number), row.text);
  }
  for (const auto& row : batch.collectives) {
    out.line("collective seq={} step={} group={} call={} kind={} reduction={} peer={} ranks=[{}]", row.seq, row.step,
             row.group, row.call, collective_kind_name(row.kind), reduction_name(row.reduction), row.peer,
             fmt::join(row.ranks, " "));
  }
  for (const auto& row : batch.kernels) {
    out.line("kernel seq={} step={} name={} own={} count={} timed={} ns={}", row.seq, row.step, row.name, row.own,
             row.count, row.timed, row.duration_ns);
  }
  return out.take();
}

std::string info_text(const RunInfo& info) {
  Text out;
  out.line("command=[{}] version={} framework={} device={} level={} scenario={} dtypes=[{}]",
           fmt::join(info.command, "|"), info.nanhunt_version, info.framework, info.device, info.level, info.scenario,
           fmt::join(info.dtypes, " "));
  out.line("rank={} world={} attempt={} started={} host={} pid={}", info.rank, info.world_size, info.attempt,
           info.started, info.host, info.pid);
  for (const auto& [name, value] : info.options) out.line("option {}={}", name, value);
  for (const auto& [name, version] : info.packages) out.line("package {}={}", name, version);
  out.line("commit {} tree {}", info.commit, info.tree);
  return out.take();
}

void append_batch(const RecordBatch& from, RecordBatch& to) {
  for (const trace::RecordKind& kind : trace::record_kinds()) {
    for (std::size_t row = 0; row < kind.count(from); ++row) kind.copy(from, row, to);
  }
}

}  // namespace nanhunt::trace_testing
