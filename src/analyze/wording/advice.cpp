// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/wording/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

struct Row {
  std::string_view id, text, why;
};

constexpr std::string_view kOfFp16 = "(fp16: 1e-4)";  // a constant that depends on the format

constexpr std::string_view kFp32 = "fp32-compute";
constexpr std::string_view kFunctionInFp32 =
    "Run this op in fp32: where autocast is on, put torch.amp.custom_fwd(device_type=..., cast_inputs=torch.float32) on the "
    "forward of its autograd.Function and torch.amp.custom_bwd(device_type=...) on the backward.";
constexpr std::string_view kFp32OutsideAutocast =
    "Run this op, or this layer, in fp32: inside torch.autocast(device_type=..., enabled=False), on inputs cast by .float(). "
    "Outside of that block autocast rounds them again.";
constexpr std::string_view kZeroTimesDerivative =
    "What a selection drops has a gradient of 0, and the derivative that it is multiplied by must be finite too.";

constexpr Row kRows[] = {
    {"avoid-cancellation",
     "Compute it without a difference of large numbers: var(), a running mean of squared deviations, or fp64; a clamp only hides it.",
     "Subtracting numbers that are almost equal leaves little but their rounding errors."},
    {"backward-outside", "Leave the autocast block before backward() is called.",
     "Backward runs in the formats that forward chose."},
    {"bf16", "Compute in bf16.", "bf16 has the range of fp32, so magnitudes that overflow fp16 fit."},
    {"bound-exponent",
     "Bound the argument of the exponential that the numbers came of (a tanh, a clamp), or keep logarithms "
     "(logsumexp) in place of sums and products of exponentials.",
     "Products of exponentials pass the format where their logarithms do not."},
    {"bound-schedule", "Let the learning rate end at a bound: look at the scheduler's factor and at how often it is stepped.",
     "A rate that grows by a factor each step passes every bound in the end."},
    {"broadcast-parameters", "Broadcast the parameters from one rank once they are made or loaded, before the first step.",
     "Replicas that begin with different numbers train different models, whose gradients are added up."},
    {"builtin-norm", "Take the norm by torch.linalg.vector_norm, instead of a root of a sum of squares.",
     "Its gradient is 0 where the norm is 0; that of a root is infinite there."},
    {"cap-scale", "Give the scaler a largest scale, such as 2^24.", "Doubling without a limit ends at infinity."},
    {"cast-before-product", "Cast whole numbers to a floating-point format before they are multiplied: x.float().square().",
     "A product beyond an integer format wraps around silently."},
    {"check-lr", "Check the learning rate and its schedule, and what else the optimizer is given.",
     "The optimizer multiplies every update by it."},
    {"check-memory", "Check the memory and the processor: error counters, a memory test, another machine.",
     "Contents that change by themselves come from hardware more often than from code."},
    {"check-update", "Check the update of the optimizer: the sign of its weight decay and of the gradient.",
     "An update that makes the loss larger goes the wrong way, or too far."},
    {"clamp-above-0", "Keep the argument above 0: clamp it from below at a number that its format holds (fp16: 1e-4).",
     "The derivative takes a logarithm, which is infinite at 0."},
    {"clamp-above-1", "Keep the argument above 1: clamp it from below at 1 + 1e-6.",
     "At 1 the function is finite and its derivative is not."},
    {"clamp-above-minus-1", "Cast the argument to fp32, then clamp it from below at -1 + 1e-6 (16 bits round that to -1).",
     "At -1 log1p and its derivative are infinite."},
    {"clamp-count", "Divide by the count clamped from below at 1: count.clamp(min=1).",
     "Beside a count that is 0 a small constant only makes the quotient huge."},
    {"clamp-divisor",
     "Keep the number that it divides by away from 0, as by clamp(min=eps), or do not divide before it has its first value.",
     "0 divided by 0 is NaN, by anything else it is 0."},
    {"clamp-input", "Clamp the argument to the range in which the function is finite.",
     "Nothing downstream can undo an Inf or NaN, so it has to be kept from arising. What is clamped gets no gradient: where that is more "
     "than a few numbers, correct what makes them so."},
    {"clamp-inside", "Keep the argument strictly inside of the domain: clamp it to 1e-6 less than 1 and more than -1.",
     "At -1 and 1 atanh is infinite, and so is the derivative of acos and asin."},
    {"clear-gradients",
     "Call zero_grad() of the optimizer that is stepped, or of the model that is trained, once before each backward.",
     "Backward adds to the gradients that are there."},
    {"clip-gradients", "Clip gradients by their norm.",
     "A limit on the norm keeps one bad step from making the next one worse."},
    {"combine-masks", "Combine masks before they are filled in (logical and, or), instead of adding them.",
     "Each fits the format; two of them together do not."},
    {"compare-kernel", "Compare the kernel with the same in operations of PyTorch, in fp32, on what it was given.",
     "Those are watched one by one."},
    {"compile-cache-off",
     "Run it once more with TORCHINDUCTOR_AUTOGRAD_CACHE=0 in the environment: then nanhunt sees what is compiled, and tells "
     "the operation inside.",
     "A graph that comes out of a cache comes without its operations."},
    {"compile-off", "Run it once more with TORCH_COMPILE_DISABLE=1 in the environment: then every operation is heard.",
     "Without the compiler operations run one by one."},
    {"count-in-int64", "Count in int64, where it was counted in uint8.", "uint8 holds 0 to 255: 256 becomes 0."},
    {"ctc-lengths",
     "Drop samples whose input is shorter than their target, or set zero_infinity=True.",
     "Their loss is infinite whatever the model says."},
    {"cure-origin", "Cure the op named here: no loss scale can.",
     "The scaler lowers the scale because it takes every bad gradient for an overflow."},
    {"difference-in-fp32", "Keep what 1 is compared with, and the difference, in fp32: 1 - beta ** t with beta as a number of Python's or in fp32.",
     "In bf16 what is nearer to 1 than 0.002 is 1, in fp16 than 0.0002: nothing is left of the difference."},
    {"drop-bad-samples", "Check samples in the Dataset: repair those that are not finite, or leave them out there. A rank that skips a batch in its "
     "loop leaves the others waiting.",
     "One bad sample makes the whole update bad."},
    {"eps-1e-4", "Raise eps to 1e-4, the first power of ten that is a normal fp16 number.",
     "It stops the division by 0, but a second moment that is stored as 0 still gives steps of the wrong size."},
    {"eps-in-sqrt",
     "Add a small constant inside the root: sqrt(x + eps), with an eps that does not round to 0 in the number format "
     "(fp16: 1e-4).",
     "The root then stays away from 0, where its derivative is infinite."},
    {"few-elements", "Skip groups of one element, or pass correction=0 (unbiased=False).",
     "The variance of one element, corrected for its mean, is 0/0."},
    {"find-stray-write",
     "Look for code that writes to it past the framework: an array that shares its memory (NumPy), a raw pointer, "
     "native "
     "code; run native code of your own with an address sanitizer.",
     "Such a write is no operation, so nothing that watches operations sees it."},
    {"finite-constant", "Put a large finite number of the same sign in place of the infinite one, such as 1e9 (fp16: 1e4).",
     "0 * Inf and Inf - Inf are NaN; the same with a finite number is not."},
    {"finite-log-zero", "Begin what is added up in logarithms with a large finite number in place of -Inf, such as -1e9 (fp16: -1e4).",
     "-Inf - (-Inf) is NaN: the derivative of logaddexp is made of it where both sides are -Inf."},
    {"finite-mask", "Mask with a large finite number, such as -1e9 (fp16: -1e4).",
     "0 * Inf and Inf - Inf are NaN; the same with a finite number is not."},
    {"fp32-average", "Keep the average in fp32.",
     "Each step moves it by a small share of a weight, which 16 bits round away."},
    {"fp32-buffer", "Keep the buffer in fp32, and cast it where it is read.",
     "What each step adds to it is then representable."},
    {"fp32-compute", "Run this op, or this layer, in fp32.",
     "The numbers are finite in fp32; only fp16 cannot hold them."},
    {"fp32-counter", "Keep the counter in fp32, or as a whole number.",
     "fp32 counts to 2^24, fp16 to 2048, bf16 to 256."},
    {"fp32-masters", "Keep fp32 master weights and fp32 optimizer state.",
     "In fp32 eps, small second moments and small updates are all representable."},
    {"fp32-merge", "Merge in fp32, and round the sum once; or keep the adapter apart.",
     "Each weight is then rounded once, and what is added counts as far as the format can hold it."},
    {"fused-optimizer", "Use a fused optimizer, which computes the update in fp32 and rounds only the results.",
     "eps is then added in fp32; state stored in fp16 still loses small second moments."},
    {"get-tap", "Get the tap, which hears the operations of PyTorch, and train again.",
     "Without it no operation is watched, at any level."},
    {"guard-base", "Add a small constant to the base before the power, or clamp it away from 0.",
     "0 to a negative power is infinite, and so is the derivative of a power below 1 at 0."},
    {"guard-denominator",
     "Add a small constant to the denominator, one that does not round to 0 in the number format (fp16: 1e-4).",
     "Nothing keeps the denominator from being 0."},
    {"guard-value", "Check the constant before it is written.", "The op did what it was told."},
    {"held-bound", "Clamp to a bound that the number format holds: 1 - 1e-6 in fp32, 0.999 in fp16, 0.99 in bf16.",
     "What rounds to the pole keeps nothing from it."},
    {"init-scale", "Start the scaler with a lower init_scale.",
     "A scale that is too large loses steps until it has been lowered."},
    {"interval-above-count", "Set the growth interval above the count of clean steps, or set the count to 0.",
     "The scaler compares the two for equality only."},
    {"keep-above-zero", "Keep the argument away from 0: softplus(x) plus a constant that is not small (1 for the concentrations of a Dirichlet).",
     "The logarithm of the gamma function, and each of its derivatives, is infinite at 0 and at the negative whole "
     "numbers."},
    {"keep-one-key",
     "Leave at least one entry of each row unmasked, or write zeros into the scores of fully masked rows, before this operation: "
     "replacing its NaN afterwards (nan_to_num) leaves NaN gradients.",
     "A row without any finite entry has neither a softmax nor a largest entry."},
    {"keep-roundings",
     "Set torch._inductor.config.emulate_precision_casts = True, which rounds where the program does, or leave this line out of "
     "the graph (torch.compiler.disable).",
     "A fused kernel keeps what 16-bit operations hand on in fp32."},
    {"learn-logarithm",
     "Learn the parameter's logarithm (its exp is above 0 whatever an update does), or pass it through softplus.",
     "An update takes a parameter across 0 as it comes. Where a clamp holds it, it has no gradient, and a likelihood no "
     "bound."},
    {"leave-masked-out", "Leave masked entries out of the mean or the sum: take those that count, or write 0 into the others first.",
     "What is masked has no probability, and its logarithm is -Inf."},
    {"leave-out-of-graph", "Leave this line out of the graph: put torch.compiler.disable on the function that has it.",
     "A fused kernel adds up in another order than the operations do one by one."},
    {"let-gradients-through",
     "Find the operation whose derivative is 0: detach(), argmax, a comparison, sign or round (use a straight-through estimator), a "
     "saturated sigmoid or softmax, dead units, a factor that is 0 (an exponential of a very negative number).",
     "Where a derivative is 0, nothing before it learns; an update that is too long can leave a ReLU dead for good."},
    {"load-in-training", "Run it once more with num_workers=0 (the data made in the training process): then the line that makes them bad is "
     "named.",
     "Operations of other processes are not heard."},
    {"log-form",
     "Take the function and its logarithm in one: log(cosh(x)) is |x| + softplus(-2 * |x|) - log(2), log(i0(x)) is "
     "|x| + log(i0e(x)), the logarithm of a sum of exponentials is logsumexp, of a running sum logcumsumexp.",
     "The logarithm fits where the number itself does not."},
    {"log-softmax", "Take the logarithm and the softmax in one: log_softmax, or cross_entropy of the logits.",
     "It never forms the logarithm of a probability that was rounded to 0."},
    {"log-softmax-fp32", "Take the loss of the logits in fp32: logits.float().",
     "A logarithm keeps few digits in 16 bits."},
    {"look-at-divisor", "Look at where the number that it divides by comes from: it is 0 (a count, a number of ranks, a temperature).",
     "It divides every element; a small constant beside it would only make the results huge."},
    {"look-at-other-ranks", "Look at the traces of the other ranks for this step.",
     "The rank whose own share was bad is where it came from."},
    {"look-beyond-ops",
     "Look at how the program makes it (class weights, a mask or a count with a 0 in it, labels, rewards): no operation that was "
     "watched did.",
     "From the first step on every operation of the framework was watched: what ran before it, NumPy, a file or a "
     "kernel of another library made it."},
    {"loss-scaling", "Scale the loss: a dynamic scaler, or a static scale such as 512.",
     "Gradients are multiplied by it in backward, where fp16 would lose them, and divided by it in fp32."},
    {"lower-lr", "Lower the learning rate.", "The updates are as large as the weights, so each one overshoots."},
    {"lower-magnitude",
     "Find out why the numbers are so large: the learning rate, the initialisation or the scale of the inputs.",
     "No wider common format helps."},
    {"lower-static-scale", "Lower the static loss scale, or use a dynamic one.",
     "A static scale neither gets lower nor holds a step back."},
    {"make-in-training",
     "Run it once more with the data made in the thread that trains: then the line that makes them bad is named.",
     "Operations of other threads are not heard."},
    {"mend-schedule", "Mend the schedule of the learning rate, so that it ends at 0 or above: look at its length, and at how often it is stepped.",
     "An update with a negative rate makes the loss larger."},
    {"no-manual-half", "Leave parameters and results in fp32 and let autocast cast them.",
     "Autocast knows which ops may run in 16 bits; digits that were rounded away do not come back."},
    {"no-scaler-bf16", "Leave the loss scaler out: GradScaler(enabled=False).",
     "With bf16 there is nothing that a scale could keep from becoming 0."},
    {"no-step-beside-scaler", "Leave optimizer.step() out: scaler.step(optimizer) has called it, where it should be.",
     "The scaler knows which gradients are not finite; the optimizer uses whatever it finds."},
    {"no-zero-vector",
     "Fill neither the vectors v nor a row of them with zeros; for a weight of 0 set their lengths g to 0.",
     "A vector of zeros has no direction: v over its norm is 0/0."},
    {"one-scaler", "Make the scaler once, before the loop, and use it in every step.",
     "Its scale is what it has learnt of the steps before."},
    {"optimizer-after-convert", "Build the optimizer after the model has its format, device and wrappers.",
     "It then holds the parameters that are trained."},
    {"optimizer-eps", "Give the optimizer an eps above 0, such as 1e-8.",
     "Where a parameter has had no gradient, the root of its mean of squares is 0, and eps alone keeps the division "
     "sound."},
    {"part-eigenvalues",
     "Take a loss that does not depend on the vectors (eigvalsh, svdvals), or keep eigenvalues and singular values apart: "
     "add a small number to the diagonal, another one for each row.",
     "Vectors of equal values are not unique: their derivative divides by the difference of the values."},
    {"raise-eps",
     "Raise the constant until it does not round to 0 in the number format (fp16: 1e-4), or add it in fp32.",
     "A constant that rounds to 0 guards nothing."},
    {"raise-loss-scale", "Raise the loss scale, or let it grow.",
     "The gradients are still too small for the format at this scale."},
    {"record-again", "Train again as before, and copy the run folder once the program has ended.",
     "What this trace lost cannot be had back from it, and another level would not have kept it."},
    {"record-longer", "Record until the scaler has settled.", "A few more steps decide whether a lower scale helps."},
    {"record-ops", "Train again with every operation watched: --level ops.",
     "Then the step is in the trace as it ran."},
    {"reduce-flags",
     "Reduce a flag or a count (isfinite), with SUM or with MAX over whole numbers, not the numbers themselves.",
     "Of a comparison with NaN, which side wins is left to chance; of a sum it is not."},
    {"reduce-fp32", "Reduce gradients in fp32, or divide them after their sum.",
     "Divided by the number of ranks, a small gradient is no longer a number of its format."},
    {"reduce-wider", "Divide by the number of ranks before the sum, or reduce in fp32.",
     "Each share fits the format; only their sum does not."},
    {"regular-matrix",
     "Add a small multiple of the identity to the matrix, A + 1e-4 * torch.eye(n), or leave out rows that are alike; where "
     "its own format is too coarse for it, compute it in fp64.",
     "Then every one of its eigenvalues has a distance from 0."},
    {"reload-state", "Load a checkpoint whose parameters, state and buffers are finite, or mend what initialises them.",
     "Training from a bad number can only spread it."},
    {"restore-after-finder", "Put model, optimizer and loss scaler back to what they were before the ramp.",
     "What a ramp leaves is no model to train on."},
    {"same-format-targets", "Give the targets the format in which the loss is taken, best fp32.",
     "A comparison is as exact as its narrower side."},
    {"scale-inputs", "Scale what the model is given: each column by its own mean and deviation.",
     "A column in other units makes the gradients of its weights, and so their updates, as much larger."},
    {"scaled-function",
     "Take the scaled form of the function, which leaves the exponential out (i0e, i1e), and keep the exponent apart; or "
     "compute it in fp64.",
     "What passes the format is a step on the way: the result itself would fit."},
    {"scaler-call-order", "Call unscale_, then clip, step and update, each once, in this order.",
     "The scaler counts on each call once per update."},
    {"select-argument",
     "Replace what the operation is given, too: torch.where(ok, x, 0.5) before it, where ok marks the elements that are kept. "
     "Of a division x is the divisor, and of a divisor that is a root what is under it. Keep the selection after it.",
     kZeroTimesDerivative},
    {"select-before",
     "Select before the arithmetic: torch.where(mask > 0, y, 0) on what holds the NaN, or index all of it with the mask.",
     "A product keeps NaN whatever the mask is; a selection does not."},
    {"select-first",
     "Clamp or index the argument of the operation, not its result: sqrt(x.clamp(min=1e-6)) in place of sqrt(x).clamp(min=1e-3).",
     kZeroTimesDerivative},
    {"skip-empty", "Skip the mean where nothing is left to average, or divide the sum by at least 1.",
     "A mean over nothing is 0/0."},
    {"skip-unlabelled", "Divide the summed loss by the number of valid labels, clamped from below at 1, or skip batches without one on all ranks "
     "alike.",
     "A mean over nothing is 0/0."},
    {"skip-zero-divisors",
     "Write 0 where the divisor is 0: torch.where(y == 0, 0, x / torch.where(y == 0, 1, y)); or correct what makes it 0.",
     "x / 0 is infinite; beside a small constant it is finite, but huge."},
    {"slogdet", "Take the logarithm of |det| from slogdet, or make the matrix such that its determinant is above 0.",
     "A determinant leaves its format long before its logarithm does, and one below 0 has none."},
    {"sound-state",
     "Load an optimizer state that is finite and whose means of squares are not negative, or begin without it.",
     "The optimizer goes on from what it is given: every update after it is made of that state."},
    {"stay-in-logarithms",
     "Stay in logarithms: torch.logsumexp of the exponents, with the logarithms of weights and factors added to them, in "
     "place of log(sum(exp)).",
     "It never forms the exponentials that are too small for the format; a limit on their sum takes its gradient away."},
    {"step-by-scaler", "Call scaler.step(optimizer) and scaler.update() in place of optimizer.step().",
     "They divide the gradients by the scale, and hold a step back where some are not finite."},
    {"stochastic-rounding", "Without room for masters: round updates of weights at random (stochastic rounding).",
     "Then a small update changes a weight with the probability that it would have moved it by, and nothing is lost on "
     "average."},
    {"stop-finder", "Stop the ramp once the smoothed loss is 4 times its best.",
     "Beyond that there is nothing to be found."},
    {"subtract-largest", "Subtract the largest number of each row, or segment, before the exponential; or use softmax, which does.",
     "The quotient stays the same, and no exponential is larger than 1."},
    {"unscale-before-clip", "Call unscale_ before gradients are clipped.",
     "A limit on the norm means the norm of the gradients themselves, not of their multiple."},
    {"vanishing-divisor",
     "Keep the divisor from vanishing: take differences of logarithms and one exponential (exp(a - b) in place of "
     "exp(a) / exp(b)), or clamp it from below at a larger number.",
     "A quotient passes the format once its divisor is small enough, however sound its numerator is."},
    {"warm-up", "Let the learning rate rise over the first steps.",
     "Gradients are largest at the start, when the weights fit nothing yet."},
    {"watch-opaque-call", "Look into the call that had the tensor, or check its outputs before they are used.",
     "It wrote where nothing that is watched did."},
    {"weigh-classes",
     "Give every class that occurs a weight above 0, leave out the class weights, or skip batches whose labels all "
     "have weight 0.",
     "A mean by weights that are all 0 is 0/0."},
    {"with-logits", "Use the loss that takes logits: binary_cross_entropy_with_logits, or logsigmoid(x) in place of log(sigmoid(x)).",
     "It never forms the logarithm of a probability that was rounded to 0."},
    {"write-before-read",
     "Write every element before the first read (initialise it, load what is missing, check the index that it is read by), or "
     "allocate with zeros.",
     "Nothing promises what fresh memory holds."},
    {"zero-grad-after-skip", "Clear the gradients after every step, skipped ones included.",
     "A skip leaves the bad gradients where they are."},
};
static_assert(std::is_sorted(std::begin(kRows), std::end(kRows),
                             [](const Row& a, const Row& b) { return a.id < b.id; }));

// The same for programs that do not train with PyTorch: the formula instead of its function.
struct Formula {
  std::string_view id, text;
};
constexpr Formula kFormulas[] = {
    {"builtin-norm", "Give the norm the gradient x / norm, and 0 where the norm is 0."},
    {"ctc-lengths", "Drop samples whose input is shorter than their target, or set their infinite loss to 0."},
    {"few-elements", "Skip groups of one element, or divide by n instead of n - 1."},
    {"log-softmax", "Take log softmax in one: z - max(z) - log(sum(exp(z - max(z))))."},
    {"log-softmax-fp32", "Take the loss of the logits in fp32."},
    {"select-argument",
     "Replace what the operation is given, too, where its result is not taken (of a division its divisor), by 0.5. Keep the "
     "selection after it."},
    {"skip-zero-divisors", "Write 0 where the divisor is 0, and divide by 1 there; or correct what makes it 0."},
    {"stay-in-logarithms",
     "Stay in logarithms: of exponents z, with the logarithms of weights and factors added to them, take "
     "max(z) + log(sum(exp(z - max(z))))."},
    {"no-scaler-bf16", "Leave the loss scaler out."},
    {"part-eigenvalues",
     "Take a loss that does not depend on the vectors, or keep eigenvalues and singular values apart: add a small number to "
     "the diagonal, another one for each row."},
    {"with-logits", "Take the loss of the logits z: max(z, 0) - z * y + log(1 + exp(-|z|))."},
};

// Fixes that are a piece of advice made concrete: once one was tried, the advice says nothing more.
struct Concrete {
  std::string_view fix, advice;
};
constexpr Concrete kConcrete[] = {
    {"calibrated-scale", "init-scale"},         {"clamp-before-exp", "clamp-input"},
    {"clamp-log-variance", "clamp-input"},      {"fp32-layer", "fp32-compute"},
    {"fp32-norm", "fp32-compute"},              {"fp32-statistics", "fp32-compute"},
    {"lower-scale", "lower-static-scale"},
    {"static-scale-512", "loss-scaling"},
    {"two-selections", "clamp-input"},          {"unscale-first", "unscale-before-clip"},
};

std::string_view advice_of(std::string_view fix) {
  const auto* row =
      std::find_if(std::begin(kConcrete), std::end(kConcrete), [&](const Concrete& c) { return c.fix == fix; });
  return row == std::end(kConcrete) ? std::string_view() : row->advice;
}

constexpr double kLeastPercent = 0.01;  // how near an update came to another is not told finer than this

// The words for what was seen when a fix was tried.
std::string outcome(const ExperimentRecord& e) {
  if (!e.finite)
    return fmt::format("tried on this run: NaN or Inf again within {} of the failure",
                       count_of(e.further_steps + 1ll, "step"));
  std::string text =
      fmt::format("tried on this run: {} past the failure stayed finite", count_of(e.further_steps, "step"));
  if (std::isfinite(e.loss_before) && std::isfinite(e.loss_after)) {
    text += fmt::format(", loss {} -> {}", number(e.loss_before), number(e.loss_after));
  }
  if (std::isinf(e.update_factor)) {
    text += ", but an update of a parameter was nothing, not finite, or not in the direction of an fp64 optimizer's";
  } else if (e.update_factor > 0) {
    text += e.verified ? fmt::format(", every update within {:.2g} % of an fp64 optimizer's",
                                     std::max(100 * (e.update_factor - 1), kLeastPercent))
                       : fmt::format(", but updates are up to {:.3g}x off an fp64 optimizer's", e.update_factor);
  }
  return text;
}

void apply(Advice& advice, const ExperimentRecord& experiment) {
  advice.verified = experiment.verified;
  advice.evidence = outcome(experiment);
  // Of advice with a choice only what was tried is known to work.
  const bool choice = advice.text.find(" or ") != std::string::npos;
  const bool told = advice.text == experiment.description || advice.text.find(" Tried here: ") != std::string::npos;
  if (choice && !told && !experiment.description.empty())
    advice.text += fmt::format(" Tried here: {}.", experiment.description);
}

}  // namespace

Advice make_advice(std::string_view id) {
  Advice advice;
  advice.id = std::string(id);
  const auto* row = std::lower_bound(std::begin(kRows), std::end(kRows), id,
                                     [](const Row& r, std::string_view wanted) { return r.id < wanted; });
  if (row != std::end(kRows) && row->id == id) {
    advice.text = std::string(row->text);
    advice.why = std::string(row->why);
  } else {
    advice.text = advice.id;
  }
  return advice;
}

void fit_to_format(Advice& advice, DType stored) {
  const std::size_t at = advice.text.find(kOfFp16);
  if (at == std::string::npos || stored == DType::kF16 || !is_floating(stored) || dtype_size(stored) < 2) return;
  // Its square root and its inverse are sound numbers of each of these formats too.
  advice.text.replace(at, kOfFp16.size(), fmt::format("({}: {})", dtype_name(stored), stored == DType::kF64 ? "1e-12" : "1e-8"));
}

void fit_to_autocast(Finding& finding, bool autocasts) {
  const OpPlace& at = finding.place;
  // The derivative of an op of forward has the frames of that op.
  const bool of_layer = at.phase == Phase::kBackward && at.module && !at.module->starts_with('<');
  const bool of_function = of_layer && !finding.frames.empty() && finding.frames.front().function.ends_with(".backward");
  if (!of_function && !(autocasts && at.phase <= Phase::kBackward)) return;
  for (Advice& advice : finding.advice) {
    if (advice.id != kFp32) continue;
    const std::string told = make_advice(kFp32).text;
    if (advice.text.starts_with(told)) advice.text.replace(0, told.size(), of_function ? kFunctionInFp32 : kFp32OutsideAutocast);
  }
}

void name_no_functions_of_pytorch(std::vector<Finding>& findings) {
  for (Finding& f : findings) {
    for (Advice& advice : f.advice) {
      const auto* row = std::find_if(std::begin(kFormulas), std::end(kFormulas), [&](const Formula& one) { return one.id == advice.id; });
      if (row != std::end(kFormulas)) advice.text = std::string(row->text);
    }
  }
}

Advice manual_cast_advice(DType dtype) {
  Advice advice = make_advice("no-manual-half");
  advice.text += dtype == DType::kF16 ? " Take the .half() or .to(float16) out." : " Take the .bfloat16() or .to(bfloat16) out.";
  return advice;
}

void add_trial(Advice& advice, const ProbeRecord& trial, std::string_view what) {
  const bool finite = trial.ran && trial.nan + trial.pos_inf + trial.neg_inf == 0;
  advice.on_these_numbers = finite;
  if (!finite) {
    advice.evidence = fmt::format("tried on these numbers: {}: not finite", what);
    return;
  }
  advice.evidence = fmt::format("tried on these numbers: {}: finite, at most {}", what, number(trial.number));
  // Of a constant, a limit or a choice only what was tried is known to work.
  bool is_open = advice.text.find(" or ") != std::string::npos || advice.id == "clamp-input";
  for (const DType format : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    const std::size_t at = advice.text.find(fmt::format(" ({}: ", dtype_name(format)));
    if (at == std::string::npos) continue;
    is_open = true;
    advice.text.erase(at, advice.text.find(')', at) - at + 1);
  }
  if (is_open) advice.text += fmt::format(" Tried here: {}.", what.substr(0, what.find("; ")));
}

Tried order_of(const Advice& advice) {
  constexpr std::array<std::string_view, 4> kKnown = {"init-scale", "log-softmax", "stay-in-logarithms", "with-logits"};
  const bool known = tried(advice) == Tried::kNotTried && std::find(kKnown.begin(), kKnown.end(), advice.id) != kKnown.end();
  return known ? Tried::kOnTheseNumbers : tried(advice);
}

void put_tried_first(std::vector<Advice>& advice) {
  std::stable_sort(advice.begin(), advice.end(),
                   [](const Advice& a, const Advice& b) { return order_of(a) < order_of(b); });
}

void add_experiments(std::vector<Finding>& findings, const std::vector<ExperimentRecord>& experiments) {
  for (std::size_t i = 0; i < findings.size(); ++i) {
    std::vector<Advice>& advice = findings[i].advice;
    for (const ExperimentRecord& experiment : experiments) {
      // It was trained past its own step only: it says nothing of failures elsewhere.
      if (experiment.step != findings[i].place.step) continue;
      auto it = std::find_if(advice.begin(), advice.end(), [&](const Advice& a) { return a.id == experiment.fix; });
      if (it == advice.end()) {
        const std::size_t before = advice.size();
        std::erase_if(advice, [&](const Advice& a) { return a.id == advice_of(experiment.fix); });
        if (i != 0 && advice.size() == before) continue;
        Advice extra = make_advice(experiment.fix);
        if (extra.why.empty()) extra.text = experiment.description.empty() ? experiment.fix : experiment.description;
        it = advice.insert(advice.end(), std::move(extra));
      }
      apply(*it, experiment);
    }
    put_tried_first(advice);
  }
}

}  // namespace nanhunt::analyze
