// SPDX-License-Identifier: Apache-2.0
// What a person is shown, already in words: the text and the HTML report are drawn from this, so they
// cannot disagree. Every string here went through printable() and is bounded; every list is bounded and
// says how much it leaves out. HTML still has to escape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nanhunt/analyzer.h"
#include "reports/views/device_time_view.h"
#include "reports/views/layers_view.h"
#include "reports/views/lr_ramp_view.h"
#include "reports/views/source_view.h"
#include "reports/views/wording.h"

namespace nanhunt::reports {

inline constexpr std::size_t kMaxFindingsShown = 64;
inline constexpr std::size_t kMaxEvidence = 32;
inline constexpr std::size_t kMaxTensors = 24;
inline constexpr std::size_t kMaxChainNodes = 64;
inline constexpr std::size_t kMaxSamples = 64;
inline constexpr std::size_t kMaxNames = 48;  // sinks, other modules
inline constexpr std::size_t kMaxAdvice = 16;
inline constexpr std::size_t kMaxEpsRows = 64;
inline constexpr std::size_t kMaxCoverageLines = 64;
inline constexpr std::size_t kMaxRanks = 64;
inline constexpr std::size_t kMaxExperiments = 64;

struct Fact {
  std::string label, value;
};

// Part of a list, and how many were left out.
struct Lines {
  std::vector<std::string> shown;
  std::uint64_t omitted = 0;
  bool empty() const { return shown.empty(); }
};

struct TensorRow {
  std::string part;  // "input self", "output"
  std::string name;  // "fc1.weight.exp_avg_sq", may be empty
  std::string dtype, shape;
  std::string use;  // "saved in forward", "mask"; empty for a plain read
  bool has_stats = false;
  bool bad = false;  // holds NaN or infinity
  std::string elements, nan, pos_inf, neg_inf, zeros, subnormals, smallest, min, max;
  std::string note;  // "12 results became 0 though they are not"
};

struct OperandView {
  std::string slot, name, value;
};
struct ElementView {
  std::string where;  // "element 123, at [1, 59]"
  std::string place;  // "[1, 59]"; empty: not known
  std::string equation;  // "0 / 0 = NaN"; empty: no operand is known
  std::string in_code;   // what the line calls it, "a / b"; empty: not known
  std::string_view joint = " = ";  // between the two
  std::string value;
  bool bad = false;
  std::vector<OperandView> operands;
};

struct ChainStep {
  Lifecycle lifecycle = Lifecycle::kUnknown;
  std::string role;    // "origin", "carrier", "sink"
  std::string badge;   // "began here", "harmed"
  std::string title;   // "div"
  std::string place;   // "fc1.weight · optimizer · step 0"
  std::string amount;  // "NaN in 12 of 4,096 (0.29 %)"
};
struct ChainView {
  std::vector<ChainStep> steps;
  std::uint64_t omitted = 0;
  bool empty() const { return steps.empty(); }
};

struct AdviceView {
  Tried tried = Tried::kNotTried;
  std::string badge, text, why, evidence;
};

struct FindingView {
  std::string id;
  Severity severity = Severity::kInfo;
  std::string severity_word, class_name, class_phrase, class_explanation;
  std::string title, explanation;
  // One value each, "—" where there is none.
  std::string operation, layer, phase, step, matter, confidence, cure;
  std::string called_from;  // "train.py:30"; empty: not known
  std::string change;       // one sentence: what to change and where; empty: no advice
  std::vector<FrameView> frames;          // the program's code there and above it, innermost first
  std::vector<FrameView> package_frames;  // of installed packages, shown folded
  std::string module_class;       // of the layer; empty: not known
  Lines related;                  // other findings of the same cause, a sentence each
  std::string shared_line;  // "the same line of code as F1: the cause may be one"; empty: none
  std::string why;          // "0 / 0 = NaN" where the phrase of the class says less, else that phrase
  std::string cause;        // the numbers that met, then why
  std::string how_often;  // "seen to happen in 3 steps, from step 2 to step 9"; empty: once, and no other step was bad
  std::string bad_steps;  // "9 steps were bad because of it, from ... to ...: 6 only as its aftermath"; or empty
  std::string kernel;       // that ran longest for the operation; empty: not known
  std::string part_of;      // "part of logdet"; empty: it is called itself
  std::string ranks;  // "rank 2; it came to ranks 0 and 1 through allreduce, step 12"; empty where there is one rank
  std::string cure_badge;  // tried_phrase of the advice shown as cure, empty when there is no advice
  Tried cure_tried = Tried::kNotTried;
  std::vector<Fact> facts;  // where exactly: micro-batch, rank, scale, seq ...
  Lines evidence, sinks, also;
  Lines samples;              // of the data set
  std::string samples_label;  // "Bad samples", "The batch of that step"
  bool samples_are_bad = false;
  std::vector<TensorRow> tensors;  // inputs, then the output
  std::uint64_t tensors_omitted = 0;
  std::optional<ElementView> element;
  ChainView chain;
  bool trained = true;  // false: its step is a forward
  std::string first_inf, first_nan;  // sentences, empty when none
  std::vector<AdviceView> advice;    // what worked, what was not tried, what failed
};

struct EpsRow {
  std::string where, phase, eps, dtype, stored, verdict, uses, zero_denominators;
  bool bad = false;
};

struct ExperimentView {
  std::string description, outcome, trained, loss, factor;
  bool verified = false;
};

struct RunView {
  std::string heading;  // "rank 0, attempt 0"
  std::vector<Fact> facts;
  Lines problems;
};

struct ReportModel {
  VerdictStatus status = VerdictStatus::kInconclusive;
  std::string verdict_word, headline, meaning;
  std::string run_line;               // "scenario adam-eps · nanhunt-engine · cpu · level ops · attempt 0"
  std::optional<FindingView> origin;  // the finding the verdict is about
  std::vector<FindingView> others;
  std::uint64_t findings_omitted = 0;
  std::vector<EpsRow> eps_audit;
  std::uint64_t eps_omitted = 0;
  std::vector<ExperimentView> experiments;
  std::uint64_t experiments_omitted = 0;
  std::vector<Fact> watched;              // steps, operations ...
  std::string watched_how;  // a sentence: what a level that does not record every operation looks at; may be empty
  Lines unwatched, not_modelled, losses;  // losses: what the trace itself lost
  std::string scaler_answer;              // is it the loss scaler?
  std::optional<ScalerView> scaler;
  std::string of_rank;           // ", rank 1": of several, the one whose steps, layers and device time are shown; else empty
  std::vector<LayerRow> layers;  // in the order of the analysis
  std::uint64_t layers_omitted = 0;
  std::optional<DeviceTimeView> device_time;
  std::optional<LrRampView> lr_ramp;
  std::vector<RunView> runs;
  std::uint64_t runs_omitted = 0;
};

// going: as in TextOptions.
ReportModel make_report_model(const Analysis& analysis, const std::vector<std::uint32_t>& going = {});

// The finding the verdict is about: the one it names, else the first, else nullptr. Also nullptr for a
// clean verdict that names none.
const Finding* find_origin(const Analysis& analysis);

// Ranks that were read: a rank has several attempts in one run where it watched several programs or models.
std::size_t rank_count(const Analysis& analysis);

}  // namespace nanhunt::reports
