// SPDX-License-Identifier: Apache-2.0
// nanhunt autopsy: what the logs of a run say that was not watched, and the command that proves it.
#include <filesystem>
#include <string>
#include <utility>

#include "src/autopsy/answer.h"
#include "src/autopsy/collect.h"
#include "src/autopsy/judge.h"
#include "src/checkpoint/folders.h"
#include "src/checkpoint/judge.h"
#include "src/checkpoint/read_file.h"
#include "src/checkpoint/statistics.h"
#include "src/core/text.h"
#include "tools/nanhunt/checkpoints/checkpoint_place.h"
#include "tools/nanhunt/terminal.h"
#include "tools/nanhunt/verb.h"

namespace nanhunt::cli {
namespace {

class AutopsyVerb final : public Verb {
 public:
  void declare(Options options) override {
    options.add("PLACE", place_, "Folder of a run that was not watched, one of its logs, or '-' for text on stdin")
        .required();
    options.add("--traceback", traceback_, "A file with the traceback or the output of the run, read as text")
        .value_name("FILE");
    options.add_flag("--json", json_, "The answer as JSON (schema nanhunt.autopsy)");
  }

  int run() override {
    if (place_ != "-" && !std::filesystem::is_directory(place_) &&
        checkpoint::file_kind(place_) != checkpoint::FileKind::kNone) {
      say(place_ + " is a checkpoint. See what is in it: nanhunt check " + shell_word(place_));
      return kUnreadable;
    }
    autopsy::Evidence evidence;
    if (place_ == "-") {
      const Status added = autopsy::add_stdin(evidence);
      if (!added) return fail(added);
    } else {
      auto collected = autopsy::collect_evidence(place_);
      if (!collected) return cannot_read(collected.status());
      evidence = std::move(*collected);
    }
    if (!traceback_.empty()) {
      const Status added = autopsy::add_text_file(traceback_, evidence);
      if (!added) return cannot_read(added);
    }
    if (evidence.sources.empty() && std::filesystem::exists(place_ + "/run.json")) {
      say(place_ + " is a run that was watched. See what was found: nanhunt report " + shell_word(place_));
      return kUnreadable;
    }
    if (evidence.sources.empty()) {
      say(place_ +
          " holds no log that is read: trainer_state.json, TensorBoard, W&B or MLflow files, .csv, .tsv, .jsonl, .log, "
          ".out, .txt. "
          "Text under another name: nanhunt autopsy - < FILE");
      return kUnreadable;
    }
    autopsy::join_series(evidence);
    const autopsy::Judgement judgement = autopsy::judge(evidence);
    const int status = exit_status(judgement.outcome);
    const auto resume = autopsy::resume_from(evidence, judgement, weights_of);
    if (json_) return print_and_return(autopsy::answer_json(place_, evidence, judgement, resume, status), status);
    return print_and_return(autopsy::answer_text(evidence, judgement, resume, stdout_has_colour(), stdout_width()),
                            status);
  }

 private:
  static autopsy::Weights weights_of(const std::string& path) {
    const auto read = checkpoint::read_checkpoint(path);
    if (!read) return autopsy::Weights::kUnreadable;
    const auto judged = checkpoint::judge(*read, checkpoint::compute_statistics(*read, checkpoint_progress(path)));
    if (judged.count(checkpoint::Severity::kFault) > 0) return autopsy::Weights::kBad;
    if (judged.damaged) return autopsy::Weights::kUnreadable;
    if (judged.partly_judged || !judged.conclusive()) return autopsy::Weights::kNotJudged;
    return autopsy::Weights::kSound;
  }

  static int cannot_read(const Status& status) {
    say(status.message());
    return kUnreadable;
  }

  static int exit_status(autopsy::Outcome outcome) {
    switch (outcome) {
      case autopsy::Outcome::kBadNumbers:
        return kFoundFault;
      case autopsy::Outcome::kDamaged:
        return kDamagedInput;
      case autopsy::Outcome::kNothingToJudge:
        return kInconclusive;
      case autopsy::Outcome::kNothingBad:
        break;
    }
    return kDone;
  }

  std::string place_, traceback_;
  bool json_ = false;
};

const RegisterVerb<AutopsyVerb> kAutopsy{
    {.order = 45,
     .name = "autopsy",
     .summary = "What the logs of a run say that was not watched, and the command that proves it",
     .exit_statuses = "  0  no bad number was logged\n"
                      "  1  bad numbers were logged, or the program ended because of one\n"
                      "  2  wrong usage\n"
                      "  3  nothing there can be read\n"
                      "  4  damaged, and nothing bad in the rest\n"
                      "  5  the logs hold nothing that can be judged\n"
                      "  6  the answer could not be written"}};

}  // namespace
}  // namespace nanhunt::cli
