// SPDX-License-Identifier: Apache-2.0
// The judge of steps, lent out.
#include "src/hunt/step_judge.h"

#include <limits>
#include <new>
#include <string>

#include "nanhunt/c_adapter.h"
#include "src/c_api/convert.h"
#include "src/c_api/ending_signals.h"
#include "src/c_api/error.h"
#include "src/c_api/handle.h"

struct nanhunt_step_judge {
  nanhunt::hunt::StepJudge judge;
};

namespace nanhunt::c_api {
namespace {

using hunt::Consequence;
using hunt::Fate;
using hunt::StepJudge;
using hunt::StepState;

static_assert(NANHUNT_STEP_EXITED == static_cast<int>(StepState::kExited));
static_assert(NANHUNT_STEP_TAKEN == static_cast<int>(Consequence::kTaken));
static_assert(NANHUNT_STEP_KEPT == static_cast<int>(Fate::kKept));
static_assert(NANHUNT_STEP_READS_AGAIN == static_cast<int>(StepJudge::Reads::kAgain));
static_assert(NANHUNT_STEP_GIVEN_UP_IF_BAD_NUMBER == static_cast<int>(StepJudge::GivesUp::kIfBadNumber));

// What `body` answers; -1 where an argument is wrong.
template <typename F>
std::int32_t answered(nanhunt_step_judge* judge, F&& body) noexcept {
  std::int32_t answer = -1;
  (void)checked([&] {
    if (judge == nullptr) throw Misuse("expected a judge of steps, got NULL: make one first");
    answer = static_cast<std::int32_t>(body(judge->judge));
  });
  return answer;
}

}  // namespace
}  // namespace nanhunt::c_api

using namespace nanhunt;
using namespace nanhunt::c_api;

extern "C" {

nanhunt_step_judge* nanhunt_step_judge_new(uint32_t max_taken, uint32_t distance) {
  hunt::TriggerOptions options;
  if (max_taken != 0) options.max_triggers = max_taken;
  if (distance != 0) options.distance = distance;
  auto* judge = new (std::nothrow) nanhunt_step_judge{StepJudge(options)};
  if (judge == nullptr) fail(NANHUNT_INTERNAL, "out of memory");
  return judge;
}

void nanhunt_step_judge_free(nanhunt_step_judge* judge) { delete judge; }

nanhunt_status nanhunt_recorder_judge_at_signals(nanhunt_recorder* recorder, const nanhunt_step_judge* judge,
                                                 int32_t ends_between) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    if (judge == nullptr) throw Misuse("expected a judge of steps, got NULL: make one first");
    judge_at_ending_signals(to.recorder.get(), &judge->judge, ends_between != 0);
  });
}

int32_t nanhunt_step_is_open(nanhunt_step_judge* judge) {
  return answered(judge, [](StepJudge& of) { return of.is_open(); });
}

int32_t nanhunt_step_restart(nanhunt_step_judge* judge) {
  return answered(judge, [](StepJudge& of) {
    of.restart();
    return of.is_open();
  });
}

int32_t nanhunt_step_pass(nanhunt_step_judge* judge, int32_t state) {
  return answered(judge, [&](StepJudge& of) {
    of.pass(enum_of("state", state, StepState::kExited));
    return of.state();
  });
}

int32_t nanhunt_step_reads_gradients(nanhunt_step_judge* judge, uint32_t step, int32_t last, int32_t written) {
  return answered(judge, [&](StepJudge& of) { return of.reads_gradients(step, last != 0, written != 0); });
}

int32_t nanhunt_step_gives_up(nanhunt_step_judge* judge) {
  return answered(judge, [](StepJudge& of) { return of.gives_up(); });
}

int32_t nanhunt_step_facts(nanhunt_step_judge* judge) {
  return answered(judge, [](StepJudge& of) {
    return (of.is_trained() ? NANHUNT_STEP_TRAINED : 0) | (of.has_gradients() ? NANHUNT_STEP_HAS_GRADIENTS : 0) |
           (of.is_scaled() ? NANHUNT_STEP_SCALED : 0) | (of.is_usual() ? NANHUNT_STEP_USUAL : 0) |
           (of.is_amid() ? NANHUNT_STEP_AMID : 0) | (of.left_batch_out() ? NANHUNT_STEP_LEFT_BATCH_OUT : 0);
  });
}

int32_t nanhunt_step_note(nanhunt_step_judge* judge, uint32_t step, int32_t kind, int32_t older, const char* path) {
  return answered(judge, [&](StepJudge& of) {
    const auto role = enum_of("kind", kind, TensorRole::kOutput);
    if (older != 0) {
      of.verdict(step).note_older(role, text_of(path));
    } else {
      of.note(step, role, text_of(path));
    }
    return of.verdict(step).bad;
  });
}

int32_t nanhunt_step_note_kept(nanhunt_step_judge* judge, uint32_t step) {
  return answered(judge, [&](StepJudge& of) {
    of.verdict(step).kept = true;
    return of.verdict(step).bad;
  });
}

int32_t nanhunt_step_bad(nanhunt_step_judge* judge, uint32_t step) {
  return answered(judge, [&](StepJudge& of) { return of.verdict(step).bad; });
}

int32_t nanhunt_step_boundary(nanhunt_step_judge* judge, uint32_t step) {
  return answered(judge, [&](StepJudge& of) {
    of.pass_boundary(step);
    return of.verdict(step).bad;
  });
}

int32_t nanhunt_step_judge_bad(nanhunt_step_judge* judge, uint32_t step, int32_t held_back) {
  return answered(judge, [&](StepJudge& of) { return of.judge(step, held_back != 0); });
}

int32_t nanhunt_step_judge_harm(nanhunt_step_judge* judge, uint32_t step) {
  return answered(judge, [&](StepJudge& of) { return of.judge(step, hunt::Harm::kHarm); });
}

int32_t nanhunt_step_shows(nanhunt_step_judge* judge, uint32_t step, int32_t narrow) {
  return answered(judge, [&](StepJudge& of) { return of.shows(step, narrow != 0); });
}

int32_t nanhunt_step_keeps(nanhunt_step_judge* judge, uint32_t step, int32_t left_bad, int32_t swallowed) {
  return answered(judge, [&](StepJudge& of) { return of.keeps(step, left_bad != 0, swallowed != 0); });
}

int32_t nanhunt_step_end_held(nanhunt_step_judge* judge, uint32_t step, int32_t kept, int32_t narrow) {
  return answered(judge, [&](StepJudge& of) { return of.end_held(step, kept != 0, narrow != 0); });
}

int32_t nanhunt_step_was_left_out(nanhunt_step_judge* judge) {
  return answered(judge, [](StepJudge& of) { return of.was_left_out(); });
}

int32_t nanhunt_step_carry_over(nanhunt_step_judge* judge, uint32_t step) {
  return answered(judge, [&](StepJudge& of) {
    of.carry_over(step);
    return of.verdict(step).bad;
  });
}

int32_t nanhunt_step_end(nanhunt_step_judge* judge, int32_t ending, int32_t overran) {
  return answered(judge, [&](StepJudge& of) {
    of.end(enum_of("ending", ending, StepEnding::kForward), overran != 0);
    return of.state();
  });
}

int32_t nanhunt_step_record(nanhunt_step_judge* judge, nanhunt_recorder* recorder, uint32_t step, int32_t whole,
                            int32_t read, double gradient_norm, uint64_t weight_checksum) {
  return answered(judge, [&](StepJudge& of) {
    if (recorder == nullptr) throw Misuse("expected a recorder, got NULL: open one first");
    const hunt::StepVerdict verdict = of.take(step, whole != 0);
    if (verdict.bad != 0 || read != 0)
      recorder->recorder->on_health(verdict.health(step, gradient_norm, weight_checksum));
    return verdict.bad;
  });
}

}  // extern "C"
