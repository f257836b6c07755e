// SPDX-License-Identifier: Apache-2.0
// MLflow: a file for each metric, whose lines are a time in milliseconds, a value and a step.
#include <string>

#include "src/autopsy/loose_json.h"
#include "src/autopsy/readers/log_row.h"
#include "src/autopsy/readers/reader.h"

namespace nanhunt::autopsy {

void read_mlflow_metric(std::string_view file, std::string_view path, EvidenceBuilder& out) {
  constexpr std::string_view kFolder = "/metrics/";
  const std::size_t folder = path.find(kFolder);
  path.remove_prefix(folder != std::string_view::npos ? folder + kFolder.size() : kFolder.size() - 1);
  for (std::string_view line; next_line(file, line);) {
    const std::size_t first = line.find(' '), last = line.rfind(' ');
    if (first == std::string_view::npos || first == last) continue;
    const auto time = parse_number(line.substr(0, first)), step = parse_number(line.substr(last + 1));
    const auto value = parse_number(line.substr(first + 1, last - first - 1));
    if (time && value && step) out.add(path, *step, Unit::kStep, *value);
  }
}

}  // namespace nanhunt::autopsy
