/* SPDX-License-Identifier: Apache-2.0 */
/* consumer_c RUN: one step of a loop whose loss is log(0); prints the report. */
#include <nanhunt/c_api.h>
#include <stdio.h>

int main(int argc, char** argv) {
  const float x[2] = {1.0f, 0.0f}, y[2] = {0.0f, -1.0f / 0.0f};
  const int64_t sizes[1] = {2};
  nanhunt_input in = {"self", {x, NANHUNT_F32, 1, sizes, NULL, 1, 0, 0}, NANHUNT_READ};
  nanhunt_output out = {"out", {y, NANHUNT_F32, 1, sizes, NULL, 2, 0, 0}};
  nanhunt_op op = {sizeof op, 0, 0, NANHUNT_PHASE_LOSS, "<loss>", "log", "", NANHUNT_F32, &in, 1, &out, 1, NULL, 0};
  nanhunt_mark loss = {sizeof loss, 0, 0, NANHUNT_LOSS, "loss", {y, NANHUNT_F32, 1, sizes, NULL, 2, 0, 0}};
  nanhunt_recorder_options options = {.struct_size = sizeof options, .run_dir = argc > 1 ? argv[1] : "run",
                                      .framework = "a C loop", .device = "cpu", .world_size = 1};
  nanhunt_recorder* recorder = NULL;
  char* report = NULL;
  int ok = nanhunt_recorder_open(&options, &recorder) == NANHUNT_OK &&
           nanhunt_record_op(recorder, &op) == NANHUNT_OK && nanhunt_record_mark(recorder, &loss) == NANHUNT_OK;
  ok = nanhunt_recorder_close(recorder) == NANHUNT_OK && ok;
  ok = ok && nanhunt_report(options.run_dir, NANHUNT_JSON, &report, NULL) == NANHUNT_OK;
  puts(ok ? report : nanhunt_last_error());
  nanhunt_free(report);
  return !ok;
}
