// SPDX-License-Identifier: Apache-2.0
// From records to a verdict. Reads traces only, never a live run; same records, same analysis.
// Fields follow report.json (reports/schema/nanhunt.report.schema.json), which is written from this.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/event.h"
#include "nanhunt/lr_range.h"
#include "nanhunt/status.h"
#include "nanhunt/tensor_stats.h"
#include "nanhunt/trace.h"

namespace nanhunt {

// What kind of fault; reports/GUIDE.md explains each. Names in JSON: finding_class_name().
enum class FindingClass : std::uint8_t {
  kOverflow,
  kInvalid,
  kDivideByZero,
  kEpsUnderflow,
  kUnderflow,
  kUpdateLoss,
  kExploding,
  kBadInput,
  kBadState,
  kUninitialised,
  kUnseenKernel,
  kCorruption,
  kComm,
  kApiMisuse,
  kScalerCalibration,
  kScalerCollapse,
  kNotReproducible,
  kKernelDependent,
  kUnexplained,  // bad numbers began here and no rule knows why
};
std::string_view finding_class_name(FindingClass c);  // "eps_underflow", ...

enum class Severity : std::uint8_t { kInfo, kWarning, kFault };
enum class Confidence : std::uint8_t { kProved, kObserved, kInferred };
enum class VerdictStatus : std::uint8_t { kClean, kCalibrating, kWarning, kFault, kInconclusive };
enum class Lifecycle : std::uint8_t { kAppear, kTransform, kPropagate, kDisappear, kUnknown };
std::string_view severity_name(Severity s);
std::string_view confidence_name(Confidence c);
std::string_view verdict_status_name(VerdictStatus s);
std::string_view lifecycle_name(Lifecycle l);

// One tensor as a finding shows it.
struct TensorSummary {
  std::string role;   // "input", "output"
  std::string slot;   // argument name
  int index = 0;      // position among the op's inputs or outputs
  std::string name;   // "fc1.weight.exp_avg" when it has one, else ""
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  ArgRole arg_role = ArgRole::kRead;
  bool has_stats = false;
  TensorStats stats;
  std::int64_t flushed = -1;
};

struct ElementEvidence {
  std::int64_t flat_index = -1;
  std::vector<std::int64_t> coords;
  std::int64_t row = -1;       // along dimension 0; negative: not known, or there is no other dimension
  bool row_is_sample = false;  // the trace shows that dimension 0 is the batch's
  std::optional<std::int64_t> sample_id;  // of that row, in the data set
  double value = 0;
  struct OperandValue {
    std::string slot, name;
    double value = 0;
  };
  std::vector<OperandValue> operands;
};

struct ChainNode {
  std::uint64_t seq = kNoSeq;  // kNoSeq: not an op (a parameter that was bad from the start)
  std::uint32_t step = 0;
  Phase phase = Phase::kForward;
  std::string module, op, label;  // label: one line for people
  Lifecycle lifecycle = Lifecycle::kUnknown;
  std::int64_t nan = 0, pos_inf = 0, neg_inf = 0, numel = 0;  // of the value carried on
  std::string role;  // "origin", "carrier", "sink"
  std::optional<std::uint32_t> rank;  // set where the chain runs over more than one
};
struct ChainEdge {
  int from = 0, to = 0;  // indices into nodes
};
struct Chain {
  std::vector<ChainNode> nodes;  // origin first, sinks last; at most 64, then `omitted`
  std::vector<ChainEdge> edges;
  std::uint64_t omitted = 0;
};

struct OpPlace {  // where something happened
  std::uint32_t step = 0, micro_batch = 0;
  Phase phase = Phase::kForward;
  std::optional<std::string> module, op;
  std::uint64_t seq = kNoSeq;
};

struct Advice {
  std::string id;    // stable key, the same as ExperimentRecord::fix where one was tried: "fp32-masters"
  std::string text;  // what to do
  std::string why;
  std::optional<bool> verified;  // true/false: tried on this run; null: not tried
  std::string evidence;          // what was seen when it was tried
  // Whether all was finite when the operation was computed again from the numbers that it read, with this change; null:
  // it was not.
  std::optional<bool> on_these_numbers = std::nullopt;
};

// What is known of a piece of advice, best first. What failed is no advice.
enum class Tried : std::uint8_t { kWorked, kOnTheseNumbers, kNotTried, kFailed };
Tried tried(const Advice& advice);

// How what began on some ranks came to others.
struct RankPropagation {
  std::vector<std::uint32_t> ranks;  // that it came to, ascending
  std::string through;               // "allreduce", "recv", "reduction of gradients"
  std::string group;                 // process group, "" when not known
  std::uint32_t step = 0;
  bool operator==(const RankPropagation&) const = default;
};

// Steps in which something that is trained was not finite because of a finding: count = anew + unwatched + those in
// which nothing but what was bad already went on.
struct BadSteps {
  std::uint64_t count = 0;      // 0: nothing stopped being finite
  std::uint64_t anew = 0;       // it happened in them
  std::uint64_t unwatched = 0;  // their operations are not in the trace: they count because no good step came between
  std::uint32_t first = 0, last = 0;
  bool open = false;  // something that lasts was bad when it was seen last: there may be more after `last`
};

// A function of the program's that was running at a call site.
struct SourceFrame {
  std::string file;  // with its folder, as the program was given it
  std::uint32_t line = 0;
  std::string function;
  std::uint32_t first_line = 0;   // of `code`
  std::vector<std::string> code;  // lines of the source around it, as they were then
};

// Another finding of one cause, named under the one that leads.
struct RelatedFinding {
  FindingClass cls = FindingClass::kUnexplained;
  Severity severity = Severity::kFault;
  OpPlace place;
  std::string call_site, title;
};

struct Finding {
  std::string id;  // "F1", "F2": stable for equal traces
  FindingClass cls = FindingClass::kUnexplained;
  Severity severity = Severity::kFault;
  bool benign = false;
  Confidence confidence = Confidence::kObserved;
  OpPlace place;
  std::uint32_t rank = 0;  // the lowest of `ranks`
  std::vector<std::uint32_t>
      ranks;  // on which it began: several for the same fault on each, or for one that began between them
  std::vector<RankPropagation> rank_propagation;     // to ranks on which it did not begin, in order of steps
  // Of `rank`, in which it is; none: the newest. A run may have several processes of one rank.
  std::optional<std::uint32_t> attempt;
  std::string call_site;
  std::vector<SourceFrame> frames;  // of call_site, innermost first; empty: not recorded
  std::string module_class;         // of place.module; "": not known
  std::string same_line_as;  // id of an earlier finding whose operation the same line of code called; "": none
  std::string ignored;  // why the user of the run named it as harmless (severity info then); "": it was not
  std::string kernel;  // of its op, the one that ran longest; "": not known
  bool figure = false;  // a single number that a validation shows, made of finite ones: a warning
  std::string part_of;  // what its op computes a part of: "logdet", "the derivative of sqrt"; "": it is called itself
  double scale = 1;
  // steps in which it was seen to happen; what is only their aftermath does not count
  std::uint64_t occurrence_count = 1;
  std::uint32_t first_step = 0, last_step = 0;  // of these
  BadSteps bad_steps;
  std::string cause;        // in a few words: "0/0", "log of 0"; "": the class says it
  std::string title;        // one sentence: what happened where
  std::string explanation;  // a few sentences: why
  std::optional<TensorSummary> tensor;  // the bad output (or the batch tensor, the parameter ...)
  Lifecycle lifecycle = Lifecycle::kUnknown;
  std::optional<ElementEvidence> element;
  std::int64_t bad_elements = 0;
  std::vector<TensorSummary> inputs;
  std::optional<TensorSummary> output;
  std::vector<std::string> evidence;  // sentences with numbers
  Chain chain;
  std::optional<OpPlace> first_inf, first_nan;  // in the badness this finding explains
  std::vector<std::int64_t> samples;  // data set ids of bad rows, or of the step's batch
  std::vector<std::string> sinks;     // "parameter fc1.weight", "loss"
  std::vector<std::string> also_at;   // other lines at which it arose in the same step and module
  std::vector<std::string> also;      // same class, op, phase and step at other modules, as module paths
  std::vector<Advice> advice;  // what worked first, what failed last: reports keep this order
  std::vector<RelatedFinding> related;  // of the same line in the same step, or further along its chain
  std::uint64_t related_omitted = 0;
  bool trained = true;      // false: in a process that trained nothing, so that its step is a forward
  bool unfinished = false;  // all it harmed are steps that the program gave up, or validations
};

struct EpsAuditRow {
  std::string where;  // "optimizer add_ (fc1.weight)"
  Phase phase = Phase::kOptimizer;
  double eps = 0;
  DType dtype = DType::kF32;  // in which x + eps is formed and stored
  double stored = 0;          // eps in that dtype
  std::string verdict;        // "ok", "subnormal", "zero"
  std::uint64_t occurrences = 0;
  std::uint64_t zero_denominators = 0;  // elements that were 0 after eps was added
};

// What an optimizer meant to change in one parameter or average of 16 bits and left as it was: less than half of what
// separates two numbers of the format was to be added. Shares are of the elements whose change is not 0.
struct UpdateLossRow {
  std::string module, op;     // of the first step past the threshold, else the first seen
  DType dtype = DType::kF16;
  bool average = false;       // state that decays (exp_avg_sq), not a parameter
  std::uint64_t steps = 0, steps_over = 0;  // measured; past the threshold (src/analyze/rules/README.md)
  std::uint32_t first_step_over = 0;        // when steps_over > 0
  double mean_share = 0, worst_share = 0;
};

// The loss scaler of a run, from its own records (ScalerRecord).
struct ScalerSection {
  std::string family;  // "torch.amp", "static"
  bool dynamic = true;
  double init_scale = 1, growth_factor = 0, backoff_factor = 0;
  std::int64_t growth_interval = 0;
  double final_scale = 1;
  // Largest scale below all at which steps were skipped that was seen to hold; 0: none, or none was needed.
  double recommended_init_scale = 0;
  std::string capped_by;  // the module whose gradients would overflow first above it; "" with 0
  std::uint64_t steps = 0, skipped = 0, backoffs = 0, growths = 0;
  std::uint32_t longest_streak = 0;    // of skipped steps
  bool ends_in_streak = false;
  struct Point {
    std::uint32_t step = 0;
    double scale = 1;
    bool skipped = false;
  };
  std::vector<Point> points;  // at most 4096, thinned keeping the least and largest scale and the skips of each stretch
  struct Event {
    std::uint32_t step = 0;
    std::uint64_t seq = 0;
    std::string what;  // "skip", "backoff", "growth", "hysteresis", "set", "refused", "gave_up"
    double scale = 1;  // after it
    std::string text;  // why a call was refused or training ended; what the library prints after an overflow
  };
  std::vector<Event> events;  // the first and last 512
  std::uint64_t events_omitted = 0;
};

inline constexpr double kNoTrend = std::numeric_limits<double>::quiet_NaN();

// A module's numbers over the whole run, forward outputs and gradients apart. Headroom: log2(largest finite number of
// the format / amax), in binades; underflow: share of the elements of one value that were stored as zero although
// their exact result is not, or that are subnormal in their format.
struct LayerSummary {
  std::string module;
  DType dtype = DType::kF32;  // of its outputs; the narrowest
  std::uint64_t ops = 0, bad_ops = 0;
  std::int64_t nan = 0, inf = 0;
  std::uint32_t first_bad_step = 0;     // when bad_ops > 0
  // The first op with a bad output on either side; kNoSeq: none.
  struct FirstBad {
    std::uint32_t step = 0;
    std::uint64_t seq = kNoSeq;
  };
  FirstBad bad_forward, bad_gradient;
  double amax_forward = 0, amax_gradient = 0;
  double headroom_forward = 0, headroom_gradient = 0;    // smallest seen; NaN: nothing seen
  double underflow_forward = 0, underflow_gradient = 0;  // largest seen; NaN: nothing seen
  double amax_unscaled = 0;  // largest gradient of steps that were not skipped, divided by the loss scale of its step
  // Steps from the last one until amax_forward or amax_gradient (the sooner) passes the format if it goes on growing as
  // it did, and the 95 % error of the fit; NaN: it does not grow, or not evenly.
  double steps_to_overflow = kNoTrend, steps_to_overflow_error = kNoTrend;
};

// Layers x steps. Columns are stretches of equal length; rows follow Analysis::layers; cells are row-major.
struct LayerMap {
  std::uint32_t first_step = 0, steps_per_column = 1;
  std::uint32_t columns = 0;              // at most 512
  std::vector<float> headroom;            // smallest of the stretch, forward and gradients; NaN: nothing seen
  std::vector<float> underflow;           // largest of the stretch; NaN: nothing seen
  std::vector<std::uint8_t> nonfinite;    // 1: something was not finite
};

struct TimelineStep {
  std::uint32_t step = 0;
  bool skipped = false;
  double loss = 0, lr = 0, scale = 1;
  std::uint64_t bad_ops = 0;  // ops with a non-finite output that nobody meant: a mask does not count
  double gradient_norm = 0;   // 2-norm over the gradients at the optimizer boundary, unscaled by the step's scale; NaN: not seen
  double weight_norm = 0;     // 2-norm over the parameters after the step; NaN: not seen
};

// What a GPU ran for one op of one module, where kernels were watched.
struct DeviceTimeRow {
  std::string module, op;  // op "": launched by no watched op
  Phase phase = Phase::kForward;
  std::string kernel;      // that took most of it; "": not known
  std::uint64_t kernels = 0, timed = 0;
  std::int64_t duration_ns = 0;  // of the timed ones
};
struct DeviceTime {
  std::uint32_t rank = 0;  // the lowest that has any
  std::uint64_t kernels = 0, untimed = 0;
  std::uint64_t own_kernels = 0;
  std::int64_t total_ns = 0;       // of all kernels together, which may have run side by side
  std::int64_t own_ns = 0;         // of these, nanhunt's own
  std::int64_t without_op_ns = 0;  // of these, launched by no watched op
  std::vector<DeviceTimeRow> rows;  // without nanhunt's own; longest first, at most 64
  std::uint64_t rows_omitted = 0;
  std::int64_t omitted_ns = 0;
};

struct Coverage {
  std::uint64_t steps = 0, ops = 0, values = 0;
  std::uint64_t records_dropped = 0;  // by the recorder, or lost in damage
  std::uint64_t chunks_lost = 0;
  bool clean_end = true;
  std::vector<std::string> unwatched;     // what was not watched, as sentences
  std::map<std::string, std::uint64_t> notes;  // of these, what the run itself noted and how often, over all ranks
  std::vector<std::string> not_modelled;  // what the engine does not model
  // Not clean, for these were not judged, as a clause; "": all that was seen was.
  std::string unjudged = {};
  std::string exception = {};  // that ended the program, in its words; "": none is known
  bool trained = true;         // false: nothing was, and each step is a forward
};

struct RankSummary {
  std::uint32_t rank = 0, attempt = 0;
  RunInfo info;
  TraceHealth health;
};

struct Verdict {
  VerdictStatus status = VerdictStatus::kInconclusive;
  std::string headline;
  std::optional<std::string> origin;  // finding id
};

// Steps whose learning rate grew by one factor each, far: the ramp of a learning rate finder.
struct LrRamp {
  std::uint32_t first_step = 0, last_step = 0;
  std::vector<LrPoint> points;            // at most 4096, the first ones
  std::optional<std::uint32_t> stops_at;  // the step after which a finder would have stopped; null: nowhere
  std::optional<LrSuggestion> suggestion;  // from the points up to there
};

struct Analysis {
  std::vector<RankSummary> ranks;
  // Whose timeline, layers and device time these are: the one on which the first fault began; null: there is one alone.
  std::optional<std::uint32_t> shown_rank;
  Coverage coverage;
  Verdict verdict;
  std::vector<Finding> findings;  // headline first
  std::vector<EpsAuditRow> eps_audit;
  std::vector<UpdateLossRow> update_loss;  // in order of first appearance; at most 4096
  std::vector<TimelineStep> timeline;  // at most 4096, decimated keeping bad and skipped steps
  std::uint64_t timeline_omitted = 0;
  std::vector<ExperimentRecord> experiments;
  std::optional<ScalerSection> scaler;  // null: no scaler was seen
  std::vector<LayerSummary> layers;     // in order of first appearance; at most 2048
  std::uint64_t layers_omitted = 0;
  LayerMap layer_map;
  std::optional<DeviceTime> device_time;  // null: no kernel was watched
  std::optional<LrRamp> lr_ramp;          // the first one; null: there was none
};

struct AnalyzeOptions {
  std::uint32_t max_findings = 64;
  std::vector<std::uint32_t> ranks = {};  // of analyze_run(): only these, where they are there; empty: all
};

// Feeds on the batches of one attempt, in order.
class Analyzer {
 public:
  static std::unique_ptr<Analyzer> make(const AnalyzeOptions& options = {});
  virtual ~Analyzer() = default;
  virtual void add(const RecordBatch& batch) = 0;
  virtual Analysis finish(const RunInfo& info, const TraceHealth& health) = 0;
};

// The newest attempt of each rank under `path`. Damage makes the Analysis say so; a Status is returned
// only when nothing could be analysed.
Result<Analysis> analyze_run(const std::string& path, const AnalyzeOptions& options = {});

}  // namespace nanhunt
