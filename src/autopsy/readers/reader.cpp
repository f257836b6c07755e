// SPDX-License-Identifier: Apache-2.0
#include "src/autopsy/readers/reader.h"

#include <string>

namespace nanhunt::autopsy {
namespace {

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> ends) {
  for (const std::string_view end : ends) {
    if (name.ends_with(end)) return true;
  }
  return false;
}

constexpr Reader kReaders[] = {
    {"trainer_state.json", [](std::string_view name) { return name == "trainer_state.json"; }, false,
     read_trainer_state},
    {"TensorBoard", [](std::string_view name) { return name.find("tfevents") != std::string_view::npos; }, false,
     read_tensorboard},
    {"W&B", [](std::string_view name) { return name.ends_with(".wandb"); }, false, read_wandb},
    {"W&B metadata", [](std::string_view name) { return name == "wandb-metadata.json"; }, false, read_wandb_metadata},
    {"W&B summary", [](std::string_view name) { return name == "wandb-summary.json"; }, false, read_json_summary},
    {"settings",
     [](std::string_view name) {
       return name == "training_args.json" || name == "config.json" || name == "args.json" || name == "hparams.json";
     },
     false, read_json_settings},
    {"settings",
     [](std::string_view name) {
       return ends_with_any(name, {".yaml", ".yml"});
     },
     false, read_yaml_settings},
    {"CSV", [](std::string_view name) { return name.ends_with(".csv"); }, true, read_csv},
    {"JSON lines",
     [](std::string_view name) {
       return ends_with_any(name, {".jsonl", ".ndjson"});
     },
     true, read_json_lines},
    {"text",
     [](std::string_view name) {
       return ends_with_any(name, {".log", ".out", ".err", ".txt"});
     },
     true, read_text_log},
};

}  // namespace

const Reader* find_reader(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  std::string name(slash == std::string_view::npos ? path : path.substr(slash + 1));
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  for (const Reader& reader : kReaders) {
    if (reader.claims(name)) return &reader;
  }
  return nullptr;
}

}  // namespace nanhunt::autopsy
