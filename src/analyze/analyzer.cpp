// SPDX-License-Identifier: Apache-2.0
// Analyzer: feeds the rows of a batch, in the order in which things happened, to the value graph and the audits, and
// words the verdict.
#include "nanhunt/analyzer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "src/analyze/watch/device_time.h"
#include "src/analyze/watch/endings.h"
#include "src/analyze/watch/eps_audit.h"
#include "src/analyze/findings/aftermath.h"
#include "src/analyze/findings/findings.h"
#include "src/analyze/findings/elsewhere.h"
#include "src/analyze/findings/ops_in_trace.h"
#include "src/analyze/watch/kept_gradients.h"
#include "src/analyze/watch/layer_watch.h"
#include "src/analyze/watch/lr_ramp.h"
#include "src/analyze/findings/merge.h"
#include "src/analyze/watch/norm_watch.h"
#include "src/analyze/watch/own_scaler.h"
#include "src/analyze/ranks/rank_pass.h"
#include "src/analyze/rules/run/comm_underflow.h"
#include "src/analyze/rules/run/gradient_underflow.h"
#include "src/analyze/rules/run/precision_audit.h"
#include "src/analyze/rules/run/unheard.h"
#include "src/analyze/rules/run/setup_audit.h"
#include "src/analyze/rules/origin/underflow.h"
#include "src/analyze/rules/run/standstill.h"
#include "src/analyze/rules/run/training_trend.h"
#include "src/analyze/rules/run/update_loss.h"
#include "src/analyze/watch/health_watch.h"
#include "src/analyze/watch/sources.h"
#include "src/analyze/wording/advice.h"
#include "src/analyze/wording/text.h"
#include "src/analyze/watch/timeline.h"
#include "src/analyze/graph/value_graph.h"
#include "src/trace/in_order.h"

namespace nanhunt {
namespace analyze {
namespace {

constexpr std::size_t kMaxEvidence = 4096;
constexpr std::size_t kMaxExperiments = 1024;
constexpr std::size_t kMaxProbes = 1024;
constexpr std::size_t kMaxNotes = 1024;
constexpr std::size_t kMaxBins = 1u << 20;  // of histograms

class AnalyzerImpl final : public RankPass {
 public:
  AnalyzerImpl(const AnalyzeOptions& options, std::optional<std::uint32_t> rank)
      : options_(options),
        rank_(rank.value_or(0)),
        comm_(names_),
        graph_(names_),
        eps_(names_, graph_),
        state_underflow_(names_),
        gradient_underflow_(names_),
        comm_underflow_(names_),
        update_loss_(names_),
        standstill_(names_),
        trend_(names_),
        setup_(names_),
        precision_(names_, graph_),
        sources_(names_),
        scaler_(names_),
        own_scaler_(names_, scaler_),
        kept_gradients_(names_),
        endings_(names_),
        norms_(names_),
        layers_(names_),
        device_(names_),
        health_(names_) {
    if (!rank) return;
    graph_.set_rank(*rank);
    comm_.set_rank(*rank);
  }

  void add(const RecordBatch& batch) override {
    for (const StringRecord& record : batch.strings) names_.add(record);
    for (const LayoutRecord& record : batch.layouts) names_.add(record);
    for (const NoteRecord& note : batch.notes) {
      if (notes_.size() < kMaxNotes || notes_.contains(note.text)) notes_[note.text] = note.count;
    }
    for (const FrameRecord& record : batch.frames) sources_.on_frame(record);
    for (const SetupRecord& record : batch.setup) {
      sources_.on_setup(record);
      setup_.on_setup(record);
      norms_.on_setup(record);
      replicas_.on_setup(record, names_);
    }
    for (const ValueRecord& record : batch.values) graph_.add_value(record);
    for (const EvidenceRecord& record : batch.evidence) {
      if (evidence_count_++ < kMaxEvidence) evidence_[record.seq].push_back(record);
    }
    for (const HistogramRecord& record : batch.histograms) {
      histogram_bins_ += record.bins.size();
      if (histogram_bins_ <= kMaxBins) histograms_[record.seq].push_back(record);
    }
    for (const ProbeRecord& record : batch.probes) {
      if (probe_count_++ < kMaxProbes) probes_[record.seq].push_back(record);
    }
    for (const ExperimentRecord& record : batch.experiments) {
      if (experiments_.size() < kMaxExperiments) experiments_.push_back(record);
    }
    for (const CollectiveRecord& record : batch.collectives) {
      comm_.on_row(record);
      own_scaler_.on_collective(record);
    }
    Visitor visitor{*this, batch};
    trace::for_each_in_order(batch, visitor);
  }

  Analysis finish(const RunInfo& info, const TraceHealth& health) override;
  void end(const TraceHealth& health) override;
  Analysis judge(const RunInfo& info, const TraceHealth& health, const RankVerdict& others) override;
  std::uint32_t rank() const override { return rank_; }
  const Names& names() const override { return names_; }
  ValueGraph& graph() override { return graph_; }
  const CommWatch& comm() const override { return comm_; }
  const HealthWatch& health() const override { return health_; }
  const ReplicaWatch& replicas() const override { return replicas_; }

 private:
  struct Visitor {
    AnalyzerImpl& to;
    const RecordBatch& batch;

    void on(const OpRecord& op) { to.on_op(batch, op); }
    void on(const MarkRecord& mark) { to.on_mark(mark); }
    void on(const StepRecord& step) { to.on_step(step); }
    void on(const SampleIdsRecord& row) { to.graph_.on_samples(row); }
    void on(const EndOfLifeRecord& end) { to.graph_.on_end_of_life(end.storage); }
    void on(const DropRecord& drop) {
      to.dropped_ += drop.ops + drop.values + drop.other;
      to.graph_.on_loss_of_records();
    }
    // What was retired on purpose leaves the same gap in the graph as what was dropped.
    void on(const RetiredRecord& row) {
      to.retired_ops_ += row.ops;
      to.graph_.on_loss_of_records();
    }
    void on(const ScalerRecord& row) { to.scaler_.on_scaler(row); }
    void on(const ChangedRecord& row) { to.graph_.on_changed(row); }
    void on(const NormRecord& row) {
      to.graph_.on_norm(row);
      to.norms_.on_norm(row);
      to.trend_.on_norm(row);
    }
    void on(const UnheardRecord& row) { to.health_.on_unheard(row); }
    void on(const HealthRecord& row) {
      to.health_.on_health(row);
      to.replicas_.on_health(row);
    }
    void on(const KernelRecord& row) { to.device_.on_kernel(row); }
  };

  void on_op(const RecordBatch& batch, const OpRecord& op) {
    const OpInView& view = graph_.on_op(batch, op, comm_.call_of(op));
    for (const ValueGraph::DeferredResult& late : graph_.take_deferred_results()) comm_.on_deferred(late);
    comm_.on_op(view, graph_);
    own_scaler_.on_op(view);
    kept_gradients_.on_op(view);
    eps_.on_op(view);
    state_underflow_.on_op(view);
    gradient_underflow_.on_op(view);
    comm_underflow_.on_op(view);
    update_loss_.on_op(view);
    standstill_.on_op(view);
    setup_.on_op(view);
    precision_.on_op(view);
    layers_.on_op(view);
    device_.on_op(view);
    if (const auto path = graph_.written_parameter(view)) norms_.note_write(*path, op.step);
  }

  void on_mark(const MarkRecord& mark) {
    if (health_.was_unheard(mark.step) && is_sink(mark.kind)) {
      graph_.on_unheard_mark(mark);
    } else {
      graph_.on_mark(mark);
    }
    update_loss_.on_mark(mark);
    endings_.on_mark(mark);
    for (const ValueGraph::DeferredResult& late : graph_.take_deferred_results()) comm_.on_deferred(late);
    if (const Value* value = graph_.value(mark.value)) {
      const bool unscaled = value->made_in == Phase::kUnscale || value->made_in == Phase::kClip;
      norms_.on_mark(mark, *value, unscaled ? 1 : scaler_.gradient_factor());
      if (mark.kind == TensorRole::kBoundaryGradient) kept_gradients_.on_gradient(*value);
    }
  }

  void on_step(const StepRecord& record);
  Finding bad_loss_finding() const;
  void add_audits(std::vector<Finding>& findings) const;
  void recommend_scale(ScalerSection& section, const std::vector<Finding>& findings) const;
  OpsInTrace ops_in_trace(const RunInfo& info, const TraceHealth& health) const;
  void tell_unread_inputs(Analysis& analysis) const;
  void fill_coverage(Analysis& analysis, const RunInfo& info, const TraceHealth& health, const OpsInTrace& ops) const;

  AnalyzeOptions options_;
  std::uint32_t rank_ = 0;
  Names names_;
  CommWatch comm_;
  ValueGraph graph_;
  EpsAudit eps_;
  StateUnderflow state_underflow_;
  GradientUnderflow gradient_underflow_;
  CommUnderflow comm_underflow_;
  UpdateLoss update_loss_;
  Standstill standstill_;
  TrainingTrend trend_;
  SetupAudit setup_;
  PrecisionAudit precision_;
  Sources sources_;
  ScalerWatch scaler_;
  OwnScaler own_scaler_;
  KeptGradients kept_gradients_;
  Endings endings_;
  NormWatch norms_;
  LayerWatch layers_;
  LrRampWatch lr_ramp_;
  DeviceTimes device_;
  HealthWatch health_;
  ReplicaWatch replicas_;
  Timeline timeline_;
  EvidenceMap evidence_;
  HistogramMap histograms_;
  std::size_t histogram_bins_ = 0;
  std::size_t evidence_count_ = 0;
  ProbeMap probes_;
  std::size_t probe_count_ = 0;
  std::vector<ExperimentRecord> experiments_;
  std::map<StringId, std::uint64_t> notes_;  // what was not watched, and how often
  std::uint64_t dropped_ = 0, retired_ops_ = 0;
  std::optional<TimelineStep> bad_loss_;
  StepSet bad_losses_;
  StepSet bad_steps_;  // something that is trained was not finite
};

void AnalyzerImpl::on_step(const StepRecord& told) {
  StepRecord record = told;
  own_scaler_.on_step_end(told, graph_);
  // A run may end right after a step that its own scaler gave up, which only a further step would show.
  const bool ends = record.ending == StepEnding::kEnd || record.ending == StepEnding::kExit;
  const bool may_give_up = ends && scaler_.skips_itself();
  const bool gives_up =
      may_give_up && (health_.only_gradients_are_bad(record.step) || graph_.only_backward_went_bad());
  record.skipped = record.skipped || gives_up;
  TimelineStep step;
  step.step = record.step;
  const bool finished = record.ending == StepEnding::kOptimizer;
  step.loss = record.loss;
  step.lr = record.lr;
  StepRecord counted = record;  // whatever made its gradients bad, the scaler skips it
  counted.skipped = counted.skipped ||
                    (may_give_up && (health_.gradients_are_bad(record.step) || graph_.gradients_are_bad()));
  const StepOutcome outcome = scaler_.on_step_end(counted);
  if (scaler_.is_own() && outcome.scaled && outcome.scale > 0) step.loss = record.loss /= outcome.scale;
  // Where bad gradients were given up they speak for the step.
  const bool left = outcome.unfinished && graph_.only_backward_went_bad();
  const bool speaks = !gives_up && !left && (!record.skipped || !graph_.step_is_bad());
  const bool stopped = record.ending == StepEnding::kException || record.ending == StepEnding::kExit;
  const bool forward = record.ending == StepEnding::kForward;
  const bool gave_up = record.ending == StepEnding::kNextForward;
  if (finished || gave_up) graph_.note_trained();
  if (forward) graph_.note_forward();
  const bool validation_is_bad = graph_.validation_is_bad();
  const bool ended_bad = !finished && speaks &&
                         (graph_.trained() ? graph_.judge_unfinished(record.step, stopped, gave_up)
                                           : graph_.judge_forward(record.step, !forward, stopped));
  step.skipped = outcome.held_back;
  step.scale = outcome.scaled ? outcome.scale : record.scale;
  const bool bad_unseen = health_.on_step_end(record, outcome, graph_);
  step.bad_ops = graph_.on_step_end(record, outcome, bad_unseen);
  const HealthRecord* health = health_.health();
  const NormWatch::Norms norms = norms_.on_step_end(record.step, finished ? record.loss : 0, graph_.step_was_bad(),
                                                    health == nullptr ? nullptr : &health->gradient_norm, record.lr);
  gradient_underflow_.on_step_end(record.step, outcome.scaled ? outcome.scale : 1);
  comm_underflow_.on_step_end(record.step);
  layers_.on_step_end(record.step, outcome.scaled ? outcome.scale : 1, outcome.held_back);
  if (finished) update_loss_.on_step_end(record.step, record.loss);
  standstill_.on_step_end();
  if (finished) kept_gradients_.on_step_end(record.step);
  if (finished && !outcome.held_back) trend_.on_step_end(record.step, record.loss, norms.gradient, record.lr);
  if (finished) lr_ramp_.on_step_end(record.step, record.lr, record.loss);
  sources_.on_step_end(record);
  setup_.on_step_end(record, outcome.scaled && outcome.scale != 1);
  step.gradient_norm = norms.gradient;
  step.weight_norm = health != nullptr && std::isnan(norms.weight) ? health->weight_norm : norms.weight;
  timeline_.add(step);
  if (bad_unseen || graph_.step_was_bad() || !std::isfinite(record.loss)) bad_steps_.add(record.step);
  endings_.on_step_end(record, ended_bad || (!finished && (bad_unseen || graph_.step_was_bad())));
  if (record.ending == StepEnding::kEnd && graph_.trained() && (validation_is_bad || health_.only_validation_was_bad()))
    endings_.on_last_validation(record.step);
  if (!finished || std::isfinite(record.loss)) return;
  if (!bad_loss_) bad_loss_ = step;
  bad_losses_.add(record.step);
}

// The loss went bad and no record shows how: said, not hidden.
Finding AnalyzerImpl::bad_loss_finding() const {
  Finding f;
  f.cls = FindingClass::kUnexplained;
  f.confidence = Confidence::kInferred;
  f.place.step = f.first_step = f.last_step = bad_loss_->step;
  f.bad_steps = {bad_losses_.count(), 1, bad_losses_.count() - 1, bad_losses_.first(), bad_losses_.last()};
  f.place.phase = Phase::kLoss;
  f.scale = bad_loss_->scale;
  f.title = fmt::format("The loss of step {} was {} and nothing that was recorded shows why", bad_loss_->step,
                        number(bad_loss_->loss));
  f.explanation = "No watched value was bad: the records that would show the origin are missing or were never made.";
  f.sinks.emplace_back("loss");
  return f;
}

// Where nothing is trained there is no loss: all that runs is a forward.
void call_forward(Finding& finding) {
  finding.trained = false;
  const auto rename = [](Phase& phase) {
    if (phase == Phase::kLoss || phase == Phase::kValidation) phase = Phase::kForward;
  };
  const auto correct = [&](OpPlace& place) {
    rename(place.phase);
    if (place.module == kOutsideModules) place.module.reset();
  };
  correct(finding.place);
  for (std::optional<OpPlace>* place : {&finding.first_inf, &finding.first_nan}) {
    if (*place) correct(**place);
  }
  for (ChainNode& node : finding.chain.nodes) {
    rename(node.phase);
    if (node.module == kOutsideModules) node.module.clear();
  }
  for (std::string& sink : finding.sinks) {
    if (sink == "what a validation computed" || sink == "what the step ended with") sink = "what a forward gave";
  }
}

// What needs no failure to be wrong. What has failed already is not told a second time.
void AnalyzerImpl::add_audits(std::vector<Finding>& findings) const {
  std::vector<Finding> audits = eps_.findings();
  std::erase_if(audits, [&](const Finding& audit) {
    return std::any_of(findings.begin(), findings.end(), [&](const Finding& f) {
      const bool pole = f.cls == FindingClass::kDivideByZero && f.place.module == audit.place.module;
      return f.severity == Severity::kFault && (f.cls == FindingClass::kEpsUnderflow || pole);
    });
  });
  const std::optional<ScalerSection> scaler = scaler_.section();
  // Gradients that were lost say already that there is no scaler.
  const bool lost = std::any_of(findings.begin(), findings.end(), [](const Finding& f) {
    return f.cls == FindingClass::kUnderflow && f.place.phase == Phase::kBackward;
  });
  for (Finding& f : setup_.findings(scaler ? &*scaler : nullptr)) {
    const bool same = lost && std::any_of(f.advice.begin(), f.advice.end(), [](const Advice& a) { return a.id == "loss-scaling"; });
    if (!same) audits.push_back(std::move(f));
  }
  for (Finding& f : precision_.findings(setup_.autocasts(DType::kF16))) audits.push_back(std::move(f));
  for (Finding& f : audits) findings.push_back(std::move(f));
}

// What was seen to hold, and whose gradients overflow above it. Not where skips were a fault's: a scale has no part in it.
void AnalyzerImpl::recommend_scale(ScalerSection& section, const std::vector<Finding>& findings) const {
  const auto held = scaler_.recommended_scale();
  const auto is_of_scale = [](const Finding& f) {
    return f.cls == FindingClass::kScalerCalibration || f.cls == FindingClass::kScalerCollapse;
  };
  const bool none_of_scale = std::none_of(findings.begin(), findings.end(), is_of_scale);
  const bool fault = std::any_of(findings.begin(), findings.end(),
                                 [](const Finding& f) { return f.severity == Severity::kFault; });
  if (!held || (fault && none_of_scale)) return;
  section.recommended_init_scale = held->scale;
  const auto cap = layers_.scale_cap();
  if (cap && cap->scale < *scaler_.least_skipped()) section.capped_by = names_.text(cap->module);
}

OpsInTrace AnalyzerImpl::ops_in_trace(const RunInfo& info, const TraceHealth& health) const {
  OpsInTrace ops;
  bool some_left_out = false;
  for (const auto& [text, count] : notes_) {
    if (ops.why_no_tap.empty()) ops.why_no_tap = why_no_tap(names_.text(text));
    some_left_out = some_left_out || names_.text(text).starts_with("operations of steps");
  }
  ops.damaged = health.damaged() || lost_before_salvage(info).damaged();
  ops.all = info.level == "ops" || (info.level == "live" && !some_left_out);
  return ops;
}

void AnalyzerImpl::fill_coverage(Analysis& analysis, const RunInfo& info, const TraceHealth& health,
                                 const OpsInTrace& ops) const {
  const GraphCounts& counts = graph_.counts();
  Coverage& coverage = analysis.coverage;
  coverage.steps = timeline_.seen();
  coverage.trained = graph_.trained() || coverage.steps == 0;
  coverage.ops = counts.ops;
  coverage.values = counts.values;
  coverage.records_dropped = dropped_ + health.rows_lost;
  coverage.chunks_lost = health.chunks_lost;
  // A copy of a damaged or killed run's trace is whole itself; what it was made from was not.
  const TraceHealth before = lost_before_salvage(info);
  coverage.chunks_lost += before.chunks_lost;
  coverage.clean_end = health.clean_end && before.clean_end;
  coverage.unwatched.emplace_back("Intermediate results inside a kernel: only its inputs and outputs are seen.");
  if (health.steps_retired > 0) {
    coverage.unwatched.push_back(
        fmt::format("{} retired to keep the trace within its limit, with {}.",
                    count_of(static_cast<std::int64_t>(health.steps_retired), "step"),
                    count_of(static_cast<std::int64_t>(retired_ops_), "op")));
  }
  if (counts.lost_ops > retired_ops_) {
    coverage.unwatched.push_back(fmt::format("{} ops whose records are missing.", counts.lost_ops - retired_ops_));
  }
  if (graph_.evicted() > 0) {
    coverage.unwatched.push_back(fmt::format("{} values that were given up to bound memory.", graph_.evicted()));
  }
  if (counts.births_forgotten > 0) {
    coverage.unwatched.push_back(fmt::format("{} further origins beyond the first ones.", counts.births_forgotten));
  }
  // Two ids may have one text in a trace that was tampered with.
  for (const auto& [text, count] : notes_) coverage.notes[names_.text(text)] = count;
  health_.fill_coverage(coverage, info.level, ops.level_helps(),
                          ops.all && ops.why_no_tap.empty() && info.level == "live");
  endings_.fill_coverage(coverage);
  if (health_.seen() && health_.judged() < endings_.finished())
    coverage.unjudged = fmt::format("{} of {} steps could not be judged", endings_.finished() - health_.judged(),
                                    endings_.finished());
  if (!health_.seen() && coverage.ops == 0 && (endings_.finished() > 0 || info.level != "ops"))
    coverage.unjudged = "no operation was watched";
  for (const auto& [text, count] : coverage.notes) {
    constexpr std::string_view kRaised = "what would have followed: the program ended with an exception: ";
    if (text.starts_with(kRaised)) coverage.exception = text.substr(kRaised.size());
    if (text.starts_with("unread gradients") || text.starts_with("unread parameters"))
      coverage.unjudged = "gradients or parameters of a kind that is not read were trained";
    if (constexpr std::string_view kValues = "unread values: "; text.starts_with(kValues))
      coverage.unjudged = "some values were not read: " + text.substr(kValues.size());
    if (text.starts_with("errors inside nanhunt")) coverage.unjudged = "errors inside nanhunt left parts of the run unseen";
    if (text.starts_with("training in other threads")) coverage.unjudged = "what trained in other threads was not watched";
  }
  if (info.framework.starts_with("nanhunt-engine")) {
    coverage.not_modelled = {"Split-K reduction in fp16.", "TF32 rounding of inputs.",
                             "Intermediates kept by fused kernels."};
  }
}

// What operations were given and nobody read: which ones, and whether a finding rests on them.
void AnalyzerImpl::tell_unread_inputs(Analysis& analysis) const {
  const GraphCounts& counts = graph_.counts();
  if (counts.unwatched_inputs == 0) return;
  std::vector<std::string> ops;
  for (const StringId op : counts.unread_by) ops.push_back(names_.text(op));
  const bool doubted = std::any_of(analysis.findings.begin(), analysis.findings.end(), [](const Finding& f) {
    return f.severity != Severity::kInfo && f.confidence == Confidence::kInferred;
  });
  analysis.coverage.unwatched.push_back(fmt::format(
      "What {} of operations held (the first of {}): it was not read, or its records are missing. {}",
      count_of(static_cast<std::int64_t>(counts.unwatched_inputs), "input"), join(ops, 3, " and "),
      doubted ? "What is inferred may rest on it." : "No finding rests on it."));
}

void AnalyzerImpl::end(const TraceHealth& health) {
  // The run was killed, or goes on: what the step at hand has made so far speaks for it.
  if (!health.clean_end && graph_.made_bad_number()) {
    StepRecord last;
    last.step = graph_.step();
    last.ending = StepEnding::kEnd;
    last.loss = last.lr = std::numeric_limits<double>::quiet_NaN();
    on_step(last);
  }
  if (graph_.trained() && graph_.validation_is_bad()) endings_.on_last_validation(graph_.step());
  if (graph_.step_is_bad()) norms_.on_step_end(graph_.step(), std::numeric_limits<double>::quiet_NaN(), true);
  graph_.finish();
}

Analysis AnalyzerImpl::finish(const RunInfo& info, const TraceHealth& health) {
  end(health);
  RankVerdict alone;
  alone.rank = info.rank;
  Analysis analysis = judge(info, health, alone);
  conclude(analysis, options_);
  return analysis;
}

Analysis AnalyzerImpl::judge(const RunInfo& info, const TraceHealth& health, const RankVerdict& others) {
  Analysis analysis;
  analysis.ranks.push_back({info.rank, info.attempt, info, health});
  const OpsInTrace ops = ops_in_trace(info, health);
  fill_coverage(analysis, info, health, ops);
  analysis.findings = find_faults(graph_, names_, {evidence_, histograms_, scaler_, norms_.growths(), probes_, others,
                                                   graph_.other_sizes()});
  const bool trained = analysis.coverage.trained;
  report_unheard(analysis.findings, health_, norms_.growths(), others, trained);
  join_aftermath(analysis.findings, bad_steps_);
  endings_.conclude(analysis.findings, trained);
  analysis.findings.insert(analysis.findings.end(), others.findings.begin(), others.findings.end());
  const bool elsewhere = bad_loss_ && others.carried_from <= bad_loss_->step;
  const bool explained =
      elsewhere || std::any_of(analysis.findings.begin(), analysis.findings.end(), [&](const Finding& f) {
        return bad_loss_ && f.severity == Severity::kFault && f.place.step <= bad_loss_->step;
      });
  if (bad_loss_ && !explained) analysis.findings.insert(analysis.findings.begin(), bad_loss_finding());
  lr_ramp_.conclude(analysis.findings);
  kept_gradients_.conclude(analysis.findings);
  if (auto warning = state_underflow_.finding()) analysis.findings.push_back(std::move(*warning));
  if (auto lost = gradient_underflow_.finding()) analysis.findings.push_back(std::move(*lost));
  if (auto lost = comm_underflow_.finding()) analysis.findings.push_back(std::move(*lost));
  if (auto lost = update_loss_.finding()) analysis.findings.push_back(std::move(*lost));
  for (Finding& lost : standstill_.findings()) analysis.findings.push_back(std::move(lost));
  const bool faulty = std::any_of(analysis.findings.begin(), analysis.findings.end(),
                                  [](const Finding& f) { return f.severity == Severity::kFault; });
  // Who embeds the recorder need not know norms of gradients.
  if (!faulty && trained && info.framework.starts_with("torch"))
    for (Finding& trend : trend_.findings()) analysis.findings.push_back(std::move(trend));
  add_audits(analysis.findings);
  advise_recording(analysis.findings, ops);
  advise_elsewhere(analysis.findings, analysis.coverage);
  if (!info.framework.starts_with("torch")) name_no_functions_of_pytorch(analysis.findings);
  tell_unread_inputs(analysis);
  for (Finding& finding : analysis.findings) {
    if (!trained) call_forward(finding);
    sources_.fill(finding);
    fit_to_autocast(finding, info.framework.starts_with("torch") && setup_.autocasts());
    finding.bad_steps.open = finding.bad_steps.open && finding.bad_steps.last < graph_.last_ended();
    if (finding.ranks.empty()) finding.ranks = {info.rank};
    finding.rank = finding.ranks.front();
    if (finding.rank == info.rank) finding.kernel = device_.kernel_of(finding.place.seq);
  }
  add_experiments(analysis.findings, experiments_);
  analysis.experiments = std::move(experiments_);
  analysis.eps_audit = eps_.rows();
  analysis.update_loss = update_loss_.rows();
  analysis.scaler = scaler_.section();
  if (analysis.scaler) recommend_scale(*analysis.scaler, analysis.findings);
  layers_.fill(analysis);
  analysis.device_time = device_.section();
  if (analysis.device_time) analysis.device_time->rank = info.rank;
  analysis.lr_ramp = lr_ramp_.ramp();
  analysis.timeline = timeline_.steps();
  analysis.timeline_omitted = timeline_.seen() - analysis.timeline.size();
  return analysis;
}

}  // namespace

std::unique_ptr<RankPass> RankPass::make(const AnalyzeOptions& options, std::uint32_t rank) {
  return std::make_unique<AnalyzerImpl>(options, rank);
}
}  // namespace analyze

std::unique_ptr<Analyzer> Analyzer::make(const AnalyzeOptions& options) {
  return std::make_unique<analyze::AnalyzerImpl>(options, std::nullopt);
}

}  // namespace nanhunt
