// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>

#include "src/autopsy/answer.h"
#include "src/autopsy/collect.h"
#include "src/autopsy/judge.h"

// The first byte picks the reader, the rest is the log.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static constexpr const char* kNames[] = {
      "trainer_state.json", "events.out.tfevents.1", "run.wandb",     "wandb-metadata.json", "wandb-summary.json",
      "config.json",        "config.yaml",           "metrics.jsonl", "metrics.csv",         "stdout.log"};
  if (size == 0) return 0;
  nanhunt::autopsy::Evidence evidence;
  nanhunt::autopsy::add_file({reinterpret_cast<const char*>(data) + 1, size - 1}, kNames[data[0] % std::size(kNames)],
                             evidence);
  nanhunt::autopsy::join_series(evidence);
  const auto judgement = nanhunt::autopsy::judge(evidence);
  const bool text = !nanhunt::autopsy::answer_text(evidence, judgement, {}, false, 80).empty();
  return text && !nanhunt::autopsy::answer_json("run", evidence, judgement, {}, 0).empty() ? 0 : -1;
}
