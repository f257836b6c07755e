// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/findings/probe_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

bool finite(const ProbeRecord& probe) { return probe.nan + probe.pos_inf + probe.neg_inf == 0; }

struct Probes {
  const ProbeRecord* same = nullptr;
  const ProbeRecord *alone_f32 = nullptr, *alone_f64 = nullptr, *slice_f32 = nullptr, *slice_f64 = nullptr;

  explicit Probes(const std::vector<ProbeRecord>& all) {
    for (const ProbeRecord& probe : all) {
      if (probe.mode == ProbeMode::kSame) same = &probe;
      if (!probe.ran || probe.mode != ProbeMode::kWider) continue;
      if (probe.dtype == DType::kF32) (probe.ops > 1 ? slice_f32 : alone_f32) = &probe;
      if (probe.dtype == DType::kF64) (probe.ops > 1 ? slice_f64 : alone_f64) = &probe;
    }
  }
  bool alone_finite() const {
    return (alone_f32 != nullptr && finite(*alone_f32)) || (alone_f64 != nullptr && finite(*alone_f64));
  }
  bool alone_ran() const { return alone_f32 != nullptr || alone_f64 != nullptr; }
};

std::string made(const ProbeRecord& probe) {
  std::vector<std::string> kinds;
  if (probe.nan > 0) kinds.push_back(fmt::format("{} NaN", probe.nan));
  if (probe.pos_inf > 0) kinds.push_back(fmt::format("{} Inf", probe.pos_inf));
  if (probe.neg_inf > 0) kinds.push_back(fmt::format("{} -Inf", probe.neg_inf));
  return join(kinds, 3);
}

// "every result is finite; at [0, 3] it is 7.1e4".
std::string outcome(const Case& c, const ProbeRecord& probe) {
  if (!finite(probe)) return "still " + made(probe);
  const LayoutRecord* layout = c.names.layout(c.output->layout);
  const auto coords = layout == nullptr ? std::vector<std::int64_t>{} : coords_of(probe.flat_index, layout->sizes);
  if (coords.empty()) return "every result is finite";
  return fmt::format("every result is finite, at {} it is {}", coords_text(coords), number(probe.number));
}

bool is_magnitude(FindingClass cls) {
  return cls == FindingClass::kOverflow || cls == FindingClass::kExploding || cls == FindingClass::kScalerCalibration ||
         cls == FindingClass::kScalerCollapse;
}
bool is_lost(FindingClass cls) { return cls == FindingClass::kEpsUnderflow || cls == FindingClass::kUnderflow; }
bool is_narrow(const Case& c) { return dtype_size(c.stored) < dtype_size(DType::kF32); }

// Two formats in one sentence where they say the same.
void report_both(std::vector<std::string>& out, const std::string& what, const ProbeRecord* f32, const ProbeRecord* f64,
               const Case& c) {
  if (f32 != nullptr && f64 != nullptr && finite(*f32) == finite(*f64) && f32->ops == f64->ops) {
    out.push_back(fmt::format("{} in fp32 and in fp64: {}.", what, outcome(c, *f32)));
    return;
  }
  for (const ProbeRecord* probe : {f32, f64}) {
    if (probe != nullptr)
      out.push_back(fmt::format("{} in {}: {}.", what, dtype_name(probe->dtype), outcome(c, *probe)));
  }
}

std::vector<std::string> sentences(const Case& c, FindingClass cls, const Probes& p) {
  const std::string stored(dtype_name(c.stored));
  if (!p.same->ran) {
    const std::string& why = c.text(p.same->text);
    return {"It was to be computed again, but nothing can be concluded." + (why.empty() ? "" : " " + why)};
  }
  if (finite(*p.same))
    return {fmt::format("Computed again from the same inputs in {}: {}.", stored, outcome(c, *p.same))};
  std::vector<std::string> out{
      fmt::format("Computed again from the captured inputs in {}, the op gives the same bits.", stored)};
  report_both(out, "The op alone", p.alone_f32, p.alone_f64, c);
  // In fp32 the op itself is what can be mended: what fp64 would have kept before it is beside the point.
  const ProbeRecord* slice = p.slice_f32 != nullptr ? p.slice_f32 : p.slice_f64;
  if (slice != nullptr && (is_narrow(c) || is_lost(cls)))
    report_both(out, fmt::format("The {} ops {}", slice->ops, c.text(slice->text)), p.slice_f32, p.slice_f64, c);
  return out;
}

// The class that the probes show (design of the rules: rules/GUIDE.md); nothing where they decide nothing.
std::optional<FindingClass> shown(const Case& c, FindingClass cls, const Probes& p) {
  if (!p.same->ran) return std::nullopt;
  if (finite(*p.same)) return FindingClass::kNotReproducible;
  if (!p.alone_ran()) return std::nullopt;
  if (p.alone_finite()) {
    // A kernel that adds its own eps loses it in its own format: what it stores is no wider question.
    const bool own_eps = is_lost(cls) && c.zero.cause == ZeroCause::kExact;
    return is_magnitude(cls) || own_eps ? cls : FindingClass::kOverflow;
  }
  const ProbeRecord* slice = is_narrow(c) ? p.slice_f32 : p.slice_f64;
  if (slice != nullptr && finite(*slice)) {
    if (is_lost(cls)) return cls;
    // Above 16 bits nothing wider is at hand for training: the pole itself is what can be mended.
    if (is_narrow(c))
      return c.zero.cause == ZeroCause::kGuardLost ? FindingClass::kEpsUnderflow : FindingClass::kUnderflow;
  }
  if (is_lost(cls)) {
    if (slice == nullptr) return std::nullopt;  // what lost the number was not computed again
    return c.singular == Singular::kOutside ? FindingClass::kInvalid : FindingClass::kDivideByZero;
  }
  // Not finite in fp64 either: the op table has decided between pole, domain and magnitude.
  if (p.alone_f64 == nullptr || cls == FindingClass::kUnexplained) return std::nullopt;
  return cls;
}

std::string place(const Case& c) { return c.where().empty() ? c.op() : c.op() + " " + c.where(); }

// Words for a class that its own rule would not have found.
Diagnosis tell(const Case& c, FindingClass cls) {
  for (const Rule& rule : all_rules()) {
    if (rule.cls != cls) continue;
    if (auto diagnosis = rule.diagnose(c)) return std::move(*diagnosis);
  }
  const std::string stored(dtype_name(c.stored));
  Diagnosis d;
  switch (cls) {
    case FindingClass::kNotReproducible:
      d.title = fmt::format("{} was not finite in the run, and is finite when it is computed again", place(c));
      d.explanation = fmt::format(
          "{}. From the same inputs a replay of the run got finite numbers, so the arithmetic of the "
          "op is not to blame: something changed its result, or it does not give one result only.",
          made_text(c));
      break;
    case FindingClass::kOverflow:
      d.title = fmt::format("{} is finite in a wider format, not in {}", place(c), stored);
      d.explanation = fmt::format("{}. The same inputs give finite results in a wider format.", made_text(c));
      d.advice = {"fp32-compute"};
      break;
    case FindingClass::kEpsUnderflow:
    case FindingClass::kUnderflow:
      d.title = fmt::format("A number that is 0 in {} and not in fp32 makes {} bad", stored, place(c));
      d.explanation = fmt::format(
          "{}. Computed in fp32, the ops that lead to it keep that number, and all results are finite.", made_text(c));
      d.advice = {c.in_optimizer() ? "fp32-masters" : "fp32-compute"};
      break;
    case FindingClass::kDivideByZero:
    default:
      d.title = fmt::format("{}: {}", place(c), pole_words(c));
      d.explanation = fmt::format("{}. It is so in fp32 and fp64 too.", made_text(c));
      d.advice = denominator_advice(c);
      break;
  }
  add_if(d.evidence, c.element_text());
  add_if(d.evidence, range_text(c));
  return d;
}

// Of a compiled graph: what its operations gave one by one, or why they were not computed.
bool apply_to_graph(const Case& c, const std::vector<ProbeRecord>& probes, FindingClass& cls, Diagnosis& d) {
  const auto is_as_written = [](const ProbeRecord& probe) { return probe.mode == ProbeMode::kOtherKernel; };
  const auto probe = std::find_if(probes.begin(), probes.end(), is_as_written);
  if (probe == probes.end()) return false;
  if (!probe->ran) {
    const std::string& why = c.text(probe->text);
    if (why.empty()) d.advice.insert(d.advice.begin(), "compile-cache-off");
    d.evidence.push_back(why.empty() ? "Its operations are not known: it came out of a cache, or was compiled before the watch began."
                                     : why);
    return false;
  }
  if (!finite(*probe)) return false;
  cls = FindingClass::kKernelDependent;
  const ValueStats& out = c.output->stats;
  d.title = fmt::format("A compiled graph{} gave {}; its operations, one by one, give finite numbers",
                        c.where().empty() ? "" : " " + c.where(), bad_count_text(out.nan, out.pos_inf, out.neg_inf, out.numel));
  d.explanation = fmt::format("Computed from the same inputs as the program is written: {}. What the compiler made of it computes otherwise.",
                              outcome(c, *probe));
  d.cause = "what the compiler made of the operations";
  const auto is_fused = [](const ProbeRecord& other) { return other.mode == ProbeMode::kWider && other.ran; };
  const auto fused = std::find_if(probes.begin(), probes.end(), is_fused);
  if (fused != probes.end()) {
    d.explanation += fmt::format(
        " A fused kernel keeps in fp32 what 16-bit operations hand on. Computed so, {} is the first that is not finite.",
        c.text(fused->text));
    d.cause = "16-bit roundings that the compiler left out";
  }
  const bool rounds = fused != probes.end() || is_narrow(c);
  d.advice = {rounds ? "keep-roundings" : "leave-out-of-graph", "compile-off"};
  return true;
}

// The result would fit the format in which it overflowed: a step on the way to it does not.
void tell_inside(const Case& c, const Probes& p, Diagnosis& d) {
  const FormatLimits& limits = format_limits(c.stored);
  const ProbeRecord* exact = p.alone_f64;
  if (exact == nullptr || exact->flat_index < 0 || is_narrow(c) || c.info->has(kAccumulates) ||
      c.output->stats.inf() == 0 || !(std::fabs(exact->number) < limits.overflows_from))
    return;
  const std::string stored(dtype_name(c.stored));
  d.title = fmt::format("{} overflows {} inside: {} of {} results are infinite", place(c), stored,
                        c.output->stats.inf(), c.output->stats.numel);
  d.cause = fmt::format("a step on the way to a result too large for {}", stored);
  d.explanation = fmt::format(
      "The result fits: it is {}. What the kernel computes on the way to it passes {}, the largest {} number. {}.",
      number(exact->number), number(limits.max_finite), stored, made_text(c));
  std::erase(d.advice, "lower-magnitude");
  d.advice.emplace_back("scaled-function");
}

}  // namespace

bool apply_probes(const Case& c, const std::vector<ProbeRecord>& probes, FindingClass& cls, Diagnosis& diagnosis) {
  if (c.is_op() && c.info->has(kCompiled)) return apply_to_graph(c, probes, cls, diagnosis);
  const Probes p(probes);
  if (p.same == nullptr || !c.is_op()) return false;
  const std::optional<FindingClass> truth = shown(c, cls, p);
  if (truth && *truth != cls) {
    diagnosis = tell(c, *truth);
    cls = *truth;
  }
  if (cls == FindingClass::kOverflow && truth && p.alone_f64 != nullptr && finite(*p.alone_f64)) tell_inside(c, p, diagnosis);
  for (std::string& sentence : sentences(c, cls, p)) diagnosis.evidence.push_back(std::move(sentence));
  return truth.has_value();
}

}  // namespace nanhunt::analyze
