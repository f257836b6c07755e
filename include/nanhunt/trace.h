// SPDX-License-Identifier: Apache-2.0
// Traces: records in batches, a writer that survives a kill, a reader that survives damage.
// The file layout is src/trace/FORMAT.md.
//
// Order inside a batch: strings and layouts first, then values, ops, marks, ... A reader may apply the
// tables of one batch in that order: a value's row comes no later than the op that made it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/event.h"
#include "nanhunt/status.h"
#include "nanhunt/tensor_stats.h"

namespace nanhunt {

using StringId = std::uint32_t;  // 0 is the empty string
using LayoutId = std::uint32_t;  // 0 is unknown
using ValueId = std::uint64_t;   // 1, 2, 3 ... within an attempt; 0 is none
inline constexpr std::uint64_t kNoSeq = std::numeric_limits<std::uint64_t>::max();

struct StringRecord {
  StringId id = 0;
  std::string text;  // raw bytes as the run gave them: escape before showing
  bool operator==(const StringRecord&) const = default;
};

struct LayoutRecord {
  LayoutId id = 0;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> sizes, strides;
  bool operator==(const LayoutRecord&) const = default;
};

struct ValueRecord {
  ValueId id = 0;
  std::uint64_t storage = 0;
  std::uint32_t version = 0;
  std::int64_t offset = 0;
  LayoutId layout = 0;
  std::uint64_t producer = kNoSeq;  // seq of the op that made it; kNoSeq: made unseen
  ValueId base = 0;   // another value with the same storage and version, seen earlier (this is a view of it); 0: none
  bool has_stats = false;   // false: contents were not available or not read
  TensorStats stats;        // at most level kSums in this record
  // Elements stored as 0 whose exact result is not 0 (products and quotients of non-zero operands);
  // -1: not measured.
  std::int64_t flushed = -1;
  bool operator==(const ValueRecord&) const = default;
};

struct OpArg {
  ValueId value = 0;
  StringId slot = 0;
  ArgRole role = ArgRole::kRead;  // kRead for outputs
  bool operator==(const OpArg&) const = default;
};

struct ScalarArg {
  StringId name = 0;
  double value = 0;
  bool operator==(const ScalarArg&) const = default;
};

struct OpRecord {
  std::uint64_t seq = 0;
  std::uint32_t step = 0, micro_batch = 0;
  Phase phase = Phase::kForward;
  StringId module = 0, op = 0, call_site = 0;
  DType compute_dtype = DType::kF32;
  // Ranges into RecordBatch::inputs, outputs and scalars.
  std::uint32_t first_input = 0, input_count = 0;
  std::uint32_t first_output = 0, output_count = 0;
  std::uint32_t first_scalar = 0, scalar_count = 0;
  bool operator==(const OpRecord&) const = default;
};

struct MarkRecord {
  std::uint64_t seq = 0;  // seq of the next op: the mark was made before it
  std::uint32_t step = 0, micro_batch = 0;
  TensorRole kind = TensorRole::kLoss;
  StringId path = 0;
  ValueId value = 0;
  bool operator==(const MarkRecord&) const = default;
};

struct SampleIdsRecord {
  std::uint32_t step = 0, micro_batch = 0;
  std::vector<std::int64_t> sample_ids;
  bool operator==(const SampleIdsRecord&) const = default;
};

struct StepRecord {
  std::uint32_t step = 0;
  bool skipped = false;
  double loss = 0, lr = 0, scale = 1;
  std::uint64_t end_seq = 0;         // first seq after the step
  std::int64_t wall_ns = 0;          // volatile: differs between equal runs
  StepEnding ending = StepEnding::kOptimizer;
  StringId message = 0;
  std::int64_t watch_ns = 0;         // volatile: of the training thread, spent on watching since the row before; 0: not known
  bool operator==(const StepRecord&) const = default;
};

// The operands that met in one bad output element.
struct Operand {
  StringId slot = 0;
  ValueId value = 0;
  std::int64_t flat_index = -1;
  double number = 0;
  bool operator==(const Operand&) const = default;
};
struct EvidenceRecord {
  std::uint64_t seq = 0;   // op
  ValueId value = 0;       // the bad output
  std::int64_t flat_index = -1;
  double number = 0;
  std::vector<Operand> operands;
  bool operator==(const EvidenceRecord&) const = default;
};

// The storage was freed: its values can no longer be used.
struct EndOfLifeRecord {
  std::uint64_t storage = 0;
  std::uint64_t seq = 0;  // seq of the next op
  bool operator==(const EndOfLifeRecord&) const = default;
};

// A fix that was tried on this run (src/hunt) and what came of it.
struct ExperimentRecord {
  std::string fix;           // stable key, e.g. "fp32-masters"
  std::string description;   // for people: "fp32 master weights and optimizer state"
  std::uint32_t step = 0;    // the step that failed in the original run
  bool finite = false;       // loss, gradients, parameters and state stayed finite up to that step and after it
  std::uint32_t further_steps = 0;  // finite steps trained past it
  double loss_before = 0, loss_after = 0;  // at `step` and at the last further step
  // worst over parameters, against an fp64 optimizer: the largest of r, 1/r (norms) and 1/cos
  double update_factor = 0;
  bool verified = false;     // finite, 50 further steps, update_factor within the stated bound
  bool operator==(const ExperimentRecord&) const = default;
};

// Rows the recorder had to drop since the last such record, and why. Kept so that a report can say so.
struct DropRecord {
  std::uint64_t seq = 0;
  std::uint64_t ops = 0, values = 0, other = 0;
  bool operator==(const DropRecord&) const = default;
};

// What a loss scaler or a clip did (ScalerEvent).
struct ScalerRecord {
  std::uint64_t seq = 0;  // seq of the next op: it happened before it
  std::uint32_t step = 0, micro_batch = 0;
  ScalerAction action = ScalerAction::kUpdate;
  std::uint32_t optimizer = 0;
  bool found_inf = false, dynamic = true;
  double scale = 1;
  std::int64_t growth_tracker = 0, growth_interval = 0;
  std::uint32_t hysteresis = 0;
  double total_norm = 0, max_norm = 0;
  double growth_factor = 0, backoff_factor = 0;
  StringId text = 0;
  bool operator==(const ScalerRecord&) const = default;
};

// How the magnitudes of one value are spread: of inputs and outputs of ops where badness began. Bins as in
// TensorStats: bin i counts finite non-zero |x| in [2^(min_exponent+i), 2^(min_exponent+i+1)).
struct HistogramRecord {
  std::uint64_t seq = 0;  // of the op
  ValueId value = 0;
  std::int32_t min_exponent = 0;
  std::vector<std::int64_t> bins;
  bool operator==(const HistogramRecord&) const = default;
};

// Rows that the writer took out again to stay within its limit (RetentionOptions): on purpose, not lost. They stood
// between the kept op before `seq` and the op `seq`.
struct RetiredRecord {
  std::uint64_t seq = 0;    // of the next op that was kept
  std::uint64_t steps = 0;  // StepRecords among them, and in `other`
  std::uint64_t anomalies = 0;  // ops among them with an output that was not finite: 0 unless nothing else was left
  std::uint64_t ops = 0, values = 0, other = 0;
  bool operator==(const RetiredRecord&) const = default;
};

// What was found in one step: one row a step at levels live and steps.
struct HealthRecord {
  std::uint64_t seq = 0;  // seq of the next op
  std::uint32_t step = 0;
  std::uint32_t bad = 0;  // bit 1 << TensorRole for each part that was not finite
  std::uint32_t bad_tensors = 0;
  StringId first_bad = 0;      // path of the first of them
  // over boundary gradients, finite or not; NaN also: none
  double gradient_norm = std::numeric_limits<double>::quiet_NaN();
  double weight_norm = std::numeric_limits<double>::quiet_NaN();    // NaN also: not read in this step
  std::uint64_t weight_checksum = 0;  // of all parameters, when the step ended; 0: not read in this step
  bool operator==(const HealthRecord&) const = default;
};
// Norms of one parameter or gradient in a step before a bad one. The last steps are kept in memory and written when one
// is bad, so that growth can be told from a single accident.
struct NormRecord {
  std::uint64_t seq = 0;
  std::uint32_t step = 0;
  TensorRole kind = TensorRole::kParameter;  // or kBoundaryGradient
  StringId path = 0;
  double norm = 0, amax = 0;  // over finite elements; norm NaN: an element was NaN, infinite: one was infinite
  bool operator==(const NormRecord&) const = default;
};

// A bad step whose operations are not in the trace.
struct UnheardRecord {
  std::uint64_t seq = 0;  // seq of the next op
  std::uint32_t step = 0;
  StringId text = 0;      // why, in a sentence
  bool operator==(const UnheardRecord&) const = default;
};

// Contents that were found different from their record although nothing that was watched wrote them. `after` is a row
// of its own with the same storage, version and offset, made unseen; whatever reads it names `after` from then on. Its
// layout is that of `before`, or another dense view of the same elements.
struct ChangedRecord {
  std::uint64_t seq = 0;        // of the op that was about to read it
  std::uint32_t step = 0;
  ValueId before = 0;           // 0: its record is older than the trace
  ValueId after = 0;
  std::uint64_t since_seq = kNoSeq;  // last op after which it still was as recorded; kNoSeq: unknown
  std::uint32_t since_step = 0;
  bool opaque = false;          // a call whose inside is not watched had it in between
  bool operator==(const ChangedRecord&) const = default;
};

// One counterfactual: the origin op, or the slice of `ops` ops that ends at it, computed again from captured inputs.
// Of mode kRemedy: the origin op with the change that advice asks for, and the ops after it, `ops` in all. `text` is
// "ID: CHANGE; SCOPE", the advice's id, what was changed and what was computed; counts are those of all results,
// gradients among them, and `number` the largest magnitude of these.
struct ProbeRecord {
  std::uint64_t seq = 0;  // of the origin op
  std::uint32_t step = 0;
  ProbeMode mode = ProbeMode::kSame;
  DType dtype = DType::kF32;
  std::uint32_t ops = 1;  // 1: the op alone
  bool ran = false;       // false: `text` says why not
  std::int64_t nan = 0, pos_inf = 0, neg_inf = 0;  // in the output that was bad in the run
  std::int64_t flat_index = -1;                    // of the first element that was bad in the run
  double number = 0;                               // that element now
  StringId text = 0;
  bool operator==(const ProbeRecord&) const = default;
};

// Inputs of an origin op, kept in RUN/rank-NNNNN/attempt-K/captures.
struct CaptureRecord {
  std::uint64_t seq = 0;  // of the op
  std::uint32_t step = 0;
  StringId file = 0;      // name in the captures folder; no '/'
  std::uint64_t bytes = 0;
  bool operator==(const CaptureRecord&) const = default;
};

// What was not watched, and how often so far (NoteEvent).
struct NoteRecord {
  std::uint64_t seq = 0;  // seq of the next op
  std::uint32_t step = 0;
  StringId text = 0;
  std::uint64_t count = 0;
  bool operator==(const NoteRecord&) const = default;
};

// A call in which this rank exchanged tensors with others (CollectiveEvent).
struct CollectiveRecord {
  std::uint64_t seq = kNoSeq;  // of its op; kNoSeq: that was not recorded
  std::uint32_t step = 0;
  StringId group = 0;
  std::uint64_t call = 0;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Reduction reduction = Reduction::kNone;
  std::int32_t peer = -1;
  std::vector<std::uint32_t> ranks;
  bool operator==(const CollectiveRecord&) const = default;
};

// Kernels of one name that a GPU ran for one op (KernelEvent). Rows may come late, and several of one op and name add
// up.
struct KernelRecord {
  std::uint64_t seq = kNoSeq;  // of the op; kNoSeq: of no single op
  std::uint32_t step = 0;
  StringId name = 0;           // 0: not told
  bool own = false;            // nanhunt's own
  std::uint64_t count = 0, timed = 0;
  std::int64_t duration_ns = 0;  // volatile: differs between equal runs
  bool operator==(const KernelRecord&) const = default;
};

// One frame of the program's code above a call site (FrameEvent).
struct FrameRecord {
  std::uint64_t seq = 0;  // seq of the next op
  StringId site = 0;
  std::uint32_t depth = 0;
  StringId file = 0;
  std::uint32_t line = 0;
  StringId function = 0;
  std::uint32_t first_line = 0;
  StringId code = 0;
  bool operator==(const FrameRecord&) const = default;
};

// How the program had set something up (SetupEvent).
struct SetupRecord {
  std::uint64_t seq = 0;  // seq of the next op
  std::uint32_t step = 0;
  SetupFact fact = SetupFact::kModule;
  StringId path = 0, site = 0;
  DType dtype = DType::kF32;
  double number = 0;
  StringId text = 0;
  bool operator==(const SetupRecord&) const = default;
};

struct RecordBatch {
  std::vector<StringRecord> strings;
  std::vector<LayoutRecord> layouts;
  std::vector<ValueRecord> values;
  std::vector<OpRecord> ops;
  std::vector<OpArg> inputs, outputs;
  std::vector<ScalarArg> scalars;
  std::vector<MarkRecord> marks;
  std::vector<SampleIdsRecord> sample_ids;
  std::vector<StepRecord> steps;
  std::vector<EvidenceRecord> evidence;
  std::vector<EndOfLifeRecord> ends_of_life;
  std::vector<ExperimentRecord> experiments;
  std::vector<DropRecord> drops;
  std::vector<ScalerRecord> scaler;
  std::vector<HistogramRecord> histograms;
  std::vector<RetiredRecord> retired;
  std::vector<HealthRecord> health;
  std::vector<NormRecord> norms;
  std::vector<UnheardRecord> unheard;
  std::vector<ChangedRecord> changed;
  std::vector<ProbeRecord> probes;
  std::vector<CaptureRecord> captures;
  std::vector<NoteRecord> notes;
  std::vector<CollectiveRecord> collectives;
  std::vector<KernelRecord> kernels;
  std::vector<FrameRecord> frames;
  std::vector<SetupRecord> setup;
  void clear();
  bool empty() const;
  bool operator==(const RecordBatch&) const = default;
};

// What ran (run.json). Fields marked volatile vary between equal runs.
struct RunInfo {
  std::vector<std::string> command;  // secrets already redacted by the writer of this struct
  std::string nanhunt_version;
  std::string framework;             // "nanhunt-engine", later "torch 2.13.0"
  std::string device;                // "cpu"
  std::string level;                 // "ops"
  std::string scenario;              // bundled engine only, else empty
  std::vector<std::string> dtypes;
  std::uint32_t rank = 0, world_size = 1, attempt = 0;
  std::vector<std::pair<std::string, std::string>> options;
  std::vector<std::pair<std::string, std::string>> packages;  // name, version
  std::string commit;                // of the program's repository, in hex; "": not known
  std::string tree;                  // "clean" or "changed" against it; "": not known
  std::string started;               // volatile, ISO 8601 UTC
  std::string host;                  // volatile
  std::int64_t pid = 0;              // volatile
  std::string run;                   // volatile; the same in all attempts that processes of one run made; "": it has one
};

// What stays of a long run when its trace reaches max_bytes. Closed segments are rewritten without the steps between
// the first and the last ones, but for one in `keep_every` and for steps with something that is not finite, was
// skipped or has a bad loss, with their neighbours. Where that is not enough, keep_every doubles until nothing in
// between is left; then the neighbours go, then all but the first step of each stretch of bad steps, then the first
// steps. Last steps that alone fill a quarter of max_bytes are not spared either. A trace never grows past max_bytes.
struct RetentionOptions {
  std::uint64_t max_bytes = 0;  // of an attempt's segments together; 0: no limit; else at least kMinMaxBytes
  std::uint32_t keep_first_steps = 16;
  std::uint32_t keep_last_steps = 64;
  std::uint32_t neighbourhood = 2;  // steps before and after
  std::uint32_t keep_every = 16;
};
inline constexpr std::uint64_t kMinMaxBytes = 4u << 20;

struct TraceWriterOptions {
  std::uint64_t segment_bytes = 64ull << 20;  // rotate after this many; with a limit at most a sixteenth of it
  int zstd_level = 1;
  RetentionOptions retention = {};
};

// One writer per attempt folder. Not thread-safe: the recorder's writer thread owns it.
class TraceWriter {
 public:
  // Creates RUN/rank-NNNNN/attempt-K (the first K that is free), run.json and 000000.nht exclusively.
  static Result<std::unique_ptr<TraceWriter>> create(const std::string& run_dir, RunInfo info,
                                                     const TraceWriterOptions& options = {});
  virtual ~TraceWriter() = default;  // without close() the trace reads as "running or killed"
  // One write() per chunk. A failure (disk full) leaves everything before it readable and ends the batch there, so that
  // no row is in the file without those of its batch that it names; later calls try a new chunk.
  // After one, `unwritten` (if given) gets the rows that are not in the file, ops without their arguments. Strings and
  // layouts are not among them: they are tried again with the next call.
  virtual Status write(const RecordBatch& batch, RecordBatch* unwritten) = 0;
  Status write(const RecordBatch& batch) { return write(batch, nullptr); }
  virtual Status close() = 0;  // end chunk with index
  virtual const std::string& attempt_dir() const = 0;
  virtual std::uint64_t bytes_written() const = 0;
};

// What was lost or odd in a trace, said exactly.
struct TraceHealth {
  bool clean_end = false;
  std::uint64_t segments = 0, chunks = 0, rows = 0, bytes = 0;
  std::uint64_t chunks_lost = 0, rows_lost = 0;  // rows_lost counts only what intact headers claim
  std::uint64_t bytes_skipped = 0;
  std::uint64_t unknown_chunks = 0;              // skipped, not damage
  // PendingReading out by retention (RetentionOptions), not damage. Steps are among the rows.
  std::uint64_t steps_retired = 0, rows_retired = 0;
  std::vector<std::string> problems;             // one line each: file, offset, what; at most 100
  bool damaged() const { return chunks_lost != 0 || bytes_skipped != 0; }
};

struct AttemptTrace {
  std::string dir;
  RunInfo info;
  bool has_info = false;  // run.json was there and readable
};

// All attempts of all ranks under RUN, ordered by rank then attempt. Also accepts one attempt folder or one .nht file.
Result<std::vector<AttemptTrace>> find_attempts(const std::string& path);

// Reads one attempt in order and hands over batches. Damage is skipped, counted in `health`, and ends in
// kDamaged after everything good was delivered; kUnreadable/kUnsupported when nothing could be.
Status read_attempt(const AttemptTrace& attempt, const std::function<void(const RecordBatch&)>& on_batch,
                    TraceHealth& health);

// Copies everything readable of an attempt into a new folder, with a clean end. Never touches the original.
Status salvage_attempt(const AttemptTrace& attempt, const std::string& out_dir, TraceHealth& health);

// What the trace that this one was salvaged from lacked: chunks_lost, rows_lost, bytes_skipped and clean_end. Nothing
// for a trace that is no copy.
TraceHealth lost_before_salvage(const RunInfo& info);

}  // namespace nanhunt
