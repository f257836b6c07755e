// SPDX-License-Identifier: Apache-2.0
#include "reports/json/json_finding.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reports/json/json_values.h"
#include "reports/views/report_model.h"
#include "reports/views/wording.h"
#include "src/trace/cells.h"

namespace nanhunt::reports {
namespace {

using nlohmann::json;

constexpr std::size_t kJsonSamples = 65536;
constexpr std::size_t kJsonTensors = 256;
constexpr std::size_t kJsonOperands = 256;
constexpr std::size_t kJsonDims = 64;
constexpr std::size_t kJsonChain = 64;
constexpr std::size_t kJsonAdvice = 64;
constexpr std::size_t kJsonBins = 4096;
constexpr std::size_t kJsonRankPropagation = 256;

std::string_view level_name(StatsLevel level) {
  switch (level) {
    case StatsLevel::kFinite:
      return "finite";
    case StatsLevel::kCounts:
      return "counts";
    case StatsLevel::kSums:
      return "sums";
    case StatsLevel::kWhatIf:
      return "what_if";
    case StatsLevel::kHistogram:
      return "histogram";
  }
  return "finite";
}

json stats_to_json(const TensorStats& s) {
  json out = {{"level", level_name(s.level)},
              {"numel", json_integer(s.numel)},
              {"any_nonfinite", s.any_nonfinite},
              {"first_nonfinite", s.first_nonfinite < 0 ? json() : json_integer(s.first_nonfinite)}};
  const bool counts = s.level >= StatsLevel::kCounts;
  const bool sums = s.level >= StatsLevel::kSums;
  const auto count = [&](std::int64_t n) { return counts ? json_integer(n) : json(); };
  const auto number = [](bool known, double value) { return known ? json_number(value) : json(); };
  out["nan"] = count(s.nan);
  out["pos_inf"] = count(s.pos_inf);
  out["neg_inf"] = count(s.neg_inf);
  out["zero"] = count(s.zero);
  out["subnormal"] = count(s.subnormal);
  out["amax"] = number(counts && s.has_finite(), s.amax);
  out["amin_nonzero"] = number(counts && s.has_nonzero(), s.amin_nonzero);
  out["min"] = number(counts && s.has_finite(), s.min);
  out["max"] = number(counts && s.has_finite(), s.max);
  out["sum"] = number(sums, s.sum);
  out["sum_sq"] = number(sums, s.sum_sq);
  out["what_if"] = nullptr;
  if (s.level >= StatsLevel::kWhatIf) {
    out["what_if"] = json::object();
    for (std::size_t i = 0; i < kWhatIfFormats.size(); ++i) {
      const WhatIf& cast = s.what_if[i];
      out["what_if"][std::string(dtype_name(kWhatIfFormats[i]))] = {{"overflow", json_integer(cast.overflow)},
                                                                    {"flush_to_zero", json_integer(cast.flush_to_zero)},
                                                                    {"subnormal", json_integer(cast.subnormal)}};
    }
  }
  out["histogram"] = nullptr;
  if (s.level >= StatsLevel::kHistogram && s.histogram.size() <= kJsonBins) {
    json bins = json::array();
    for (const std::int64_t n : s.histogram) bins.push_back(json_integer(n));
    out["histogram"] = {{"min_exponent", s.histogram_min_exponent}, {"counts", std::move(bins)}};
  }
  return out;
}

// Which tensor: role, slot, index, dtype, shape.
json tensor_to_json(const TensorSummary& t) {
  return {{"role", json_text(t.role)},    {"slot", json_text(t.slot)},
          {"index", t.index},             {"name", json_text_or_null(t.name)},
          {"dtype", dtype_name(t.dtype)}, {"shape", json_integers(t.shape, kJsonDims)}};
}

// The same with how it was used and what is in it.
json tensor_with_stats(const TensorSummary& t) {
  json out = tensor_to_json(t);
  out["use"] = trace::arg_role_name(t.arg_role);
  out["flushed"] = t.flushed < 0 ? json() : json_integer(t.flushed);
  out["stats"] = t.has_stats ? stats_to_json(t.stats) : json();
  return out;
}

json name_to_json(const std::optional<std::string>& name) { return name ? json_text(*name) : json(); }

json place_to_json(const OpPlace& place) {
  return {{"step", place.step},
          {"micro_batch", place.micro_batch},
          {"phase", phase_name(place.phase)},
          {"module", name_to_json(place.module)},
          {"op", name_to_json(place.op)},
          {"op_seq", json_seq(place.seq)}};
}

json element_to_json(const ElementEvidence& element) {
  json operands = json::array();
  for (std::size_t i = 0; i < element.operands.size() && i < kJsonOperands; ++i) {
    const auto& operand = element.operands[i];
    operands.push_back({{"slot", json_text(operand.slot)},
                        {"name", json_text_or_null(operand.name)},
                        {"value", json_number(operand.value)}});
  }
  return {{"flat_index", element.flat_index < 0 ? json() : json_integer(element.flat_index)},
          {"coords", json_integers(element.coords, kJsonDims)},
          {"row", element.row < 0 ? json() : json_integer(element.row)},
          {"row_is_sample", element.row_is_sample},
          {"sample_id", element.sample_id ? json_integer(*element.sample_id) : json()},
          {"value", json_number(element.value)},
          {"operands", std::move(operands)}};
}

std::string_view known_role(std::string_view role) { return role == "origin" || role == "sink" ? role : "carrier"; }

json chain_to_json(const Chain& chain) {
  json nodes = json::array(), edges = json::array();
  const std::size_t shown = std::min(chain.nodes.size(), kJsonChain);
  for (std::size_t i = 0; i < shown; ++i) {
    const ChainNode& n = chain.nodes[i];
    nodes.push_back({{"seq", json_seq(n.seq)},
                     {"step", n.step},
                     {"phase", phase_name(n.phase)},
                     {"module", json_text_or_null(n.module)},
                     {"op", json_text_or_null(n.op)},
                     {"label", json_text(n.label)},
                     {"lifecycle", lifecycle_name(n.lifecycle)},
                     {"role", known_role(n.role)},
                     {"nan", json_integer(n.nan)},
                     {"pos_inf", json_integer(n.pos_inf)},
                     {"neg_inf", json_integer(n.neg_inf)},
                     {"numel", json_integer(n.numel)},
                     {"rank", n.rank ? json(*n.rank) : json()}});
  }
  const auto in_range = [&](int index) { return index >= 0 && static_cast<std::size_t>(index) < shown; };
  for (const ChainEdge& edge : chain.edges) {
    if (edges.size() == kJsonChain * kJsonChain) break;
    if (in_range(edge.from) && in_range(edge.to)) edges.push_back({{"from", edge.from}, {"to", edge.to}});
  }
  return {{"nodes", std::move(nodes)},
          {"edges", std::move(edges)},
          {"omitted", json_count(chain.omitted + (chain.nodes.size() - shown))}};
}

json advice_to_json(const std::vector<Advice>& advice) {
  json out = json::array();
  for (const Advice& one : advice) {
    if (out.size() == kJsonAdvice) break;
    out.push_back({{"id", json_text(one.id)},
                   {"text", json_text(one.text)},
                   {"why", json_text(one.why)},
                   {"verified", one.verified ? json(*one.verified) : json()},
                   {"on_these_numbers", one.on_these_numbers ? json(*one.on_these_numbers) : json()},
                   {"evidence", json_text(one.evidence)}});
  }
  return out;
}

json ranks_to_json(const std::vector<std::uint32_t>& ranks) {
  json out = json::array();
  for (std::size_t i = 0; i < ranks.size() && i < kJsonSamples; ++i) out.push_back(ranks[i]);
  return out;
}

json bad_steps_to_json(const BadSteps& steps) {
  if (steps.count == 0) return nullptr;
  return {
      {"count", json_count(steps.count)}, {"anew", json_count(steps.anew)}, {"unwatched", json_count(steps.unwatched)},
      {"first_step", steps.first},        {"last_step", steps.last},        {"open", steps.open}};
}

json frames_to_json(const std::vector<SourceFrame>& frames) {
  json out = json::array();
  for (const SourceFrame& frame : frames) {
    if (out.size() == kMaxFrames) break;
    out.push_back({{"file", json_text(frame.file)},
                   {"line", frame.line},
                   {"function", json_text(frame.function)},
                   {"first_line", frame.first_line},
                   {"code", json_texts(frame.code)}});
  }
  return out;
}

json related_to_json(const std::vector<RelatedFinding>& related) {
  json out = json::array();
  for (const RelatedFinding& one : related) {
    json item = place_to_json(one.place);
    item["class"] = finding_class_name(one.cls);
    item["severity"] = severity_name(one.severity);
    item["call_site"] = json_text_or_null(one.call_site);
    item["title"] = json_text(one.title);
    out.push_back(std::move(item));
  }
  return out;
}

}  // namespace

json finding_to_json(const Finding& f) {
  json out = place_to_json(f.place);
  out["id"] = json_text(f.id);
  out["class"] = finding_class_name(f.cls);
  out["severity"] = severity_name(f.severity);
  out["benign"] = f.benign;
  out["confidence"] = confidence_name(f.confidence);
  out["rank"] = f.rank;
  out["ranks"] = f.ranks.empty() ? json::array({f.rank}) : ranks_to_json(f.ranks);
  out["rank_propagation"] = json::array();
  for (const RankPropagation& propagation : f.rank_propagation) {
    if (out["rank_propagation"].size() == kJsonRankPropagation) break;
    out["rank_propagation"].push_back({{"ranks", ranks_to_json(propagation.ranks)},
                               {"through", json_text(propagation.through)},
                               {"group", json_text_or_null(propagation.group)},
                               {"step", propagation.step}});
  }
  out["kernel"] = json_text_or_null(f.kernel);
  out["part_of"] = json_text_or_null(f.part_of);
  out["call_site"] = json_text_or_null(f.call_site);
  out["frames"] = frames_to_json(f.frames);
  out["module_class"] = json_text_or_null(f.module_class);
  out["related"] = related_to_json(f.related);
  out["related_omitted"] = json_count(f.related_omitted);
  out["same_line_as"] = json_text_or_null(f.same_line_as);
  out["ignored"] = json_text_or_null(f.ignored);
  out["scale"] = json_number_or_null(f.scale);
  out["occurrences"] = {
      {"count", json_count(f.occurrence_count)}, {"first_step", f.first_step}, {"last_step", f.last_step}};
  out["bad_steps"] = bad_steps_to_json(f.bad_steps);
  out["cause"] = json_text(f.cause.empty() ? class_phrase(f.cls) : std::string_view(f.cause));
  out["title"] = json_text(f.title);
  out["explanation"] = json_text(f.explanation);
  out["tensor"] = f.tensor ? tensor_to_json(*f.tensor) : json();
  out["lifecycle"] = lifecycle_name(f.lifecycle);
  out["element"] = f.element ? element_to_json(*f.element) : json();
  out["bad_elements"] = json_integer(f.bad_elements);
  out["inputs"] = json::array();
  for (std::size_t i = 0; i < f.inputs.size() && i < kJsonTensors; ++i) {
    out["inputs"].push_back(tensor_with_stats(f.inputs[i]));
  }
  out["output"] = f.output ? tensor_with_stats(*f.output) : json();
  out["evidence"] = json_texts(f.evidence);
  out["chain"] = chain_to_json(f.chain);
  out["first_inf"] = f.first_inf ? place_to_json(*f.first_inf) : json();
  out["first_nan"] = f.first_nan ? place_to_json(*f.first_nan) : json();
  out["samples"] = json_integers(f.samples, kJsonSamples);
  out["sinks"] = json_texts(f.sinks);
  out["also"] = json_texts(f.also);
  out["also_at"] = json_texts(f.also_at);
  out["advice"] = advice_to_json(f.advice);
  return out;
}

}  // namespace nanhunt::reports
