// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/optimizer_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "src/core/counts.h"
#include "src/core/text.h"

namespace nanhunt::checkpoint {
namespace {

constexpr std::string_view kSecondMoment = ".exp_avg_sq", kFirstMoment = ".exp_avg", kStep = ".step";

// "optimizer.state.3.exp_avg_sq": what is before "state.", and the parameter behind it.
struct StateName {
  std::string_view optimizer, parameter;
};
std::optional<StateName> parse_state_name(std::string_view name, std::string_view ending) {
  if (!name.ends_with(ending)) return std::nullopt;
  name.remove_suffix(ending.size());
  const std::size_t at = name.rfind("state.");
  if (at == std::string_view::npos || (at > 0 && name[at - 1] != '.' && name[at - 1] != ':'))
    return StateName{{}, name};
  return StateName{name.substr(0, at), name.substr(at + 6)};
}

// eps of each parameter, as the groups of an optimizer have it.
class Groups {
 public:
  explicit Groups(const Checkpoint& checkpoint) {
    std::map<std::string, double, std::less<>> eps_of_group;  // "optimizer.param_groups.0."
    for (const Scalar& one : checkpoint.scalars)
      if (one.name.ends_with(".eps") && one.name.find("param_groups.") != std::string::npos)
        eps_of_group[one.name.substr(0, one.name.size() - 3)] = one.value;
    for (const Scalar& one : checkpoint.scalars) {
      const std::size_t at = one.name.rfind(".params.");
      if (at == std::string::npos) continue;
      const auto group = eps_of_group.find(std::string_view(one.name).substr(0, at + 1));
      if (group != eps_of_group.end())
        of_parameter_[optimizer_of(group->first) + fmt::format("state.{}", static_cast<std::int64_t>(one.value))] =
            group->second;
    }
    for (const auto& [group, eps] : eps_of_group) {
      const auto [known, fresh] = of_optimizer_.emplace(optimizer_of(group), eps);
      if (!fresh && known->second != eps) known->second = NAN;  // several: only a parameter's own group says it
    }
  }
  std::optional<double> eps_of(const StateName& name) const {
    const std::string optimizer(name.optimizer);
    const auto own = of_parameter_.find(optimizer + "state." + std::string(name.parameter));
    if (own != of_parameter_.end()) return own->second;
    const auto only = of_optimizer_.find(optimizer);
    return only == of_optimizer_.end() || std::isnan(only->second) ? std::nullopt : std::optional(only->second);
  }

 private:
  static std::string optimizer_of(const std::string& group) { return group.substr(0, group.find("param_groups.")); }
  std::unordered_map<std::string, double> of_parameter_;
  std::map<std::string, double> of_optimizer_;
};

struct VanishedEps {
  std::string tensor;
  double eps = 0;
  std::int64_t tensors = 0;
};

void judge_second_moment(const Checkpoint& checkpoint, const std::vector<TensorResult>& results, std::size_t i,
                         const Tensor* first_moment, std::optional<double> eps, std::vector<Finding>& findings) {
  const Tensor& tensor = checkpoint.tensors[i];
  const TensorStats& s = results[i].stats;
  if (s.has_finite() && s.min < 0) {
    findings.push_back({Severity::kFault, "negative-second-moment", tensor.name,
                        fmt::format("smallest {}", format_number(s.min)),
                        "A mean of squares cannot be negative: its square root is NaN in the next step. Go back to an "
                        "earlier checkpoint."});
  }
  if (s.zero == 0 || first_moment == nullptr) return;
  const ZeroCount zeros = count_zero_where_other_is_not(checkpoint, tensor, *first_moment);
  if (!zeros.known || zeros.zeros == 0) return;
  Finding out;
  out.id = "second-moment-zero";
  out.tensor = tensor.name;
  out.count = zeros.zeros;
  out.numbers = fmt::format("{} of {} are 0 where exp_avg is not", format_signed_count(zeros.zeros),
                            format_signed_count(s.numel));
  const bool divides_by_zero = eps && round_to(*tensor.dtype, *eps) == 0;
  const bool coarse = *tensor.dtype != DType::kF32 && *tensor.dtype != DType::kF64;
  if (divides_by_zero) {
    out.severity = Severity::kFault;
    out.meaning =
        fmt::format("eps {} rounds to 0 in {}: the next update divides by 0. Keep the optimizer's state in fp32.",
                    format_number(*eps), tensor.dtype_name);
  } else if (coarse) {
    out.severity = Severity::kWarning;
    out.meaning = fmt::format(
        "Squares of gradients have rounded to 0 in {}, so eps alone divides the update. Keep the state in fp32.",
        tensor.dtype_name);
  } else {
    out.meaning = "Squares of gradients below 1e-22 round to 0 even in fp32; a few such elements do no harm.";
  }
  findings.push_back(std::move(out));
}

void judge_steps(const Checkpoint& checkpoint, const std::vector<TensorResult>& results,
                 std::vector<Finding>& findings) {
  std::map<std::string, std::pair<double, double>, std::less<>> range;  // of an optimizer's counters
  std::map<std::string, std::string, std::less<>> first_name;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Tensor& tensor = checkpoint.tensors[i];
    const auto name = parse_state_name(tensor.name, kStep);
    if (!name || name->optimizer.data() == nullptr || !results[i].judged || results[i].stats.numel != 1 ||
        !results[i].stats.has_finite())
      continue;
    const double value = results[i].stats.min;
    if (is_floating(*tensor.dtype) && value > 0 && round_to(*tensor.dtype, value + 1) == value) {
      findings.push_back({Severity::kFault, "step-stuck", tensor.name,
                          fmt::format("{} in {}", format_number(value), tensor.dtype_name),
                          "One more rounds back to the same number: the counter stands, and so does bias correction. "
                          "Keep it in fp32 or as an integer.",
                          1});
    }
    const std::string optimizer(name->optimizer);
    const auto [at, fresh] = range.emplace(optimizer, std::pair(value, value));
    if (fresh) first_name[optimizer] = tensor.name;
    at->second = {std::min(at->second.first, value), std::max(at->second.second, value)};
  }
  for (const auto& [optimizer, least_most] : range) {
    if (least_most.first == least_most.second) continue;
    findings.push_back({Severity::kInfo, "steps-apart", first_name[optimizer],
                        fmt::format("from {} to {}", format_number(least_most.first), format_number(least_most.second)),
                        "Parameters of one optimizer have taken different numbers of steps: meant where some were "
                        "frozen or had no gradient."});
  }
}

}  // namespace

void judge_optimizer_state(const Checkpoint& checkpoint, const std::vector<TensorResult>& results,
                           std::vector<Finding>& findings) {
  const Groups groups(checkpoint);
  std::unordered_map<std::string_view, std::size_t> numbers;
  for (std::size_t i = 0; i < checkpoint.tensors.size(); ++i) numbers.emplace(checkpoint.tensors[i].name, i);
  std::map<std::pair<std::string, double>, VanishedEps> vanished;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Tensor& tensor = checkpoint.tensors[i];
    const auto name = parse_state_name(tensor.name, kSecondMoment);
    if (!name || !results[i].judged || !is_floating(*tensor.dtype)) continue;
    const auto eps = groups.eps_of(*name);
    if (eps && *eps > 0 && round_to(*tensor.dtype, *eps) == 0) {
      VanishedEps& one = vanished[{tensor.dtype_name, *eps}];
      if (one.tensors++ == 0) one.tensor = tensor.name;
      one.eps = *eps;
    }
    const std::string first_name =
        tensor.name.substr(0, tensor.name.size() - kSecondMoment.size()) + std::string(kFirstMoment);
    const auto first = numbers.find(first_name);
    const bool judged = first != numbers.end() && results[first->second].judged;
    judge_second_moment(checkpoint, results, i, judged ? &checkpoint.tensors[first->second] : nullptr, eps, findings);
  }
  for (const auto& [key, one] : vanished) {
    findings.push_back({Severity::kWarning, "eps-vanishes", one.tensor,
                        fmt::format("eps {} rounds to 0 in {}, of {} tensors", format_number(one.eps), key.first,
                                    format_signed_count(one.tensors)),
                        "Where the second moment is 0 the update divides by 0. Keep the state in fp32, or raise eps.",
                        one.tensors});
  }
  judge_steps(checkpoint, results, findings);
}

void judge_loss_scale(const Checkpoint& checkpoint, std::vector<Finding>& findings) {
  std::unordered_map<std::string_view, double> values;
  for (const Scalar& one : checkpoint.scalars) values.emplace(one.name, one.value);
  for (const Scalar& one : checkpoint.scalars) {
    const std::size_t word = one.name.size() < 5 ? std::string::npos : one.name.size() - 5;
    if (word == std::string::npos || !one.name.ends_with("scale") ||
        (word > 0 && one.name[word - 1] != '.' && one.name[word - 1] != ':'))
      continue;
    const std::string before = one.name.substr(0, word);
    const auto tracker = values.find(before + "_growth_tracker");
    if (values.count(before + "growth_factor") == 0 || values.count(before + "backoff_factor") == 0)
      continue;  // no GradScaler's
    Finding out{Severity::kFault, "scale-collapsed", one.name, "scale " + format_number(one.value), ""};
    if (tracker != values.end()) out.numbers += ", " + format_number(tracker->second) + " steps since it last changed";
    if (!std::isfinite(one.value) || one.value <= 0) {
      out.meaning =
          "With it every gradient is 0 or not finite, and the scaler cannot recover. Start the scaler anew, and find "
          "what overflows.";
    } else if (one.value < 1) {
      out.severity = Severity::kWarning;
      out.meaning =
          "A scale below 1 means that step after step overflowed and was skipped. Find what overflows with `nanhunt "
          "run`.";
    } else {
      continue;
    }
    findings.push_back(std::move(out));
  }
}

}  // namespace nanhunt::checkpoint
