// SPDX-License-Identifier: Apache-2.0
// Implements render_json of nanhunt/reporter.h. Moves together with schema/nanhunt.report.schema.json.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "nanhunt/reporter.h"
#include "reports/json/json_device_time.h"
#include "reports/json/json_finding.h"
#include "reports/json/json_layers.h"
#include "reports/json/json_lr_ramp.h"
#include "reports/json/json_run.h"
#include "reports/json/json_values.h"
#include "reports/views/report_model.h"

namespace nanhunt {
namespace {

using namespace reports;
using nlohmann::json;

constexpr int kSchemaVersion = 1;
constexpr std::size_t kJsonFindings = 256;
constexpr std::size_t kReporterRows = 4096;  // of each audit, of the timeline
constexpr std::size_t kJsonLayers = 2048;
constexpr std::size_t kJsonCells = kJsonLayers * 512;
constexpr std::size_t kJsonExperiments = 1024;
constexpr std::size_t kJsonRanks = 65536;

json coverage_to_json(const Coverage& c) {
  return {{"steps", json_count(c.steps)},
          {"ops", json_count(c.ops)},
          {"values", json_count(c.values)},
          {"records_dropped", json_count(c.records_dropped)},
          {"chunks_lost", json_count(c.chunks_lost)},
          {"clean_end", c.clean_end},
          {"trained", c.trained},
          {"unwatched", json_texts(c.unwatched)},
          {"not_modelled", json_texts(c.not_modelled)}};
}

json eps_to_json(const EpsAuditRow& row) {
  return {{"where", json_text(row.where)},
          {"phase", phase_name(row.phase)},
          {"eps", json_number(row.eps)},
          {"dtype", dtype_name(row.dtype)},
          {"stored", json_number(row.stored)},
          {"verdict", json_text(row.verdict)},
          {"occurrences", json_count(row.occurrences)},
          {"zero_denominators", json_count(row.zero_denominators)}};
}

json timeline_to_json(const Analysis& analysis) {
  json steps = json::array();
  for (const TimelineStep& step : analysis.timeline) {
    if (steps.size() == kReporterRows) break;
    steps.push_back({{"step", step.step},
                     {"skipped", step.skipped},
                     {"loss", json_number(step.loss)},
                     {"lr", json_number_or_null(step.lr)},
                     {"scale", json_number_or_null(step.scale)},
                     {"bad_ops", json_count(step.bad_ops)},
                     {"gradient_norm", json_number_or_null(step.gradient_norm)},
                     {"weight_norm", json_number_or_null(step.weight_norm)}});
  }
  const std::size_t shown = steps.size();
  return {{"rank", analysis.shown_rank ? json(*analysis.shown_rank) : json()},
          {"steps", std::move(steps)},
          {"layer_map", planes_to_json(make_layer_planes(analysis, kJsonLayers, kJsonCells))},
          {"omitted", json_count(analysis.timeline_omitted + (analysis.timeline.size() - shown))}};
}

json experiment_to_json(const ExperimentRecord& e) {
  return {{"fix", json_text(e.fix)},
          {"description", json_text(e.description)},
          {"step", e.step},
          {"finite", e.finite},
          {"further_steps", e.further_steps},
          {"loss_before", json_number(e.loss_before)},
          {"loss_after", json_number(e.loss_after)},
          {"update_factor", json_number(e.update_factor)},
          {"verified", e.verified}};
}

json update_loss_to_json(const UpdateLossRow& row) {
  return {{"module", json_text(row.module)},
          {"op", json_text(row.op)},
          {"dtype", dtype_name(row.dtype)},
          {"average", row.average},
          {"steps", json_count(row.steps)},
          {"steps_over", json_count(row.steps_over)},
          {"first_step_over", row.steps_over > 0 ? json(row.first_step_over) : json()},
          {"mean_share", json_number(row.mean_share)},
          {"worst_share", json_number(row.worst_share)}};
}

template <typename Row, typename ToJson>
json rows_to_json(const std::vector<Row>& rows, std::size_t limit, ToJson to_json) {
  json out = json::array();
  for (std::size_t i = 0; i < rows.size() && i < limit; ++i) out.push_back(to_json(rows[i]));
  return out;
}

}  // namespace

std::string render_json(const Analysis& analysis) {
  const Finding* origin = find_origin(analysis);
  // The finding the verdict names is always in the list, wherever the analysis put it.
  json findings = json::array();
  if (origin != nullptr) findings.push_back(finding_to_json(*origin));
  for (const Finding& finding : analysis.findings) {
    if (findings.size() == kJsonFindings) break;
    if (&finding != origin) findings.push_back(finding_to_json(finding));
  }
  const std::size_t findings_shown = findings.size();
  json headroom = rows_to_json(analysis.layers, kJsonLayers, layer_to_json);
  const std::uint64_t layers_omitted = analysis.layers_omitted + (analysis.layers.size() - headroom.size());
  const json report = {{"schema", "nanhunt.report"},
                       {"schema_version", kSchemaVersion},
                       {"run", {{"ranks", rows_to_json(analysis.ranks, kJsonRanks, rank_to_json)}}},
                       {"coverage", coverage_to_json(analysis.coverage)},
                       {"verdict",
                        {{"status", verdict_status_name(analysis.verdict.status)},
                         {"headline", json_text(analysis.verdict.headline)},
                         {"change", origin != nullptr ? json_text_or_null(change_sentence(*origin)) : json()},
                         {"origin", origin != nullptr ? json_text(origin->id) : json()}}},
                       {"findings", std::move(findings)},
                       {"findings_omitted", json_count(analysis.findings.size() - findings_shown)},
                       {"scaler", analysis.scaler ? scaler_to_json(*analysis.scaler) : json()},
                       {"lr_ramp", analysis.lr_ramp ? lr_ramp_to_json(*analysis.lr_ramp) : json()},
                       {"device_time", analysis.device_time ? device_time_to_json(*analysis.device_time) : json()},
                       {"eps_audit", rows_to_json(analysis.eps_audit, kReporterRows, eps_to_json)},
                       {"update_loss", rows_to_json(analysis.update_loss, kReporterRows, update_loss_to_json)},
                       {"headroom", std::move(headroom)},
                       {"headroom_omitted", json_count(layers_omitted)},
                       {"timeline", timeline_to_json(analysis)},
                       {"experiments", rows_to_json(analysis.experiments, kJsonExperiments, experiment_to_json)}};
  return dump_json(report) + "\n";
}

}  // namespace nanhunt
