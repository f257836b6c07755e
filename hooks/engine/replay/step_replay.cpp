// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/replay/step_replay.h"

#include <fmt/format.h>

#include "hooks/engine/replay/replay_record.h"

namespace nanhunt::hooks {

bool holds_back(engine::Trainer& trainer) {
  const engine::LossScaler* scaler = trainer.scaler();
  return scaler != nullptr && scaler->holds_back();
}

std::optional<std::string> run_again(engine::Trainer& trainer, Recorder& recorder, const StepReplay& what) {
  ReplayRecord record(recorder, what.verdict.trigger(), trainer.options().micro_batches > 1, what.readings);
  if (what.before_begin) record.before_begin(what.before_begin);
  const engine::Replayed replayed = trainer.replay(record, what.before);
  if (!replayed.ran) {
    return fmt::format("{}: {}.", record.began() ? "The replay did not end" : "The step was not replayed",
                       replayed.refused);
  }
  const bool there = what.readings != nullptr;
  std::vector<hunt::StepFact> original = what.original, again = record.facts();
  if (trainer.data_parallel() != nullptr) {
    // The replay reduces nothing: its gradients, and what they lead to, are this rank's own.
    for (std::vector<hunt::StepFact>* facts : {&original, &again}) {
      for (hunt::StepFact& fact : *facts) fact.checksum = fact.kind == TensorRole::kLoss ? fact.checksum : 0;
    }
  }
  hunt::ReplayComparison comparison = hunt::compare_replay(original, again, there ? "statistics" : "bits");
  if (trainer.data_parallel() != nullptr) {
    comparison.text += " Run again without the reduction over the ranks: of gradients and what they lead to only "
                       "whether they are finite is compared.";
  }
  if (there && (what.original.empty() || again.empty())) {
    comparison = {ReplayResult::kDiffers,
                  "The replay could not be compared with the step: the device lost what was read."};
  }
  recorder.on_replay(what.verdict.replayed(what.step, comparison.result, comparison.text));
  return std::nullopt;
}

}  // namespace nanhunt::hooks
