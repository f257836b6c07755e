// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/rules/returned.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

const EvidenceRecord* nan_of(std::uint64_t seq, const EvidenceMap& evidence) {
  const auto rows = evidence.find(seq);
  if (rows == evidence.end()) return nullptr;
  const auto row = std::find_if(rows->second.begin(), rows->second.end(), [](const EvidenceRecord& record) {
    return std::isnan(record.number) && !record.operands.empty();
  });
  return row == rows->second.end() ? nullptr : &*row;
}

// What met in the element: "multiplied the gradient 0 by the stored Inf", or the operands as they are.
std::string met(const Case& c, const EvidenceRecord& row) {
  const Operand *gradient = nullptr, *stored = nullptr;
  std::vector<std::string> all;
  for (const Operand& operand : row.operands) {
    const std::string& slot = c.text(operand.slot);
    (slot == "grad_output" ? gradient : stored) = &operand;
    all.push_back(slot + " = " + number(operand.number));
  }
  const bool product = row.operands.size() == 2 && gradient != nullptr && stored != nullptr && gradient->number == 0 &&
                       std::isinf(stored->number);
  return product ? fmt::format("multiplied the gradient 0 by the stored {} and made NaN", number(stored->number))
                 : fmt::format("made NaN of {}", join(all, 6));
}

}  // namespace

std::string returned_text(const Case& c, const EvidenceMap& evidence) {
  const Birth& birth = c.birth;
  if (!c.is_op() || birth.lifecycle == Lifecycle::kTransform) return "";
  for (const ChainNode& node : birth.chain.nodes) {
    if (node.lifecycle != Lifecycle::kTransform || node.role == "sink") continue;
    const EvidenceRecord* row = nan_of(node.seq, evidence);
    if (row == nullptr) continue;
    // The derivative of the origin, element by element: it has the origin's shape.
    const LayoutRecord* layout = c.names.layout(c.output->layout);
    const bool same = layout != nullptr && c.info->has(kElementwise) && node.numel == c.output->stats.numel &&
                      op_info(forward_op(node.op)).name == c.info->name;
    const auto coords = same ? coords_of(row->flat_index, layout->sizes) : std::vector<std::int64_t>{};
    std::string text = fmt::format("at {}: {} {}.",
                                   coords.empty() ? fmt::format("element {}", row->flat_index) : coords_text(coords),
                                   node.op, met(c, *row));
    if (const OpRef* dropped = dropped_in_forward(birth); dropped != nullptr && node.phase == Phase::kBackward) {
      text += fmt::format(" In forward `{}` did not use the infinite numbers, so the loss stayed finite in step {}.",
                          c.text(dropped->op), dropped->step);
    }
    return text;
  }
  return "";
}

}  // namespace nanhunt::analyze
