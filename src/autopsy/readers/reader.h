// SPDX-License-Identifier: Apache-2.0
// A reader of one format. Adding a format is adding a file with one function, its declaration and its row in
// reader.cpp.
#pragma once

#include <string_view>

#include "src/autopsy/evidence.h"

namespace nanhunt::autopsy {

struct Reader {
  std::string_view format;
  bool (*claims)(std::string_view path);  // lower case; below the run folder, or the file's name alone
  bool by_lines;                          // text: read as UTF-8, and of a large one both ends
  // What is wrong with the file is said by set_damage(); what was read before that stays.
  void (*read)(std::string_view file, std::string_view path, EvidenceBuilder& out);
};

std::string_view file_name_of(std::string_view path);
// The first that claims the file, or none.
const Reader* find_reader(std::string_view path);
// What is on stdin, or was named as a traceback.
void read_text_log(std::string_view file, std::string_view path, EvidenceBuilder& out);

void read_tensorboard(std::string_view file, std::string_view path, EvidenceBuilder& out);
void read_wandb(std::string_view file, std::string_view path, EvidenceBuilder& out);
void read_wandb_metadata(std::string_view file, std::string_view path, EvidenceBuilder& out);
void read_trainer_state(std::string_view file, std::string_view path, EvidenceBuilder& out);
void read_json_lines(std::string_view file, std::string_view path, EvidenceBuilder& out);
void read_json_summary(std::string_view file, std::string_view path, EvidenceBuilder& out);
void read_mlflow_metric(std::string_view file, std::string_view path, EvidenceBuilder& out);
void read_csv(std::string_view file, std::string_view path, EvidenceBuilder& out);
void read_json_settings(std::string_view file, std::string_view path, EvidenceBuilder& out);
void read_yaml_settings(std::string_view file, std::string_view path, EvidenceBuilder& out);

}  // namespace nanhunt::autopsy
