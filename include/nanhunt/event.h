// SPDX-License-Identifier: Apache-2.0
// What a hook hands to the recorder. Events borrow everything they point at: it must live until the
// recorder's call returns. reports/GUIDE.md explains the words.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "nanhunt/tensor_stats.h"
#include "nanhunt/tensor_view.h"

namespace nanhunt {

// Where in a training step an op ran. Written to traces: never renumber.
enum class Phase : std::uint8_t {
  kData = 0,
  kForward = 1,
  kLoss = 2,
  kScale = 3,
  kBackward = 4,
  kComm = 5,
  kUnscale = 6,
  kClip = 7,
  kOptimizer = 8,
  kUpdate = 9,  // of the loss scaler
  kValidation = 10,  // a forward that nothing learns from: no gradients are kept
};
std::string_view phase_name(Phase phase);  // "data", "forward", ...
std::optional<Phase> parse_phase(std::string_view name);

// How an op used an input. Written to traces: never renumber.
enum class ArgRole : std::uint8_t {
  kRead = 0,
  kSaved = 1,        // saved in forward, used in backward
  kOverwritten = 2,  // old contents of a value the op wrote in place (contents are gone: no data)
  kMask = 3,         // selects; its numbers are not mixed into the output
  kIndex = 4,        // indices or labels
};

// What was read of contents where the host cannot.
struct KnownContents {
  TensorStats stats;           // of all elements, counts or more
  bool has_stats = false;
  // kernels/cpu/checksum.h gives the same of the same view on the host. Without one nothing is compared with what was
  // there.
  std::optional<std::uint64_t> checksum;
  bool were_finite = false;    // no statistics, but that: the contents are gone
};

// One version of one tensor's contents. (storage, version) names the contents; offset and the view's
// sizes and strides say which part is meant.
struct ValueView {
  TensorView tensor;            // tensor.data may be nullptr when contents are gone
  std::uint64_t storage = 0;    // storage generation: unique per allocation, never reused; 0: unknown
  std::uint32_t version = 0;    // grows by 1 with each in-place write to the storage
  std::int64_t offset = 0;      // in elements from the start of the storage
  // With tensor.data nullptr: the host cannot read the contents, but they were read where they are.
  const KnownContents* known = nullptr;
  // Not 0: they are read where they are, and what is learnt comes under this number (Recorder::on_deferred_contents).
  std::uint64_t late = 0;
};

struct OpInput {
  std::string_view slot;  // argument name as the dispatcher has it: "self", "other", "mat1"
  ValueView value;
  ArgRole role = ArgRole::kRead;
};

struct OpOutput {
  std::string_view slot;
  ValueView value;
};

// A scalar argument: add(alpha), addcdiv(value), the eps in x + eps.
struct OpScalar {
  std::string_view name;
  double value = 0;
};

struct DeferredEvidence;
struct OpEvent {
  std::uint32_t step = 0;
  std::uint32_t micro_batch = 0;
  Phase phase = Phase::kForward;
  std::string_view module;     // dotted path, "<loss>", or the parameter's path for optimizer ops
  std::string_view op;         // dispatcher name without prefix: "addmm", "sqrt_backward"
  std::string_view call_site;  // "file.cpp:123", may be empty
  DType compute_dtype = DType::kF32;  // format in which the kernel computes before it stores
  std::span<const OpInput> inputs;
  std::span<const OpOutput> outputs;
  std::span<const OpScalar> scalars;
  // Of outputs whose contents are `known`: what single elements say. The recorder keeps what its rules ask for.
  const DeferredEvidence* findings = nullptr;
  std::uint64_t late = 0;  // not 0: these findings come under this number
};

// What only those can say of an op who read its elements where the host cannot (src/record/README.md).
struct DeferredOperand {
  std::size_t input = 0;  // index among the op's inputs
  std::int64_t flat_index = -1;
  double number = 0;
};
struct DeferredElement {
  std::size_t output = 0;        // index among the op's outputs
  bool nan = false;              // its first NaN; false: its first infinity
  std::int64_t flat_index = -1;  // row-major
  double number = 0;
  std::span<const DeferredOperand> operands = {};
};
struct DeferredHistogram {
  bool of_output = false;
  std::size_t index = 0;  // among the op's outputs, or inputs
  std::int32_t min_exponent = 0;
  std::span<const std::int64_t> bins = {};
};
struct DeferredEvidence {
  std::span<const DeferredElement> elements = {};
  std::span<const DeferredHistogram> histograms = {};
  std::int64_t flushed = -1;    // of the first output: stored as 0 although the exact result is not; -1: not taken
  std::int64_t updates = -1;    // of an optimizer's op: elements that it meant to change; -1: not taken
  std::int64_t lost_updates = 0;
  double lost_update_share = 0;
};

// The part a value plays. The first five are sinks: bad numbers there are harm. Written to traces: never renumber.
enum class TensorRole : std::uint8_t {
  kLoss = 0,
  kBoundaryGradient = 1,  // a gradient as the optimizer is about to use it
  kParameter = 2,
  kState = 3,   // optimizer state
  kBuffer = 4,
  kBatch = 5,   // an input tensor of the step
  kLabel = 6,
  // The last number of a step that its optimizer did not end, or of a validation: what those are judged by. A mark: what
  // a model gave in a validation.
  kOutput = 7,
};
std::string_view tensor_role_name(TensorRole kind);
inline constexpr bool is_sink(TensorRole kind) { return kind <= TensorRole::kBuffer; }
// A set of kinds as HealthRecord::bad has it.
inline constexpr std::uint32_t role_bit(TensorRole kind) { return 1u << static_cast<std::uint32_t>(kind); }
inline constexpr std::uint32_t kSinkBits = role_bit(TensorRole::kLoss) | role_bit(TensorRole::kBoundaryGradient) |
                                           role_bit(TensorRole::kParameter) | role_bit(TensorRole::kState) |
                                           role_bit(TensorRole::kBuffer) | role_bit(TensorRole::kOutput);
inline constexpr std::uint32_t kLoadedBits = role_bit(TensorRole::kBatch) | role_bit(TensorRole::kLabel);

struct MarkEvent {
  std::uint32_t step = 0;
  std::uint32_t micro_batch = 0;
  TensorRole kind = TensorRole::kLoss;
  std::string_view path;  // "fc1.weight", "fc1.weight.exp_avg_sq", "loss", "images"
  ValueView value;
};

struct BatchEvent {
  std::uint32_t step = 0;
  std::uint32_t micro_batch = 0;
  std::span<const std::int64_t> sample_ids;  // row i of the batch is sample_ids[i] of the data set
};

// What a loss scaler or a gradient clip did. Written to traces: never renumber.
enum class ScalerAction : std::uint8_t {
  kCreate = 0,   // first seen: its configuration
  kScale = 1,    // the loss was multiplied by the scale
  kUnscale = 2,  // an optimizer's gradients were checked and multiplied by 1/scale
  kClip = 3,     // gradients were clipped by their norm (with or without a scaler)
  kStep = 4,     // the optimizer ran
  kSkip = 5,     // the optimizer was held back
  kUpdate = 6,   // the scale after the update
  kSet = 7,      // the scale was set by hand
  kRefused = 8,  // a call was refused: `text` says why
  kGaveUp = 9,   // an update that ended training, as the scaler's library does at its smallest scale: `text` says why
};
std::string_view scaler_action_name(ScalerAction action);  // "create", "scale", "unscale", ...

struct ScalerEvent {
  std::uint32_t step = 0;
  std::uint32_t micro_batch = 0;
  ScalerAction action = ScalerAction::kUpdate;
  std::uint32_t optimizer = 0;  // numbered in order of first use
  bool found_inf = false;
  double scale = 1;                  // after the action
  std::int64_t growth_tracker = 0;   // after the action
  std::uint32_t hysteresis = 0;      // after the action: overflows that will be skipped before one lowers the scale
  double total_norm = 0;             // kClip: norm before clipping; else 0
  double max_norm = 0;               // kClip
  bool dynamic = true;               // kCreate, and the three below
  double growth_factor = 0, backoff_factor = 0;
  std::int64_t growth_interval = 0;
  // kCreate: family, "torch.amp"; kRefused: why; kUpdate after an overflow: what the scaler's library prints.
  std::string_view text;
};

// What was found in one step: HealthRecord has the fields.
struct HealthEvent {
  std::uint32_t step = 0;
  std::uint32_t bad = 0;  // bit 1 << TensorRole for each part that was not finite
  std::uint32_t bad_tensors = 0;
  std::string_view first_bad;
  double gradient_norm = 0, weight_norm = 0;
  std::uint64_t weight_checksum = 0;  // of all parameters, when the step ended; 0: not read in this step
};

struct NormEvent {
  std::uint32_t step = 0;
  TensorRole kind = TensorRole::kParameter;  // or kBoundaryGradient
  std::string_view path;
  double norm = 0, amax = 0;
};

// A bad step whose operations were not heard: `text` says why, in a sentence.
struct UnheardEvent {
  std::uint32_t step = 0;
  std::string_view text;
};

// Contents that nothing watched wrote. The recorder reads them anew; whatever names this version later means these.
struct ChangedEvent {
  std::uint32_t step = 0;
  ValueView value;
  std::uint64_t since_seq = ~std::uint64_t{0};  // last op after which they were as recorded; all ones: unknown
  std::uint32_t since_step = 0;
  bool opaque = false;  // a call whose inside is not watched had them in between
};

// How an origin op was computed again in a counterfactual. Written to traces: never renumber.
enum class ProbeMode : std::uint8_t {
  kSame = 0,         // same dtype, same kernel
  kOtherKernel = 1,  // same dtype, another kernel
  kWider = 2,        // in `dtype`
  kRemedy = 3,       // with the change that a piece of advice asks for
};
std::string_view probe_mode_name(ProbeMode mode);
struct ProbeEvent {
  std::uint64_t seq = 0;  // of the origin op
  std::uint32_t step = 0;
  ProbeMode mode = ProbeMode::kSame;
  DType dtype = DType::kF32;
  std::uint32_t ops = 1;
  bool ran = false;
  std::int64_t nan = 0, pos_inf = 0, neg_inf = 0, flat_index = -1;
  double number = 0;
  std::string_view text;
};

// A call in which ranks exchange tensors. Both written to traces: never renumber.
enum class CollectiveKind : std::uint8_t {
  kAllReduce = 0,
  kBroadcast = 1,
  kAllGather = 2,
  kReduceScatter = 3,
  kAllToAll = 4,
  kReduce = 5,
  kScatter = 6,
  kGather = 7,
  kSend = 8,
  kRecv = 9,
  kBarrier = 10,
};
enum class Reduction : std::uint8_t { kNone = 0, kSum = 1, kAvg = 2, kMin = 3, kMax = 4, kProduct = 5 };
std::string_view collective_kind_name(CollectiveKind kind);  // "allreduce", "reduce_scatter", ...
std::string_view reduction_name(Reduction reduction);        // "none", "sum", ...

// Reported before the call runs, while what this rank gives can still be read.
struct CollectiveEvent {
  std::uint64_t seq = ~std::uint64_t{0};  // of its op row, most often the next one; all ones: its op is not recorded
  std::uint32_t step = 0;
  std::string_view group;  // name of the process group, the same on all its ranks
  // Counts, from 0, the calls of this rank in the group which the other ranks count as well: all collectives together;
  // the sends to one peer, and the receives from one, each for themselves.
  std::uint64_t call = 0;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Reduction reduction = Reduction::kNone;
  std::int32_t peer = -1;                // global rank of the root, or of the other end of a send or receive; -1: none
  std::span<const std::uint32_t> ranks;  // of the group, as global ranks
  std::span<const ValueView> shares;     // what this rank gives: read now, for the call may write over it
};

struct CaptureEvent {
  std::uint64_t seq = 0;  // of the op
  std::uint32_t step = 0;
  std::string_view file;  // name in the attempt's captures folder
  std::uint64_t bytes = 0;
};

// What was not watched, and how often so far. The last count told of a text is the one that counts.
struct NoteEvent {
  std::uint32_t step = 0;
  std::string_view text;  // "sparse tensors"
  std::uint64_t count = 0;
};

// One frame of the program's own code that was running when an op was first called from `site`.
struct FrameEvent {
  std::string_view site;       // as OpEvent::call_site has it
  std::uint32_t depth = 0;     // 0: the line that called the op; then its callers
  std::string_view file;       // as the program was given it, with its folder
  std::uint32_t line = 0;      // counted from 1; 0: not known
  std::string_view function;
  std::uint32_t first_line = 0;  // of `code`
  std::string_view code;         // lines around it, one below the other; "": not to be had
};

// How the program had set something up: what no op shows.
enum class SetupFact : std::uint8_t {
  kModule = 0,               // path: of a module; text: its class
  kAutocast = 1,             // a model ran under autocast to `dtype` with gradients on
  kBackwardInAutocast = 2,   // backward began while autocast to `dtype` was on
  kNarrowParameters = 3,     // a model that ran with gradients on holds `number` parameters in `dtype`; path: the first
  kForeignParameters = 4,    // none of the `number` parameters of an optimizer has a gradient or is the models' own,
                             // whose parameters have gradients and are in no optimizer; text: its class
  kWideColumn = 5,           // of what a model is given, text ("column 7 of input 0") reaches `number` times as far as
                             // the median column; path: the model
  kCoordinate = 6,           // path: a dimension of the ranks ("data", "pipeline"); number: this rank's place along it
  kAccelerator = 7,          // path: the id of the card that this rank uses; text: its name
  kReplicas = 8,             // ranks that hold the same parameters; path: which; number: the lowest; text: how many
};
std::string_view setup_fact_name(SetupFact fact);  // "module", "autocast", ...

// The first time that a fact is seen; once for each path and site.
struct SetupEvent {
  std::uint32_t step = 0;
  SetupFact fact = SetupFact::kModule;
  std::string_view path;  // of a module or parameter; may be empty
  std::string_view site;  // line of the program, may be empty
  DType dtype = DType::kF32;
  double number = 0;
  std::string_view text;
};

// A finished step. NaN means "not known" for lr and scale; a NaN loss is a NaN loss.
// How a step ended.
enum class StepEnding : std::uint8_t {
  kOptimizer = 0,    // it passed its optimizer boundary; StepEvent::skipped says whether a scaler held the optimizer back
  kNextForward = 1,  // the next forward began: the program skipped this step
  kException = 2,    // an exception left the loop
  kExit = 3,         // the program ended itself
  kEnd = 4,          // the loop or the process ended, or the watch
  kForward = 5,      // nothing was trained, and the next model's call began: each one is a step
};
std::string_view step_ending_name(StepEnding ending);  // "optimizer", "next_forward", ...

struct StepEvent {
  std::uint32_t step = 0;
  bool skipped = false;  // the scaler kept the optimizer from running
  double loss = 0;
  double lr = 0;
  double scale = 1;
  std::int64_t at_ns = 0;  // when it ended, by std::chrono::steady_clock; 0: now
  std::int64_t watch_ns = 0;  // what watching took of the training thread's time since the last one; 0: not known
  StepEnding ending = StepEnding::kOptimizer;
  std::string_view message = {};  // what the program said of it: "AssertionError: loss is not finite"
};

}  // namespace nanhunt
