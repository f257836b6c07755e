// SPDX-License-Identifier: Apache-2.0
#include "src/autopsy/readers/reader.h"

#include <algorithm>
#include <string>

#include "src/autopsy/log_bytes.h"

namespace nanhunt::autopsy {
namespace {

bool ends_with_any(std::string_view path, std::initializer_list<std::string_view> ends) {
  for (const std::string_view end : ends) {
    if (path.ends_with(end)) return true;
  }
  return false;
}

bool is_called(std::string_view path, std::initializer_list<std::string_view> names) {
  const std::string_view name = file_name_of(path);
  return std::find(names.begin(), names.end(), name) != names.end();
}

// MLflow keeps a file for each metric, called as the metric, "train/loss" in a folder "train".
bool is_mlflow_metric(std::string_view path) {
  const bool below = path.starts_with("metrics/") || path.find("/metrics/") != std::string_view::npos;
  return below && file_name_of(path).find('.') == std::string_view::npos;
}

constexpr Reader kReaders[] = {
    {"trainer_state.json", [](std::string_view path) { return is_called(path, {"trainer_state.json"}); }, false,
     read_trainer_state},
    {"TensorBoard", [](std::string_view path) { return file_name_of(path).find("tfevents") != std::string_view::npos; },
     false, read_tensorboard},
    {"W&B", [](std::string_view path) { return path.ends_with(".wandb"); }, false, read_wandb},
    {"W&B metadata", [](std::string_view path) { return is_called(path, {"wandb-metadata.json"}); }, false,
     read_wandb_metadata},
    {"W&B summary", [](std::string_view path) { return is_called(path, {"wandb-summary.json"}); }, false,
     read_json_summary},
    {"settings",
     [](std::string_view path) {
       return is_called(path, {"training_args.json", "config.json", "args.json", "hparams.json"});
     },
     false, read_json_settings},
    {"settings",
     [](std::string_view path) {
       return ends_with_any(path, {".yaml", ".yml"});
     },
     false, read_yaml_settings},
    {"MLflow", is_mlflow_metric, true, read_mlflow_metric},
    {"CSV",
     [](std::string_view path) {
       return ends_with_any(path, {".csv", ".tsv"});
     },
     true, read_csv},
    {"JSON lines",
     [](std::string_view path) {
       return ends_with_any(path, {".jsonl", ".ndjson", ".log.json"}) ||
              is_called(path, {"metrics.json", "scalars.json", "result.json", "history.json", "log.json"});
     },
     true, read_json_lines},
    {"text",
     [](std::string_view path) {
       return ends_with_any(path, {".log", ".out", ".err", ".txt"});
     },
     true, read_text_log},
};

}  // namespace

std::string_view file_name_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

const Reader* find_reader(std::string_view path) {
  const std::string lower = lower_case(path);
  for (const Reader& reader : kReaders) {
    if (reader.claims(lower)) return &reader;
  }
  return nullptr;
}

}  // namespace nanhunt::autopsy
