// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/neutrality.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "hooks/engine/engine_hooks.h"
#include "nanhunt/recorder.h"
#include "reports/json/json_values.h"
#include "reports/views/numbers.h"
#include "src/core/text.h"
#include "src/trace/run/process_run_info.h"

namespace nanhunt::cli {
namespace {

class TempFolder {
 public:
  TempFolder() {
    path_ = (std::filesystem::temp_directory_path() / "nanhunt-neutral-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~TempFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// What a run left behind.
struct Left {
  struct Part {
    std::string name;
    std::vector<std::byte> bytes;
  };
  std::vector<Part> parts;
  std::vector<std::uint64_t> losses;  // bits, by step
};

void add_number(Left& left, std::string name, std::uint64_t bits) {
  std::vector<std::byte> bytes(sizeof bits);
  std::memcpy(bytes.data(), &bits, sizeof bits);
  left.parts.push_back({std::move(name), std::move(bytes)});
}

std::vector<std::byte> bytes_of(const engine::Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.storage()->bytes());
  tensor.storage()->read(bytes.data());
  return bytes;
}

Left train(engine::Trainer& trainer, std::uint32_t steps) {
  Left left;
  for (std::uint32_t i = 0; i < steps; ++i) {
    const engine::StepResult result = trainer.step();
    left.losses.push_back(std::bit_cast<std::uint64_t>(result.loss));
    if (!result.ended_by.empty()) break;
  }
  const auto add = [&](const std::vector<engine::NamedTensor>& tensors) {
    for (const auto& [path, tensor] : tensors) {
      left.parts.push_back({path, bytes_of(tensor)});
    }
  };
  add(trainer.model().named_parameters());
  for (const auto& [path, tensor] : trainer.model().named_parameters()) {
    Left::Part part{.name = "gradient of " + path, .bytes = {}};
    if (const engine::Tensor& grad = tensor.grad(); grad.defined()) {
      part.bytes = bytes_of(grad);
    }
    left.parts.push_back(std::move(part));
  }
  const std::vector<engine::NamedTensor> used = trainer.optimizer().with_gradients();
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i].tensor.impl() == trainer.optimizer().parameters()[i].tensor.impl()) continue;  // it has no master
    left.parts.push_back({.name = "gradient of the master of " + used[i].path, .bytes = bytes_of(used[i].tensor.grad())});
  }
  add(trainer.model().named_buffers());
  add(trainer.optimizer().named_state());
  for (const engine::RandomStream* stream : trainer.model().random_streams()) {
    add_number(left, "position of a random stream", stream->position());
  }
  if (trainer.scaler() != nullptr) {
    for (const auto& [name, number] : trainer.scaler()->saved()) {
      add_number(left, "scaler: " + name, std::bit_cast<std::uint64_t>(number));
    }
  }
  return left;
}

void compare(const Left& plain, const Left& other, NeutralityRow& row) {
  for (std::size_t i = 0; i < plain.losses.size() && !row.first_differing_step; ++i) {
    if (plain.losses[i] != other.losses[i]) row.first_differing_step = static_cast<std::uint32_t>(i);
  }
  for (std::size_t i = 0; i < plain.parts.size(); ++i) {
    const Left::Part &a = plain.parts[i], &b = other.parts[i];
    const std::size_t both = std::min(a.bytes.size(), b.bytes.size());
    std::uint64_t differing = std::max(a.bytes.size(), b.bytes.size()) - both;  // there in one run alone
    for (std::size_t k = 0; k < both; ++k) differing += a.bytes[k] != b.bytes[k] ? 1 : 0;
    if (differing != 0 && row.first_difference.empty()) row.first_difference = a.name;
    row.differing_bytes += differing;
  }
}

bool on_device(engine::Trainer& trainer) {
  const auto parameters = trainer.model().named_parameters();
  return !parameters.empty() && !parameters.front().tensor.device().is_cpu();
}

}  // namespace

bool Neutrality::neutral() const {
  return std::all_of(rows.begin(), rows.end(), [](const NeutralityRow& row) { return row.same(); });
}

Result<Neutrality> prove_neutral(const std::function<std::unique_ptr<engine::Trainer>()>& make, std::uint32_t steps) {
  const TempFolder folder;
  if (folder.path().empty()) {
    return Status(StatusCode::kWriteFailed,
                  "there is no room for a temporary folder: set TMPDIR to one that can be written to.");
  }
  Neutrality out;
  out.steps = steps;
  const Left plain = train(*make(), steps);
  out.tensors = plain.parts.size();
  for (const Left::Part& part : plain.parts) out.bytes += part.bytes.size();
  NeutralityRow again{.level = "off", .way = {}, .first_difference = {}, .first_differing_step = {}};
  compare(plain, train(*make(), steps), again);
  out.rows.push_back(again);
  std::vector<hooks::DeviceStats> ways = {hooks::DeviceStats::kSync};
  const bool waits_or_not = on_device(*make());
  if (waits_or_not) ways.insert(ways.begin(), hooks::DeviceStats::kDeferred);
  for (const hooks::DeviceStats stats : ways) {
    NeutralityRow row{.level = "ops",
                      .way = waits_or_not ? std::string(device_stats_name(stats)) : "",
                      .first_difference = {},
                      .first_differing_step = {}};
    RecorderOptions options;
    options.run_dir = folder.path() + "/" + row.level + row.way;
    RunInfo info = make_run_info();
    info.level = row.level;
    auto recorder = Recorder::open(options, info);
    if (!recorder) return recorder.status();
    const std::unique_ptr<engine::Trainer> trainer = make();
    {
      hooks::TrainerWatch watch(*trainer, **recorder, {.device_stats = stats});
      compare(plain, train(*trainer, steps), row);
    }
    if (Status closed = (*recorder)->close(); !closed) return closed;
    row.ops = (*recorder)->counters().ops;
    out.rows.push_back(std::move(row));
  }
  return out;
}

std::string neutrality_text(const std::string& name, const Neutrality& neutrality) {
  std::string text = fmt::format(
      "{}: {} steps, compared bit for bit with an unwatched run: every loss, and {} values of parameters,\n"
      "gradients, buffers, optimizer state, random streams and scaler ({} bytes) at the end.\n\n"
      "{:<15} {:>13} {:>16}\n",
      name, neutrality.steps, neutrality.tensors, reports::format_count(neutrality.bytes), "level",
      "ops recorded", "differing bytes");
  for (const NeutralityRow& row : neutrality.rows) {
    text += fmt::format("{:<15} {:>13} {:>16}", row.level + (row.way.empty() ? "" : ", " + row.way),
                        reports::format_count(row.ops),
                        reports::format_count(row.differing_bytes));
    if (!row.first_difference.empty()) text += "  first in " + printable(row.first_difference);
    if (row.first_differing_step) text += fmt::format("  loss differs from step {} on", *row.first_differing_step);
    text += "\n";
  }
  const bool repeats = neutrality.rows.front().same();
  return text + (neutrality.neutral() ? "\nNeutral: watching changed no bit.\n"
                 : repeats            ? "\nNot neutral: watching changed the run. Please report this as a bug.\n"
                                      : "\nNothing is shown: the run itself does not repeat, watched or not.\n");
}

std::string neutrality_json(const std::string& name, const Neutrality& neutrality) {
  using nlohmann::json;
  json rows = json::array();
  for (const NeutralityRow& row : neutrality.rows) {
    rows.push_back({{"level", row.level},
                    {"way", row.way.empty() ? json() : json(row.way)},
                    {"ops", reports::json_count(row.ops)},
                    {"differing_bytes", reports::json_count(row.differing_bytes)},
                    {"first_difference", row.first_difference.empty() ? json() : json(row.first_difference)},
                    {"first_differing_step", row.first_differing_step ? json(*row.first_differing_step) : json()}});
  }
  return reports::dump_json({{"scenario", name},
                             {"steps", neutrality.steps},
                             {"values", reports::json_count(neutrality.tensors)},
                             {"bytes", reports::json_count(neutrality.bytes)},
                             {"levels", std::move(rows)},
                             {"neutral", neutrality.neutral()}}) +
         "\n";
}

}  // namespace nanhunt::cli
