// SPDX-License-Identifier: Apache-2.0
// Kinds of `nanhunt dump` that tell of the run as a whole and of the fate of its records.
#include "tools/nanhunt/dump/dump_kinds.h"

namespace nanhunt::cli {
namespace {

using nlohmann::json;
using namespace reports;

void free_rows(const RecordBatch& batch, const TraceNames&, const EmitRow& emit) {
  for (const EndOfLifeRecord& row : batch.ends_of_life) {
    emit({}, {{"seq", json_seq(row.seq)}, {"storage", json_count(row.storage)}});
  }
}

void experiment_rows(const RecordBatch& batch, const TraceNames&, const EmitRow& emit) {
  for (const ExperimentRecord& e : batch.experiments) {
    emit({e.step, {}}, {{"step", e.step},
                        {"fix", json_text(e.fix)},
                        {"description", json_text(e.description)},
                        {"finite", e.finite},
                        {"verified", e.verified},
                        {"further_steps", e.further_steps},
                        {"loss_before", json_number(e.loss_before)},
                        {"loss_after", json_number(e.loss_after)},
                        {"update_factor", json_number(e.update_factor)}});
  }
}

void drop_rows(const RecordBatch& batch, const TraceNames&, const EmitRow& emit) {
  for (const DropRecord& row : batch.drops) {
    emit({}, {{"seq", json_seq(row.seq)},
              {"ops", json_count(row.ops)},
              {"values", json_count(row.values)},
              {"other", json_count(row.other)}});
  }
}

void retired_rows(const RecordBatch& batch, const TraceNames&, const EmitRow& emit) {
  for (const RetiredRecord& row : batch.retired) {
    emit({}, {{"seq", json_seq(row.seq)},
              {"steps", json_count(row.steps)},
              {"anomalies", json_count(row.anomalies)},
              {"ops", json_count(row.ops)},
              {"values", json_count(row.values)},
              {"other", json_count(row.other)}});
  }
}

void scaler_rows(const RecordBatch& batch, const TraceNames& names, const EmitRow& emit) {
  for (const ScalerRecord& row : batch.scaler) {
    emit({row.step, {}}, {{"seq", json_seq(row.seq)},
                          {"step", row.step},
                          {"micro_batch", row.micro_batch},
                          {"action", scaler_action_name(row.action)},
                          {"optimizer", row.optimizer},
                          {"found_inf", row.found_inf},
                          {"scale", json_number(row.scale)},
                          {"growth_tracker", json_integer(row.growth_tracker)},
                          {"total_norm", json_number(row.total_norm)},
                          {"max_norm", json_number(row.max_norm)},
                          {"dynamic", row.dynamic},
                          {"growth_factor", json_number(row.growth_factor)},
                          {"backoff_factor", json_number(row.backoff_factor)},
                          {"growth_interval", json_integer(row.growth_interval)},
                          {"text", name_json(names, row.text)}});
  }
}

void histogram_rows(const RecordBatch& batch, const TraceNames& names, const EmitRow& emit) {
  for (const HistogramRecord& row : batch.histograms) {
    const OpBrief* op = names.op(row.seq);
    RowPlace place;
    if (op != nullptr) place = {op->step, names.text(op->module)};
    emit(place, {{"seq", json_seq(row.seq)},
                 {"op", op == nullptr ? json() : name_json(names, op->op)},
                 {"module", op == nullptr ? json() : name_json(names, op->module)},
                 {"value", id_json(row.value)},
                 {"min_exponent", row.min_exponent},
                 {"bins", row.bins}});
  }
}

}  // namespace

std::vector<DumpKind> run_kinds() {
  return {
      {"frees", false, false, {"seq", "storage"}, free_rows},
      {"experiments",
       true,
       false,
       {"step", "fix", "verified", "finite", "further_steps", "loss_before", "loss_after", "update_factor",
        "description"},
       experiment_rows},
      {"drops", false, false, {"seq", "ops", "values", "other"}, drop_rows},
      {"scaler",
       true,
       false,
       {"step", "seq", "action", "scale", "found_inf", "growth_tracker", "total_norm", "max_norm", "text"},
       scaler_rows},
      {"histograms", true, true, {"seq", "op", "module", "value", "min_exponent", "bins"}, histogram_rows},
      {"retired", false, false, {"seq", "steps", "anomalies", "ops", "values", "other"}, retired_rows},
  };
}

}  // namespace nanhunt::cli
