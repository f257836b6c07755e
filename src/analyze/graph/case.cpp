// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/graph/case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

constexpr double kUnknownSize = std::numeric_limits<double>::infinity();

double exponent_of(const Case& c) {
  const ScalarSnapshot* exponent = c.scalar("exponent");
  return exponent == nullptr ? 1 : exponent->value;
}

double correction_of(const Case& c) {
  const ScalarSnapshot* given = c.scalar("correction");
  return given == nullptr ? 1 : given->value;
}

// What one number does to an op with this pole.
Singular singular_at(const Case& c, double x) {
  const double p = exponent_of(c) - (c.info->pole == Pole::kPowerBackward ? 1 : 0);
  switch (c.info->pole) {
    case Pole::kZero:
      return x == 0 ? Singular::kPole : Singular::kNone;
    case Pole::kNonPositive:
      return x == 0 ? Singular::kPole : x < 0 ? Singular::kOutside : Singular::kNone;
    case Pole::kNegative:
      return x < 0 ? Singular::kOutside : Singular::kNone;
    case Pole::kPower:
    case Pole::kPowerBackward:
      if (c.input("exponent") != nullptr) return x < 0 ? Singular::kOutside : x == 0 ? Singular::kPole : Singular::kNone;
      if (x < 0 && p != std::floor(p)) return Singular::kOutside;
      return x == 0 && p < 0 ? Singular::kPole : Singular::kNone;
    case Pole::kMinusOne:
      return x == -1 ? Singular::kPole : x < -1 ? Singular::kOutside : Singular::kNone;
    case Pole::kUnit:
      return std::fabs(x) > 1 ? Singular::kOutside : Singular::kNone;
    case Pole::kUnitBackward:
      return std::fabs(x) == 1 ? Singular::kPole : std::fabs(x) > 1 ? Singular::kOutside : Singular::kNone;
    case Pole::kUnitPole:
      return std::fabs(x) == 1 ? Singular::kPole : std::fabs(x) > 1 ? Singular::kOutside : Singular::kNone;
    case Pole::kBelowOne:
      return x < 1 ? Singular::kOutside : Singular::kNone;
    case Pole::kBelowOneBackward:
      return x == 1 ? Singular::kPole : x < 1 ? Singular::kOutside : Singular::kNone;
    case Pole::kZeroOne:
      return x == 0 || x == 1 ? Singular::kPole : x < 0 || x > 1 ? Singular::kOutside : Singular::kNone;
    case Pole::kGamma:
      return x <= 0 && x == std::floor(x) ? Singular::kPole : Singular::kNone;
    case Pole::kNone:
    case Pole::kLabels:
    case Pole::kEmpty:
    case Pole::kFew:
    case Pole::kNorm:
    case Pole::kMatrix:
    case Pole::kPath:
      return Singular::kNone;
  }
  return Singular::kNone;
}

// The norms that the op gives out, where one of them is 0.
const ArgSnapshot* norm_of_zeros(const Case& c) {
  for (const ArgSnapshot& out : c.context->op.outputs) {
    if (&out != c.output && out.stats.counted() && out.stats.zero > 0) return &out;
  }
  return nullptr;
}

// From statistics alone: which singular numbers does the argument hold at all?
Singular singular_in(const Case& c, const ValueStats& stats) {
  if (!stats.counted()) return Singular::kNone;
  if (c.info->pole == Pole::kEmpty) return stats.numel == 0 ? Singular::kPole : Singular::kNone;
  if (c.info->pole == Pole::kMatrix) return c.output->stats.nonfinite() > 0 ? Singular::kPole : Singular::kNone;
  if (c.info->pole == Pole::kPath) return c.output->stats.inf() > 0 ? Singular::kOutside : Singular::kNone;
  if (c.info->pole == Pole::kFew) return elements_of_one(c) <= correction_of(c) ? Singular::kPole : Singular::kNone;
  if (c.info->pole == Pole::kNorm) return norm_of_zeros(c) != nullptr ? Singular::kPole : Singular::kNone;
  if (c.info->pole == Pole::kLabels) {
    const ScalarSnapshot* ignore = c.scalar("ignore_index");
    const bool none_left = ignore != nullptr && stats.min == ignore->value && stats.max == ignore->value;
    return stats.numel == 0 || none_left || weighs_nothing(c) ? Singular::kPole : Singular::kNone;
  }
  if (stats.numel == 0) return Singular::kNone;
  const bool zero = stats.zero > 0 && singular_at(c, 0) == Singular::kPole;
  const Singular low = singular_at(c, stats.min);
  const Singular high = singular_at(c, stats.max);
  const bool outside = low == Singular::kOutside || high == Singular::kOutside;
  const bool pole = zero || low == Singular::kPole || high == Singular::kPole;
  if (pole && outside) return c.output->stats.nan > 0 ? Singular::kOutside : Singular::kPole;
  return pole ? Singular::kPole : outside ? Singular::kOutside : Singular::kNone;
}

void find_singularity(Case& c) {
  // A scalar divisor or guard-less constant.
  if (c.info->name == "div") {
    const ScalarSnapshot* divisor = c.scalar("other");
    if (divisor != nullptr && divisor->value == 0) {
      c.singular = Singular::kPole;
      return;
    }
  }
  for (const std::string_view slot : c.info->pole_slots) {
    if (c.pole == nullptr && !slot.empty()) c.pole = c.input(slot);
  }
  if (c.pole == nullptr || !c.pole->known) return;
  if (c.info->pole >= Pole::kEmpty) {  // of all of the argument, not of one of its numbers
    c.singular = c.pole->bad == 0 ? singular_in(c, c.pole->stats) : Singular::kNone;
    return;
  }

  // The bad elements that were looked at decide; a zero elsewhere only if zeros explain most bad elements.
  bool looked = false;
  for (const EvidenceRecord* element : c.elements) {
    for (const Operand& operand : element->operands) {
      if (operand.value != c.pole->value || operand.slot != c.pole->slot) continue;
      looked = true;
      const Singular here = singular_at(c, operand.number);
      if (here != Singular::kNone && c.singular == Singular::kNone) c.singular = here;
    }
  }
  if (c.singular == Singular::kNone) {
    const Singular whole = singular_in(c, c.pole->stats);
    const bool most = c.pole->stats.zero * 2 >= c.output->stats.nonfinite();
    if (!looked || (whole == Singular::kPole && most)) c.singular = whole;
  }
  if (c.singular == Singular::kPole && c.pole->stats.zero > 0 && c.info->pole != Pole::kLabels) {
    c.zero = find_zero_origin(*c.context, *c.pole, c.names);
  }
  if (c.singular != Singular::kPole) return;
  for (const double at : {c.pole->stats.min, c.pole->stats.max}) {
    if (c.bound.op == nullptr && singular_at(c, at) == Singular::kPole)
      c.bound = find_rounded_bound(*c.context, *c.pole, at, c.names);
  }
}

}  // namespace

bool weighs_nothing(const Case& c) {
  const ArgSnapshot* weight = c.input("weight");
  if (weight == nullptr || !weight->known || weight->bad != 0 || weight->stats.zero == 0) return false;
  for (const std::vector<ArgSnapshot>* args : {&c.context->op.outputs, &c.context->op.inputs}) {
    for (const ArgSnapshot& arg : *args) {
      if (arg.known && c.text(arg.slot) == "total_weight") return arg.stats.zero > 0;
    }
  }
  // The total was not read: no other quotient of finite numbers of one sign is NaN.
  return weight->stats.min >= 0 && c.output->stats.nan > 0 && c.inputs_finite();
}

double elements_of_one(const Case& c) {
  const ArgSnapshot* self = c.input("self");
  const std::int64_t results = c.output->stats.numel;
  return self == nullptr || results == 0 ? kUnknownSize : static_cast<double>(self->stats.numel) / static_cast<double>(results);
}

namespace {

double amax_of(const ArgSnapshot& arg) { return arg.known && arg.stats.counted() ? arg.stats.amax : kUnknownSize; }

}  // namespace

bool Case::reaches_training() const {
  return std::any_of(birth.sinks.begin(), birth.sinks.end(),
                     [](const SinkHit& sink) { return sink.kind != TensorRole::kOutput; });
}

std::string Case::where() const {
  if (module().empty()) return "";
  return in_optimizer() ? "in the update of " + module() : "in " + module();
}

const ScalarSnapshot* Case::scalar(std::string_view name) const {
  if (context == nullptr) return nullptr;
  for (const ScalarSnapshot& scalar : context->op.scalars) {
    if (names.text(scalar.name) == name) return &scalar;
  }
  return nullptr;
}

const ArgSnapshot* Case::input(std::string_view slot) const {
  if (context == nullptr) return nullptr;
  for (const ArgSnapshot& arg : context->op.inputs) {
    if (names.text(arg.slot) == slot) return &arg;
  }
  return nullptr;
}

bool Case::inputs_finite() const {
  return std::all_of(context->op.inputs.begin(), context->op.inputs.end(),
                     [](const ArgSnapshot& arg) { return arg.known && arg.bad == 0; });
}

std::string Case::element_text() const {
  if (elements.empty() || elements.front()->operands.empty() || output == nullptr) return "";
  const EvidenceRecord& element = *elements.front();
  const LayoutRecord* layout = names.layout(output->layout);
  const auto coords = layout == nullptr ? std::vector<std::int64_t>{} : coords_of(element.flat_index, layout->sizes);
  std::vector<std::string> operands;
  for (const Operand& operand : element.operands) {
    std::string name = text(operand.slot);
    for (const ArgSnapshot& arg : context->op.inputs) {
      if (arg.value == operand.value && arg.slot == operand.slot && arg.name != 0) name += " (" + name_of(arg) + ")";
    }
    operands.push_back(name + " = " + number(operand.number));
  }
  const std::string at = coords.empty() ? fmt::format("element {}", element.flat_index) : coords_text(coords);
  return fmt::format("at {}: {} gave {}", at, join(operands, 6), number(element.number));
}

std::string Case::optimizer_name() const {
  auto is_second_moment = [&](const ArgSnapshot& arg) { return text(arg.name).ends_with("exp_avg_sq"); };
  if (context != nullptr) {
    if (op().find("adam") != std::string::npos) return "Adam's";
    for (const OpSnapshot& snapshot : context->slice) {
      if (std::any_of(snapshot.inputs.begin(), snapshot.inputs.end(), is_second_moment)) return "Adam's";
    }
  }
  return "the optimizer's";
}

Case make_case(const Birth& birth, Names& names, std::vector<const EvidenceRecord*> elements) {
  Case c{birth, names, std::move(elements)};
  if (birth.context == nullptr) return c;
  c.context = birth.context.get();
  c.info = &names.op(birth.at.op);
  const OpSnapshot& op = c.context->op;
  if (c.context->bad_output >= op.outputs.size()) return Case{birth, names, {}};
  c.output = &op.outputs[c.context->bad_output];
  c.stored = dtype_of(*c.output, names, op.compute_dtype);
  find_singularity(c);
  return c;
}

BadSamples bad_samples(const Case& c) {
  BadSamples out;
  const ArgSnapshot& source = c.birth.source;
  if (c.birth.samples != nullptr) out.ids = *c.birth.samples;
  const LayoutRecord* layout = c.names.layout(source.layout);
  if (layout == nullptr || layout->sizes.empty()) return out;
  out.coords = coords_of(source.stats.first_nonfinite, layout->sizes);
  if (out.coords.empty() || static_cast<std::int64_t>(out.ids.size()) != layout->sizes[0]) return out;
  out.row = out.coords[0];
  out.rows_known = true;
  out.may_be_more = source.stats.nonfinite() != 1 && out.ids.size() > 1;
  out.ids = {out.ids[static_cast<std::size_t>(out.row)]};
  return out;
}

// No more terms in a sum than the largest of them has elements.
double bilinear_bound(const Case& c) {
  double first = 0, second = 0, terms = 1;
  std::size_t operands = 0;
  for (const ArgSnapshot& arg : c.context->op.inputs) {
    if (arg.role == ArgRole::kMask || arg.role == ArgRole::kIndex) continue;
    if (!arg.known || arg.bad != 0 || !arg.stats.counted()) return kUnknownSize;
    ++operands;
    terms = std::max(terms, static_cast<double>(arg.stats.numel));
    second = std::max(second, std::min(first, arg.stats.amax));
    first = std::max(first, arg.stats.amax);
  }
  return operands < 2 ? kUnknownSize : terms * first * second + first;
}

double magnitude_bound(const Case& c) {
  double largest = 0;  // over inputs
  double total = 0;    // sum of them
  double product = 1;
  double terms = 1;
  for (const ArgSnapshot& arg : c.context->op.inputs) {
    if (arg.role == ArgRole::kMask || arg.role == ArgRole::kIndex) continue;
    if (arg.role == ArgRole::kOverwritten && c.info->has(kOverwritesAll)) continue;
    largest = std::max(largest, amax_of(arg));
    total += amax_of(arg);
    product *= amax_of(arg);
    terms = std::max(terms, static_cast<double>(arg.stats.numel));
  }
  const ArgSnapshot* self = c.input("self");
  const ScalarSnapshot* other = c.scalar("other");
  const ScalarSnapshot* alpha = c.scalar("alpha");
  const double numel_in = self == nullptr ? terms : static_cast<double>(self->stats.numel);
  switch (c.info->bound) {
    case Bound::kUnknown:
      return kUnknownSize;
    case Bound::kCopy:
      return largest;
    case Bound::kSum:
      return std::max(1.0, alpha == nullptr ? 1.0 : std::fabs(alpha->value)) * total +
             (other == nullptr ? 0 : std::fabs(other->value));
    case Bound::kProduct:
      return product * (other == nullptr ? 1 : std::fabs(other->value));
    case Bound::kQuotient: {
      if (self == nullptr) return kUnknownSize;
      if (other != nullptr) return other->value == 0 ? kUnknownSize : amax_of(*self) / std::fabs(other->value);
      const ArgSnapshot* divisor = c.input("other");
      if (divisor == nullptr || !divisor->known || divisor->stats.amin_nonzero <= 0) return kUnknownSize;
      return amax_of(*self) / divisor->stats.amin_nonzero;
    }
    case Bound::kExp:
      return self == nullptr || !self->known ? kUnknownSize : std::exp(self->stats.max) + 1;
    case Bound::kPower: {
      if (self == nullptr || !self->known) return kUnknownSize;
      const double p = exponent_of(c);
      return p >= 0 ? std::pow(amax_of(*self), p) + 1 : std::pow(self->stats.amin_nonzero, p) + 1;
    }
    case Bound::kReduceSum:
      return largest * numel_in;
    case Bound::kMatmul: {
      const ArgSnapshot* a = c.input("mat1") != nullptr ? c.input("mat1") : self;
      const ArgSnapshot* b = c.input("mat2") != nullptr ? c.input("mat2") : c.input("other");
      if (a == nullptr || b == nullptr) return kUnknownSize;
      const LayoutRecord* layout = c.names.layout(a->layout);
      if (layout == nullptr || layout->sizes.empty()) return kUnknownSize;
      const double inner = static_cast<double>(layout->sizes.back());
      return inner * amax_of(*a) * amax_of(*b) + largest;  // largest covers the bias
    }
    case Bound::kProducts:
      return bilinear_bound(c);
    case Bound::kSquares:
      return terms * total * total + total;
    case Bound::kGradient: {
      const std::string forward = forward_op(c.op());
      if (!forward.empty() && op_info(forward).has(kBilinear)) return bilinear_bound(c);
      const double most = std::max(1.0, largest);
      return terms * most * most * most * most;
    }
  }
  return kUnknownSize;
}

}  // namespace nanhunt::analyze
