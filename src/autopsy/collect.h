// SPDX-License-Identifier: Apache-2.0
// Collecting evidence: a run folder walked within bounds, each file given to the reader of its format.
#pragma once

#include <string>
#include <string_view>

#include "nanhunt/status.h"
#include "src/autopsy/evidence.h"

namespace nanhunt::autopsy {

// A folder or a file. Fails where it is not there or cannot be opened.
Result<Evidence> collect_evidence(const std::string& place);
// Adds one file that is read as text, whatever it is called.
Status add_text_file(const std::string& path, Evidence& into);
Status add_stdin(Evidence& into);
void add_text(std::string text, std::string_view name, Evidence& into);
// Adds what one reader makes of bytes under the name of a file. False where no format has it.
bool add_file(std::string bytes, std::string_view name, Evidence& into);
// Series of one log that several files or processes wrote are joined; to call once all files are added.
void join_series(Evidence& evidence);

}  // namespace nanhunt::autopsy
