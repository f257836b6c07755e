// SPDX-License-Identifier: Apache-2.0
// Text table: a head with names and below it rows of numbers, as notebooks, fastai and rich print them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/autopsy/readers/log_row.h"

namespace nanhunt::autopsy {

class TextTable {
 public:
  // True where the line is a row below a head that names something judged; its numbers are in `rows`.
  bool take(std::string_view line, LogRows& rows);

 private:
  std::vector<std::string> head_;
};

}  // namespace nanhunt::autopsy
