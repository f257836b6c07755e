// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/findings/element.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {

bool about_the_batch(Phase phase) {
  return phase == Phase::kData || phase == Phase::kForward || phase == Phase::kLoss || phase == Phase::kScale ||
         phase == Phase::kBackward || phase == Phase::kValidation;
}

namespace {

// Is dimension 0 the batch's? Only where the run said how many samples there are, and nothing else that lasts, and no
// other dimension, is as long.
bool rows_are_samples(const Case& c, const OtherSizes* others, const std::vector<std::int64_t>& shape) {
  const Birth& birth = c.birth;
  if (birth.samples == nullptr || shape.empty() || others == nullptr) return false;
  const auto samples = static_cast<std::int64_t>(birth.samples->size());
  if (shape[0] != samples) return false;
  if (birth.kind == BirthKind::kBatch) return true;
  return birth.kind == BirthKind::kOp && about_the_batch(birth.at.phase) && !others->contains(samples) &&
         std::count(shape.begin(), shape.end(), samples) == 1;
}

void report_row(ElementEvidence& element, const Case& c, const OtherSizes* others,
                const std::vector<std::int64_t>& shape) {
  if (element.coords.empty()) return;
  element.row_is_sample = rows_are_samples(c, others, shape);
  if (element.row_is_sample || shape.size() > 1) element.row = element.coords[0];
  if (element.row_is_sample) element.sample_id = (*c.birth.samples)[static_cast<std::size_t>(element.row)];
}

// What the record of the element lacks: a number of Python's; what was divided in place, and so not read, where the
// quotient says that it was 0.
void add_unread(ElementEvidence& element, const Case& c) {
  if (element.operands.size() != 1) return;
  const ElementEvidence::OperandValue& read = element.operands.front();
  for (const std::string_view name : {"other", "exponent"}) {
    const ScalarSnapshot* given = c.scalar(name);
    if (given != nullptr && read.slot != name) {
      element.operands.push_back({std::string(name), "", given->value});
      return;
    }
  }
  if (const ScalarSnapshot* base = c.scalar("self"); base != nullptr && read.slot == "exponent") {
    element.operands.insert(element.operands.begin(), {"self", "", base->value});
    return;
  }
  const bool quotient = c.info->bound == Bound::kQuotient && read.slot == "other" && c.inputs_finite();
  if (quotient && read.value == 0 && std::isnan(element.value))
    element.operands.insert(element.operands.begin(), {"self", "", 0});
}

}  // namespace

std::optional<ElementEvidence> element_of(const Case& c, const OtherSizes* others) {
  const ArgSnapshot* bad = c.is_op() ? c.output : &c.birth.source;
  if (bad == nullptr) return std::nullopt;
  const LayoutRecord* layout = c.names.layout(bad->layout);
  const std::vector<std::int64_t> shape = layout == nullptr ? std::vector<std::int64_t>{} : layout->sizes;
  ElementEvidence out;
  if (!c.elements.empty()) {
    const EvidenceRecord& record = *c.elements.front();
    out.flat_index = record.flat_index;
    out.coords = coords_of(record.flat_index, shape);
    report_row(out, c, others, shape);
    out.value = record.number;
    for (const Operand& operand : record.operands) {
      ElementEvidence::OperandValue value{c.text(operand.slot), "", operand.number};
      for (const ArgSnapshot& arg : c.context->op.inputs) {
        if (arg.value == operand.value && arg.slot == operand.slot) value.name = c.name_of(arg);
      }
      out.operands.push_back(std::move(value));
    }
    if (c.is_op()) add_unread(out, c);
    return out;
  }
  // Statistics know where the first bad element stands, and what it is where all are of one kind.
  if (bad->stats.first_nonfinite < 0) return std::nullopt;
  out.flat_index = bad->stats.first_nonfinite;
  out.coords = coords_of(out.flat_index, shape);
  report_row(out, c, others, shape);
  switch (bad->bad) {
    case kBadNaN:
      out.value = std::numeric_limits<double>::quiet_NaN();
      return out;
    case kBadPosInf:
      out.value = std::numeric_limits<double>::infinity();
      return out;
    case kBadNegInf:
      out.value = -std::numeric_limits<double>::infinity();
      return out;
    default:
      return std::nullopt;
  }
}

}  // namespace nanhunt::analyze
