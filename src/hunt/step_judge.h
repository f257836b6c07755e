// SPDX-License-Identifier: Apache-2.0
// The judge of steps: how far the step at hand has come, what is bad in it, how much harm that is, and whether what was
// recorded of its operations is wanted. One text for whoever watches steps, wherever their contents lie and whenever
// they are read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/event.h"
#include "src/hunt/step_verdict.h"
#include "src/hunt/trigger_policy.h"

namespace nanhunt::hunt {

// How far a step has come, in the order of a step. It never goes back within one, and stays where it ended until the
// next one opens: with a model's call, or with something bad that no model's call made.
enum class StepState : std::uint8_t {
  kBegun = 0,     // nothing of it has run
  kSuspect,       // nothing was trained, but what ran is bad: a validation, say
  kForward,       // a model was called
  kScaled,        // its loss was multiplied by a scale
  kLoss,          // a backward begins from its loss
  kBackward,      // gradients were added up
  kUnscaled,      // ... and divided by the scale
  kClipped,
  kRaised,        // backward raised
  kOptimizer,     // an optimizer has run, or was held back
  kUpdated,       // the loss scaler has chosen its next scale
  kEnded,         // its optimizers have all passed; of a program that trains nothing, the next call of a model began
  kGivenUp,       // the program went on to the next forward without an optimizer
  kException,     // an exception left the program in it
  kExited,        // the program ended in it
};

// How a step ends that came to `ending`.
StepState ended_by(StepEnding ending);

// What follows of a bad step.
enum class Consequence : std::uint8_t {
  kNothing,  // nothing is bad, or a step of the same streak was taken not long ago
  kSpent,    // too many were taken: the first such step of a streak is told without its operations
  kTaken,    // its operations are wanted: they are kept
};

// What becomes of the operations of a step that were held in memory. kShown: an example of healthy ones.
enum class Fate : std::uint8_t { kDropped, kShown, kKept };

class StepJudge {
 public:
  explicit StepJudge(const TriggerOptions& options = {}) : policy_(options) {}

  // The step at hand.
  StepState state() const { return state_; }
  bool is_open() const { return state_ > StepState::kBegun && state_ < StepState::kEnded; }
  void pass(StepState state);
  void restart();  // what ran so far was no training
  bool is_trained() const { return losses_ != 0; }  // a backward has begun in it
  bool has_gradients() const { return backwards_ != 0; }  // ... and ended
  bool is_scaled() const { return scale_ == Scale::kOn; }  // gradients are multiplied by the scale

  bool is_usual() const { return calls_ >= std::max(usual_calls_, 1u); }  // it has called as many models as the last one

  // Fewer backwards have ended in it than in either of the last two that an optimizer ended: more batches come.
  bool is_amid() const { return backwards_ < std::min(usual_backwards_, usual_backwards_before_); }
  // It has called more models for each backward than one of those: a batch had none.
  bool left_batch_out() const;

  enum class Reads : std::uint8_t { kNot, kFirst, kAgain };
  // Before gradients are divided, clipped or used: whether they are read now. `last`: nothing comes between this and
  // the optimizer; `written`: the program has written them since.
  Reads reads_gradients(std::uint32_t step, bool last, bool written);

  enum class GivesUp : std::uint8_t { kNo, kYes, kIfBadNumber };
  // Before a model is called: whether the program has left the step at hand without an optimizer. That may be meant
  // (several models, a call without a loss), so a backward that raised, or a number that is not finite, must speak for it.
  GivesUp gives_up() const;

  // Steps that are judged, by number: the one at hand, and those before it of which a device has not told all.
  StepVerdict& verdict(std::uint32_t step);
  void note(std::uint32_t step, TensorRole role, std::string_view path);
  // Gradients were read: what is found from here on may be the next step's.
  void pass_boundary(std::uint32_t step);
  // As often as more is known; steps in order.
  Consequence judge(std::uint32_t step, Harm harm);
  Consequence judge(std::uint32_t step, bool held_back) { return judge(step, verdict(step).harm(held_back)); }

  // Of a step without harm: whether its operations are kept as an example of healthy ones. The first is; where
  // parameters are narrow the first eight are, then one in 64.
  bool shows(std::uint32_t step, bool narrow) const;
  // Of one that was held in memory, when it ends: whether it is kept. `left_bad`: badness began in what the optimizer or
  // the program left behind; `swallowed`: something went bad in it, and did no harm.
  bool keeps(std::uint32_t step, bool left_bad, bool swallowed);
  Fate end_held(std::uint32_t step, bool kept, bool narrow);
  // A bad step had its operations dropped, since this was asked last.
  bool was_left_out();

  // The step at hand is over, or was at its last boundary (`overran`): what was differentiated since is the next one's.
  void end(StepEnding ending, bool overran = false);
  // What was found after its last boundary belongs to the next step.
  void carry_over(std::uint32_t step);
  // What is known of a step that is over; then it is forgotten. `whole`: also what came after its last boundary.
  StepVerdict take(std::uint32_t step, bool whole);

  std::uint32_t taken() const { return policy_.triggers(); }

 private:
  enum class Gradients : std::uint8_t { kUnread, kAdded, kRead };
  enum class Scale : std::uint8_t { kOff, kOn };
  struct Judged {
    StepVerdict verdict, at_boundary;
    std::vector<std::string> since;  // losses that were bad after that boundary
    bool carried_over = false;
  };

  StepState state_ = StepState::kBegun;
  Gradients gradients_ = Gradients::kUnread;
  Scale scale_ = Scale::kOff;
  std::uint32_t calls_ = 0;  // of models
  std::uint32_t usual_calls_ = 0, usual_calls_before_ = 0;  // in the last two steps that an optimizer ended
  std::uint32_t losses_ = 0, backwards_ = 0;   // backwards that have begun and ended
  std::uint32_t usual_backwards_ = 0, usual_backwards_before_ = 0;  // of the last two steps that an optimizer ended
  std::map<std::uint32_t, Judged> steps_;

  TriggerPolicy policy_;
  std::optional<std::uint32_t> last_spent_, last_swallowed_;
  std::uint32_t shown_ = 0, swallowed_ = 0;
  bool left_out_ = false;
};

}  // namespace nanhunt::hunt
