// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_set>

#include "src/checkpoint/optimizer_rules.h"
#include "src/checkpoint/tensor_names.h"
#include "src/core/counts.h"
#include "src/core/text.h"

namespace nanhunt::checkpoint {
namespace {

constexpr double kSubnormalShare = 0.10;
constexpr std::int64_t kFewElements = 32;

bool is_narrow(DType dtype) { return dtype == DType::kF16 || dtype == DType::kE4M3FN || dtype == DType::kE5M2; }

// All that is finite.
bool is_zeros_and_ones(const TensorStats& s) {
  return (!s.has_finite() || (s.min >= 0 && s.max <= 1)) && (!s.has_nonzero() || s.amin_nonzero == 1);
}

// Whether -Inf alone is meant: a mask that is added to scores. What training updates starts at 0 or 1 and is none.
bool is_infinite_mask(const Checkpoint& checkpoint, const Tensor& tensor, const TensorResult& result,
                      std::uint64_t& bytes) {
  const TensorStats& s = result.stats;
  if (s.nan != 0 || s.pos_inf != 0 || s.neg_inf == 0 || is_optimizer_state(tensor.name)) return false;
  const std::string_view name = last_part(tensor.name);
  const std::size_t rank = tensor.sizes.size();
  const bool named = is_mask_name(name);
  if (is_trained_name(name, rank) || (!s.has_finite() && !named)) return false;
  // All above the diagonal and nothing else, whatever stands below.
  if (rank >= 2 && tensor.sizes[rank - 1] == tensor.sizes[rank - 2] && tensor.sizes[rank - 1] > 3) {
    const std::int64_t n = tensor.sizes[rank - 1], above = s.numel / (n * n) * (n * (n - 1) / 2);
    if (s.neg_inf == above && neg_inf_is_above_diagonal(checkpoint, tensor, bytes)) return true;
  }
  return is_zeros_and_ones(s) && (named || rank >= 2);
}

// A value that something keeps about the training, and that no weight is computed from.
bool is_kept_value(const Tensor& tensor, const TensorStats& s) {
  const std::string_view name = last_part(tensor.name);
  const std::size_t rank = tensor.sizes.size();
  if (is_optimizer_state(tensor.name) || is_trained_name(name, rank)) return false;
  // Ranges begin the wrong way round; what they have seen since is finite.
  if (has_whole_word(name, {"min_val", "min_vals"})) return s.nan == 0 && s.neg_inf == 0;
  if (has_whole_word(name, {"max_val", "max_vals"})) return s.nan == 0 && s.pos_inf == 0;
  if (rank > 1) return false;
  const bool may_be_mask = s.pos_inf == 0 && s.has_finite() && is_zeros_and_ones(s);
  return name.starts_with("best") || is_loss_name(name) || ((is_range_name(name) || may_be_mask) && s.nan == 0);
}

// The best score so far, and not the copy of the weights that an average of them is.
bool is_callback_value(const Tensor& tensor, const TensorStats& s) {
  return is_callback_state(tensor.name) && tensor.sizes.size() < 2 && s.numel < kFewElements &&
         !is_trained_name(last_part(tensor.name), tensor.sizes.size());
}

// A mask of the format's lowest number.
bool is_lowest_number_mask(const TensorStats& s, double max_finite) {
  return s.amax == max_finite && s.amin_nonzero == s.amax && s.max <= 0;
}

// `bytes`: how many may be read a second time.
Finding nonfinite(const Checkpoint& checkpoint, const Tensor& tensor, const TensorResult& result,
                  std::uint64_t& bytes) {
  const TensorStats& s = result.stats;
  Finding out;
  out.tensor = tensor.name;
  out.count = s.nonfinite();
  std::string counts;
  for (const auto& [n, word] : {std::pair(s.nan, "NaN"), std::pair(s.pos_inf, "+Inf"), std::pair(s.neg_inf, "-Inf")})
    if (n > 0) counts += (counts.empty() ? "" : ", ") + fmt::format("{} {}", format_signed_count(n), word);
  out.numbers = fmt::format("{} of {}, first at {}", counts, format_signed_count(s.numel), format_dims(result.first));
  if (is_infinite_mask(checkpoint, tensor, result, bytes)) {
    out.id = "infinite-mask";
    out.meaning = "It looks like a mask: -Inf among zeros and ones, which is meant.";
  } else if (is_callback_value(tensor, s)) {
    out.id = "nonfinite-callback-value";
    out.meaning = "A value that a callback keeps, such as the best score so far, is not finite; no weight is harmed.";
  } else if (is_kept_value(tensor, s)) {
    out.severity = Severity::kWarning;
    out.id = "nonfinite-value";
    out.meaning =
        "It looks like a range, a best score or a list of losses, which may begin as Inf; no weight is harmed by such. "
                  "If it is trained or computed with, go back to a checkpoint in which it is finite.";
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
                        fmt::format("all {} elements are 0", format_signed_count(s.numel)),
                        "Meant for what starts at 0, such as the second factor of LoRA; else it was never trained or "
                        "has underflowed."});
  }
  if (is_narrow(*tensor.dtype) && nonzero >= kFewElements &&
      static_cast<double>(s.subnormal) > kSubnormalShare * static_cast<double>(nonzero)) {
    findings.push_back(
        {Severity::kInfo, "mostly-subnormal", tensor.name,
         fmt::format("{} of {} nonzero elements are subnormal", format_signed_count(s.subnormal),
                     format_signed_count(nonzero)),
         "They have lost precision and are close to rounding to 0. Keep it in bf16 or fp32, or scale it.",
         s.subnormal});
  }
}

void count_dtype(const Tensor& tensor, const TensorResult& result, std::map<std::string, DtypeRow>& rows) {
  DtypeRow& row = rows[tensor.dtype_name];
  row.dtype = tensor.dtype_name;
  ++row.tensors;
  row.elements += static_cast<std::uint64_t>(result.judged ? result.stats.numel : element_count(tensor));
  if (!result.judged) return;
  row.judged = true;
  row.zeros += static_cast<std::uint64_t>(result.stats.zero);
  row.subnormals += static_cast<std::uint64_t>(result.stats.subnormal);
  row.floating = tensor.is_floating();
  row.amax = std::max(row.amax, result.stats.amax);
  if (!row.floating || row.amax == 0) return;
  const double most =
      tensor.byte_format != nullptr ? tensor.byte_format->max_finite : format_limits(*tensor.dtype).max_finite;
  row.headroom_bits = static_cast<int>(std::floor(std::log2(most / row.amax)));
}

// Values of fp8 weights fill their format on purpose where a scale lies beside them.
bool has_scale(const std::string& name, const std::unordered_set<std::string>& names) {
  for (const char* ending : {"_scale", "_scale_inv", "_scale_2"})
    if (names.count(name + ending) != 0) return true;
  const std::string base = name.substr(0, name.rfind('.') == std::string::npos ? 0 : name.rfind('.') + 1);
  return names.count(base + "scale") != 0 || names.count(base + "scales") != 0;
}

// A plain number that no weight is computed from and no step is made with, or one of each step. An infinite one is what
// the best loss begins with.
class NanNumbers {
 public:
  void add(const Scalar& scalar) {
    if (!std::isnan(scalar.value) || is_callback_state(scalar.name)) return;
    Finding& one = is_surely_optimizer_state(scalar.name)                 ? state_
                   : is_loss_name(last_part_without_numbers(scalar.name)) ? loss_
                                                                          : other_;
    if (one.count++ == 0) one.tensor = scalar.name;
  }
  void add_findings(std::vector<Finding>& findings) {
    for (Finding* one : {&state_, &loss_, &other_}) {
      if (one->count == 0) continue;
      one->numbers = one->count == 1 ? "NaN" : fmt::format("NaN, as are {} more", format_signed_count(one->count - 1));
      findings.push_back(std::move(*one));
    }
  }

 private:
  // "losses.3" is one of the losses.
  static std::string_view last_part_without_numbers(std::string_view name) {
    while (!name.empty() && (name.back() == '.' || (name.back() >= '0' && name.back() <= '9'))) name.remove_suffix(1);
    return last_part(name);
  }
  Finding state_{Severity::kFault, "nonfinite-setting", "", "",
                 "The optimizer computes its next step with it, which is then not finite. Go back to a checkpoint in "
                 "which it is finite."};
  Finding loss_{Severity::kWarning, "nonfinite-value", "", "",
                "A loss was NaN when this was saved. Whether the weights are harmed is judged by themselves."};
  Finding other_{
      Severity::kWarning, "nonfinite-value", "", "",
      "A number beside the weights is NaN. If training computes with it, go back to a checkpoint in which it "
      "is finite."};
};

void judge_numbers(const Checkpoint& checkpoint, std::vector<Finding>& findings) {
  std::unordered_set<std::string> of_loss_scale;
  const std::size_t before = findings.size();
  judge_loss_scale(checkpoint, findings);
  for (std::size_t i = before; i < findings.size(); ++i) of_loss_scale.insert(findings[i].tensor);
  NanNumbers others;
  for (const Scalar& scalar : checkpoint.scalars) {
    if (std::isfinite(scalar.value) || of_loss_scale.count(scalar.name) != 0) continue;
    if (scalar.name.ends_with(kQuantiserScale)) {
      findings.push_back({Severity::kFault, "nonfinite-scale", scalar.name, format_number(scalar.value),
                          "Each element of the quantised tensor is multiplied by it. Go back to a checkpoint in which "
                          "it is finite."});
      continue;
    }
    if (!has_text(scalar.name, {"param_groups."})) {
      others.add(scalar);
      continue;
    }
    // A bound may be infinite; what is multiplied with may not, and NaN is no bound.
    const bool bound = !has_text(last_part(scalar.name), {"lr", "eps", "decay", "momentum", "alpha", "lambd", "rho"}) &&
                       !has_text(scalar.name, {".betas"});
    if (bound && !std::isnan(scalar.value)) continue;
    findings.push_back({Severity::kFault, "nonfinite-setting", scalar.name, format_number(scalar.value),
                        "The optimizer's next step makes every parameter of this group not finite. Set it anew."});
  }
  others.add_findings(findings);
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

std::size_t Judgement::count(Severity severity) const {
  return static_cast<std::size_t>(
      std::count_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.severity == severity; }));
}

Judgement judge(const Checkpoint& checkpoint, const std::vector<TensorResult>& results) {
  Judgement out;
  std::map<std::string, DtypeRow> rows;
  std::unordered_set<std::string> names;
  for (const Tensor& tensor : checkpoint.tensors) names.insert(tensor.name);
  out.damaged = checkpoint.damaged();
  std::uint64_t bytes_to_read_again = most_bytes_to_read(checkpoint);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Tensor& tensor = checkpoint.tensors[i];
    const TensorResult& result = results[i];
    count_dtype(tensor, result, rows);
    out.damaged = out.damaged || result.damaged;
    const bool always_finite = tensor.always_finite || (tensor.dtype && !tensor.is_floating());
    ++(always_finite && !result.damaged ? out.always_finite : result.judged ? out.judged : out.not_judged);
    if (!result.judged || always_finite) continue;
    if (result.stats.any_nonfinite) {
      out.findings.push_back(nonfinite(checkpoint, tensor, result, bytes_to_read_again));
      if (out.findings.back().severity == Severity::kFault) ++out.tensors_with_nonfinite;
    }
    if (last_part(tensor.name) == "running_var" && result.stats.min < 0) {
      out.findings.push_back({Severity::kFault, "negative-variance", tensor.name,
                              fmt::format("smallest {}", format_number(result.stats.min)),
                              "A variance below 0 gives NaN in the next evaluation. Go back to a checkpoint in which "
                              "it is not."});
    }
    if (tensor.byte_format == nullptr) judge_range(tensor, result.stats, has_scale(tensor.name, names), out.findings);
  }
  out.partly_judged =
      out.not_judged > 0 || std::any_of(checkpoint.notes.begin(), checkpoint.notes.end(),
                                        [](const Note& note) { return note.kind == NoteKind::kNotRead; });
  judge_numbers(checkpoint, out.findings);
  judge_optimizer_state(checkpoint, results, out.findings);
  std::stable_sort(out.findings.begin(), out.findings.end(),
                   [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
  for (auto& [name, row] : rows) out.dtypes.push_back(std::move(row));
  return out;
}

}  // namespace nanhunt::checkpoint
