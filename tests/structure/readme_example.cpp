// SPDX-License-Identifier: Apache-2.0
// The examples of README.md and include/GUIDE.md. test_maps.py holds both to the text below.
#include "tests/structure/readme_example.h"

// guide: begin
#include "nanhunt/dtype.h"
#include "nanhunt/recorder.h"

// A weight kept in fp16 that quadruples every step: it overflows when it should become 65536.
nanhunt::Status watch_growth(const std::string& run_dir, std::uint32_t steps) {
  nanhunt::RecorderOptions options;
  options.run_dir = run_dir;
  nanhunt::RunInfo info;
  info.framework = "my-engine 1.0";
  info.device = "cpu";
  info.level = "ops";
  auto opened = nanhunt::Recorder::open(options, info);
  if (!opened) return opened.status();
  nanhunt::Recorder& recorder = **opened;

  const std::int64_t sizes[] = {1}, strides[] = {1};
  std::uint16_t weight = nanhunt::f32_to_f16(1.0f);
  nanhunt::ValueView value;  // (storage, version) names the contents of a tensor
  value.tensor = {&weight, nanhunt::DType::kF16, sizes, strides};
  value.storage = 1;
  nanhunt::MarkEvent parameter;  // harm is judged where it reaches a parameter, a loss, a gradient, ...
  parameter.kind = nanhunt::TensorRole::kParameter;
  parameter.path = "weight";
  parameter.value = value;
  recorder.on_mark(parameter);

  for (std::uint32_t step = 0; step < steps; ++step) {
    nanhunt::OpInput before{"self", value, nanhunt::ArgRole::kOverwritten};
    before.value.tensor.data = nullptr;  // written in place: by the time of the event, the old contents are gone

    weight = nanhunt::f32_to_f16(nanhunt::f16_to_f32(weight) * 4.0f);
    value.version = step + 1;

    const nanhunt::OpOutput after{"out", value};
    const nanhunt::OpScalar factor{"other", 4.0};
    nanhunt::OpEvent op;
    op.step = step;
    op.phase = nanhunt::Phase::kOptimizer;
    op.module = "weight";
    op.op = "mul_";
    op.inputs = {&before, 1};
    op.outputs = {&after, 1};
    op.scalars = {&factor, 1};
    recorder.on_op(op);

    parameter.step = step;
    parameter.value = value;
    recorder.on_mark(parameter);
    nanhunt::StepEvent end;
    end.step = step;
    recorder.on_step_end(end);
  }
  return recorder.close();  // then: nanhunt check RUN
}
// guide: end

// readme: begin
// After each operation of your loop: its name, what it read, what it made.
void record_log(nanhunt::Recorder& recorder, std::uint32_t step, nanhunt::ValueView read, nanhunt::ValueView made) {
  const nanhunt::OpInput input{"self", read};
  const nanhunt::OpOutput output{"out", made};
  nanhunt::OpEvent op;
  op.step = step;
  op.op = "log";
  op.inputs = {&input, 1};
  op.outputs = {&output, 1};
  recorder.on_op(op);
}
// readme: end
