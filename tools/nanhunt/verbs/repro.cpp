// SPDX-License-Identifier: Apache-2.0
// nanhunt repro: a stand-alone program that shows the bad result of a finding's op from the numbers that it read.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <unordered_map>

#include "reports/json/json_values.h"
#include "src/core/text.h"
#include "src/trace/run/safetensors.h"
#include "tools/nanhunt/analysis.h"
#include "tools/nanhunt/attempts.h"
#include "tools/nanhunt/repro/program.h"
#include "tools/nanhunt/repro/torch_program.h"
#include "tools/nanhunt/terminal.h"
#include "tools/nanhunt/verb.h"

namespace nanhunt::cli {
namespace {

constexpr std::uint64_t kMaxCaptureBytes = 1u << 30;
constexpr char kProgramFile[] = "repro.py", kInputsFile[] = "inputs.safetensors";

// What the trace says of one op.
struct OpFacts {
  bool found = false;
  std::string op;
  DType compute_dtype = DType::kF32;
  std::vector<std::pair<std::string, double>> scalars;
  std::string capture;  // file name; empty: none
};

// "op-SEQ.safetensors" and nothing else: names in traces are hostile.
bool is_capture_of(const std::string& file, std::uint64_t seq) { return file == fmt::format("op-{}.safetensors", seq); }

OpFacts read_facts(const AttemptTrace& attempt, std::uint64_t seq) {
  OpFacts facts;
  std::unordered_map<StringId, std::string> strings;
  const auto take = [&](const RecordBatch& batch) {
    for (const StringRecord& row : batch.strings) strings[row.id] = row.text;
    for (const OpRecord& row : batch.ops) {
      if (row.seq != seq) continue;
      facts.found = true;
      facts.op = strings[row.op];
      facts.compute_dtype = row.compute_dtype;
      for (std::uint32_t i = 0; i < row.scalar_count; ++i) {
        const ScalarArg& scalar = batch.scalars[row.first_scalar + i];
        if (strings[scalar.name].starts_with("nanhunt.")) continue;  // what the recorder counted: no input
        facts.scalars.emplace_back(strings[scalar.name], scalar.value);
      }
    }
    for (const CaptureRecord& row : batch.captures) {
      if (row.seq == seq && is_capture_of(strings[row.file], seq)) facts.capture = strings[row.file];
    }
  };
  TraceHealth health;
  // Damage elsewhere does not matter; what is needed is found or is not.
  (void)read_attempt(attempt, take, health).is_ok();
  return facts;
}

std::string list_of(const std::vector<Finding>& findings) {
  std::string ids;
  for (const Finding& f : findings) ids += (ids.empty() ? "" : ", ") + f.id;
  return ids;
}

class ReproVerb final : public Verb {
 public:
  void declare(Options options) override {
    options.add_run("RUN", run_, "Run folder").required();
    options.add("--finding", finding_, "Which finding (default: the first of the report that has an operation)")
        .value_name("ID");
    options.add("--out", out_, "New folder for repro.py and inputs.safetensors (default: nanhunt-repro-ID)")
        .value_name("DIR");
    options.add_flag("--json", json_, "Print what was written as JSON");
  }

  int run() override {
    auto analysis = load_analysis(run_);
    if (!analysis) return fail(analysis.status());
    auto finding = choose(*analysis);
    if (!finding) return fail(finding.status());
    auto text = write(**finding);
    if (!text) return fail(text.status());
    return print_and_return(*text);
  }

 private:
  Result<const Finding*> choose(const Analysis& analysis) const {
    const auto has_op = [](const Finding& f) { return f.place.op && f.place.seq != kNoSeq && f.output; };
    if (finding_.empty()) {
      const auto first = std::find_if(analysis.findings.begin(), analysis.findings.end(), has_op);
      if (first != analysis.findings.end()) return &*first;
      return Status(StatusCode::kUsage,
                    "repro: no finding of this run has an operation whose result could be shown. `nanhunt report " +
                        shell_word(run_) + "` says what was found.");
    }
    for (const Finding& f : analysis.findings) {
      if (f.id != finding_) continue;
      if (has_op(f)) return &f;
      return Status(StatusCode::kUsage,
                    "repro: " + f.id + " (" + std::string(finding_class_name(f.cls)) +
                        ") is not about the result of one operation, so there is nothing to compute.");
    }
    return Status(StatusCode::kUsage, "repro: there is no finding '" + finding_ + "'. This run has " +
                                          (analysis.findings.empty() ? "none" : list_of(analysis.findings)) + ".");
  }

  Result<std::string> write(const Finding& finding) const {
    auto attempts = choose_attempts(run_, finding.rank, finding.attempt);
    if (!attempts) return attempts.status();
    const OpFacts facts = read_facts(attempts->front(), finding.place.seq);
    if (!facts.capture.empty()) {  // PyTorch runs keep the call itself
      auto captured = read_capture(attempts->front().dir, facts.capture);
      if (!captured) return captured.status();
      if (has_torch_call(*captured)) return write_torch(finding, *captured);
    }
    const RunInfo& info = attempts->front().info;
    if (facts.capture.empty() &&
        facts.op.find("::") != std::string::npos) {  // of PyTorch, which is shown by its capture
      return Status(StatusCode::kNotFound,
                    "repro: what " + printable(facts.op) + " of " + finding.id + " read was not kept: " +
                        (info.level == "ops"
                             ? "level ops keeps no inputs. Record the run at the default level (`nanhunt run` without "
                               "--level ops), which keeps those of a failing operation."
                             : "inputs are kept of operations that were heard in a failing step (without "
                               "--no-captures)."));
    }
    const auto op = repro_op(facts.op);
    if (!op) {
      return Status(StatusCode::kUsage, "repro: " + finding.id + " is about " +
                                            printable(finding.place.op.value_or("")) +
                                            ", which a stand-alone program cannot show yet. `nanhunt report " + shell_word(run_) +
                                            "` has its numbers.");
    }
    if (facts.capture.empty()) {
      return Status(StatusCode::kNotFound, "repro: what the operation of " + finding.id +
                                               " read was not kept: captures are made where badness "
                                               "began (without --no-captures).");
    }
    auto captured = read_capture(attempts->front().dir, facts.capture);
    if (!captured) return captured.status();
    ReproCase what{.op = *op,
                   .place = place_of(finding),
                   .inputs = {},
                   .scalars = facts.scalars,
                   .output_slot = finding.output->slot,
                   .output_dtype = finding.output->dtype,
                   .compute_dtype = facts.compute_dtype,
                   .output_shape = finding.output->shape,
                   .element = std::nullopt,
                   .recorded = std::nullopt};
    if (finding.element && finding.element->flat_index >= 0) {
      what.element = finding.element->flat_index;
      what.recorded = finding.element->value;
    }
    trace::Safetensors inputs;
    if (Status taken = take_inputs(finding, *captured, what, inputs); !taken) return taken;
    return write_files(finding, std::string(*op), repro_program(what), inputs);
  }

  static Result<trace::Safetensors> read_capture(const std::string& attempt_dir, const std::string& file) {
    const std::filesystem::path folder = std::filesystem::path(attempt_dir) / "captures";
    std::error_code error;
    if (!std::filesystem::is_directory(std::filesystem::symlink_status(folder, error)))
      return Status(StatusCode::kNotFound,
                    "repro: there is no folder '" + folder.string() + "': the captures were removed.");
    return trace::read_safetensors((folder / file).string(), kMaxCaptureBytes);
  }

  // Arrays get names of our own; slots are data for the program.
  static Status take_inputs(const Finding& finding, const trace::Safetensors& captured, ReproCase& what,
                            trace::Safetensors& out) {
    std::vector<std::string> wanted;
    for (const TensorSummary& input : finding.inputs) {
      std::string name = printable(input.slot);
      while (std::find(wanted.begin(), wanted.end(), name) != wanted.end()) name += "'";
      wanted.push_back(name);
      const auto array =
          std::find_if(captured.arrays.begin(), captured.arrays.end(), [&](const auto& a) { return a.name == name; });
      if (array == captured.arrays.end() || array->dtype != input.dtype || array->sizes != input.shape) {
        return {StatusCode::kUnreadable, "repro: the capture does not hold '" + name + "' as the operation read it."};
      }
      if (!repro_knows(array->dtype))
        return {StatusCode::kUsage,
                "repro: '" + name + "' is " + std::string(dtype_name(array->dtype)) + ", which NumPy does not have."};
      trace::NamedArray renamed = *array;
      renamed.name = "input" + std::to_string(out.arrays.size());
      what.inputs.push_back({input.slot, renamed.name, renamed.dtype});
      out.arrays.push_back(std::move(renamed));
    }
    if (!is_floating(what.output_dtype) || !repro_knows(what.output_dtype))
      return {StatusCode::kUsage,
              "repro: a result in " + std::string(dtype_name(what.output_dtype)) + " cannot be shown with NumPy."};
    return {};
  }

  Result<std::string> write_torch(const Finding& finding, const trace::Safetensors& captured) const {
    std::optional<std::int64_t> element;
    std::optional<double> recorded;
    if (finding.element && finding.element->flat_index >= 0) {
      element = finding.element->flat_index;
      recorded = finding.element->value;
    }
    auto repro = torch_repro(captured, place_of(finding), element, recorded);
    if (!repro) return repro.status();
    return write_files(finding, repro->op, repro->program, repro->inputs);
  }

  static std::string place_of(const Finding& finding) {
    return fmt::format("{}step {}, {}", finding.place.module ? "in " + *finding.place.module + ", " : "",
                       finding.place.step, phase_name(finding.place.phase));
  }

  Result<std::string> write_files(const Finding& finding, const std::string& op, const std::string& text,
                                  const trace::Safetensors& inputs) const {
    const std::filesystem::path folder = out_.empty() ? "nanhunt-repro-" + finding.id : out_;
    std::error_code error;
    if (!std::filesystem::create_directory(folder, error)) {
      return Status(StatusCode::kWriteFailed,
                    "repro: '" + folder.string() + "' " +
                        (error ? "could not be made: " + error.message() : "is there already") +
                        ". Name a new folder with --out.");
    }
    if (Status written = trace::write_safetensors((folder / kInputsFile).string(), inputs); !written) return written;
    if (Status written = replace_file((folder / kProgramFile).string(), text); !written) return written;
    const std::string program = (folder / kProgramFile).string();
    if (!json_) {
      return fmt::format("{} shows how {} of {} goes bad.\nNext: python3 {}\n", printable(program), op, finding.id,
                         printable(program));
    }
    return reports::dump_json({{"finding", finding.id},
                               {"op", op},
                               {"program", reports::json_text(program)},
                               {"inputs", reports::json_text((folder / kInputsFile).string())}}) +
           "\n";
  }

  std::string run_, finding_, out_;
  bool json_ = false;
};

const RegisterVerb<ReproVerb> kRepro{{.order = 32,
                                      .name = "repro",
                                      .summary = "A stand-alone program that shows the bad result of one operation",
                                      .exit_statuses =
                                          "  0  written\n  2  wrong usage, or an operation that cannot be shown\n"
                                          "  3  the run or the capture cannot be read\n"
                                          "  6  the program could not be written"}};

}  // namespace
}  // namespace nanhunt::cli
