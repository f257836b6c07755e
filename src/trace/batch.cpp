// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "src/trace/record_kind.h"

namespace nanhunt {

void RecordBatch::clear() {
  for (const trace::RecordKind& kind : trace::record_kinds()) kind.clear(*this);
}

bool RecordBatch::empty() const {
  return std::ranges::all_of(trace::record_kinds(), [this](const auto& kind) { return kind.count(*this) == 0; });
}

}  // namespace nanhunt
