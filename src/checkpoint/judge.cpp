// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_set>

#include "src/checkpoint/optimizer_rules.h"
#include "src/core/text.h"

namespace nanhunt::checkpoint {
namespace {

constexpr double kSubnormalShare = 0.10;
constexpr std::int64_t kFewElements = 32;

bool is_narrow(DType dtype) { return dtype == DType::kF16 || dtype == DType::kE4M3FN || dtype == DType::kE5M2; }

std::string index_text(const std::vector<std::int64_t>& index) {
  std::string text = "[";
  for (std::size_t i = 0; i < index.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(index[i]);
  return text + "]";
}

// -inf alone among zeros and ones: a mask that is added to scores.
bool is_infinite_mask(const TensorStats& s) {
  return s.nan == 0 && s.pos_inf == 0 && s.neg_inf > 0 && (!s.has_finite() || (s.min >= 0 && s.max <= 1)) &&
         (!s.has_nonzero() || s.amin_nonzero == 1);
}
// A mask of the format's lowest number.
bool is_lowest_number_mask(const TensorStats& s, double max_finite) {
  return s.amax == max_finite && s.amin_nonzero == s.amax && s.max <= 0;
}

bool is_callback_state(const std::string& name) {
  return name.starts_with("callbacks.") || name.find(":callbacks.") != std::string::npos;
}
bool is_optimizer_state(const std::string& name) {
  return name.starts_with("state.") || name.find(".state.") != std::string::npos ||
         name.find(":state.") != std::string::npos || name.find("exp_avg") != std::string::npos;
}

Finding nonfinite(const Tensor& tensor, const TensorResult& result) {
  const TensorStats& s = result.stats;
  Finding out;
  out.tensor = tensor.name;
  out.count = s.nonfinite();
  std::string counts;
  for (const auto& [n, word] : {std::pair(s.nan, "NaN"), std::pair(s.pos_inf, "+Inf"), std::pair(s.neg_inf, "-Inf")})
    if (n > 0) counts += (counts.empty() ? "" : ", ") + fmt::format("{} {}", grouped(n), word);
  out.numbers = fmt::format("{} of {}, first at {}", counts, grouped(s.numel), index_text(result.first));
  if (is_infinite_mask(s)) {
    out.id = "infinite-mask";
    out.meaning = "It looks like a mask: -Inf among zeros and ones, which is meant.";
  } else if (is_callback_state(tensor.name)) {
    out.id = "nonfinite-callback-value";
    out.meaning = "A value that a callback keeps, such as the best score so far, is not finite; no weight is harmed.";
  } else {
    out.severity = Severity::kFault;
    out.id = "nonfinite-tensor";
    out.meaning = "Training that goes on from this tensor stays bad. Go back to a checkpoint in which it is finite.";
  }
  return out;
}

void judge_range(const Tensor& tensor, const TensorStats& s, bool scaled, std::vector<Finding>& findings) {
  const FormatLimits& limits = format_limits(*tensor.dtype);
  if (is_narrow(*tensor.dtype) && !scaled && s.amax >= limits.max_finite / 2 &&
      !is_lowest_number_mask(s, limits.max_finite)) {
    findings.push_back(
        {Severity::kWarning, "low-headroom", tensor.name,
         fmt::format("largest {} of at most {}", format_number(s.amax), format_number(limits.max_finite)),
         "It is within a factor of 2 of what its format can hold: the next growth overflows. Keep it in bf16 or "
         "fp32."});
  }
  const std::int64_t nonzero = s.finite() - s.zero;
  if (tensor.sizes.size() >= 2 && s.numel > 1 && s.zero == s.numel && !is_optimizer_state(tensor.name)) {
    findings.push_back({Severity::kInfo, "mostly-zero", tensor.name,
                        fmt::format("all {} elements are 0", grouped(s.numel)),
                        "Meant for what starts at 0, such as the second factor of LoRA; else it was never trained or "
                        "has underflowed."});
  }
  if (is_narrow(*tensor.dtype) && nonzero >= kFewElements &&
      static_cast<double>(s.subnormal) > kSubnormalShare * static_cast<double>(nonzero)) {
    findings.push_back(
        {Severity::kInfo, "mostly-subnormal", tensor.name,
         fmt::format("{} of {} nonzero elements are subnormal", grouped(s.subnormal), grouped(nonzero)),
         "They have lost precision and are close to rounding to 0. Keep it in bf16 or fp32, or scale it.",
         s.subnormal});
  }
}

void count_format(const Tensor& tensor, const TensorResult& result, std::map<std::string, FormatRow>& rows) {
  FormatRow& row = rows[tensor.format];
  row.format = tensor.format;
  ++row.tensors;
  row.elements += static_cast<std::uint64_t>(result.judged ? result.stats.numel : element_count(tensor));
  if (!result.judged) return;
  row.judged = true;
  row.zeros += static_cast<std::uint64_t>(result.stats.zero);
  row.subnormals += static_cast<std::uint64_t>(result.stats.subnormal);
  row.floating = is_floating(*tensor.dtype);
  row.amax = std::max(row.amax, result.stats.amax);
  if (row.floating && row.amax > 0)
    row.headroom_bits = static_cast<int>(std::floor(std::log2(format_limits(*tensor.dtype).max_finite / row.amax)));
}

// Values of fp8 weights fill their format on purpose where a scale lies beside them.
bool has_scale(const std::string& name, const std::unordered_set<std::string>& names) {
  for (const char* ending : {"_scale", "_scale_inv", "_scale_2"})
    if (names.count(name + ending) != 0) return true;
  const std::string base = name.substr(0, name.rfind('.') == std::string::npos ? 0 : name.rfind('.') + 1);
  return names.count(base + "scale") != 0 || names.count(base + "scales") != 0;
}

}  // namespace

std::string_view severity_word(Severity severity) {
  switch (severity) {
    case Severity::kFault:
      return "fault";
    case Severity::kWarning:
      return "warning";
    case Severity::kInfo:
      return "info";
  }
  return "";
}

std::string grouped(std::int64_t n) {
  std::string text = std::to_string(n);
  for (std::size_t at = text.size(); at > 3 + (n < 0 ? 1u : 0u);) text.insert(at -= 3, ",");
  return text;
}

std::size_t Judgement::count(Severity severity) const {
  return static_cast<std::size_t>(
      std::count_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.severity == severity; }));
}

Judgement judge(const Checkpoint& checkpoint, const std::vector<TensorResult>& results) {
  Judgement out;
  std::map<std::string, FormatRow> rows;
  std::unordered_set<std::string> names;
  for (const Tensor& tensor : checkpoint.tensors) names.insert(tensor.name);
  out.damaged = checkpoint.damaged();
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Tensor& tensor = checkpoint.tensors[i];
    const TensorResult& result = results[i];
    count_format(tensor, result, rows);
    out.damaged = out.damaged || result.damaged;
    if (!result.judged) {
      if (tensor.integer && !result.damaged)
        ++out.integers;
      else
        ++out.not_judged;
      continue;
    }
    ++out.judged;
    if (!is_floating(*tensor.dtype)) continue;
    if (result.stats.any_nonfinite) {
      out.findings.push_back(nonfinite(tensor, result));
      if (out.findings.back().severity == Severity::kFault) ++out.tensors_with_nonfinite;
    }
    judge_range(tensor, result.stats, has_scale(tensor.name, names), out.findings);
  }
  judge_optimizer_state(checkpoint, results, out.findings);
  judge_loss_scale(checkpoint, out.findings);
  std::stable_sort(out.findings.begin(), out.findings.end(),
                   [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
  for (auto& [name, row] : rows) out.formats.push_back(std::move(row));
  return out;
}

}  // namespace nanhunt::checkpoint
