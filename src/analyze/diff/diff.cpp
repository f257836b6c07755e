// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/diff/diff.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>

#include "src/analyze/diff/diff_align.h"
#include "src/analyze/stream/names.h"
#include "src/core/op_name.h"

namespace nanhunt::analyze {
namespace {

constexpr double kRoundings = 8;
constexpr double kLargestTolerance = 0.5;
constexpr double kZeroShare = 0.1;  // of the elements: more zeros than that is health lost, not rounding

double unit_roundoff(DType dtype) {
  return is_floating(dtype) ? std::ldexp(1.0, -format_limits(dtype).mantissa_bits - 1) : 0;
}
double smallest(DType dtype) { return is_floating(dtype) ? format_limits(dtype).min_subnormal : 0; }

// Which kinds of bad numbers a value holds: 1 NaN, 2 Inf, 4 -Inf, 8 one of them, not counted.
int badness(const DiffValue& value) {
  if (!value.known || !value.any_nonfinite) return 0;
  if (!value.counted) return 8;
  return (value.nan > 0 ? 1 : 0) | (value.pos_inf > 0 ? 2 : 0) | (value.neg_inf > 0 ? 4 : 0);
}
bool same_badness(const DiffValue& a, const DiffValue& b) {
  const int x = badness(a), y = badness(b);
  return x == y || (x != 0 && y != 0 && (x == 8 || y == 8));
}

double rms(const DiffValue& value) {
  const std::int64_t finite = value.numel - value.nan - value.pos_inf - value.neg_inf;
  return finite > 0 && value.sum_sq >= 0 ? std::sqrt(value.sum_sq / static_cast<double>(finite)) : 0;
}
double zero_share(const DiffValue& value) {
  return value.numel > 0 ? static_cast<double>(value.zero) / static_cast<double>(value.numel) : 0;
}

// One run's names as numbers that both runs share. Overloads and in-place forms of an op are that op.
class Shared {
 public:
  std::uint32_t of(std::string_view text) {
    return ids_.try_emplace(std::string(text), static_cast<std::uint32_t>(ids_.size())).first->second;
  }

 private:
  std::unordered_map<std::string, std::uint32_t> ids_;  // looked up only, never listed
};

struct Side {
  explicit Side(const AttemptTrace& attempt) : stream(attempt) {}
  DiffStream stream;
  Names names;
  std::vector<std::uint32_t> module_keys, op_keys;  // by string id, + 1; 0: not asked for yet

  void add(const DiffStep& step) {
    for (const StringRecord& record : step.strings) {
      names.add(record);
      for (auto* keys : {&module_keys, &op_keys}) {
        if (record.id < keys->size()) (*keys)[record.id] = 0;
      }
    }
  }
  std::uint32_t module_key(StringId id, Shared& shared) { return key(module_keys, id, names.text(id), shared); }
  std::uint32_t op_key(StringId id, Shared& shared) {
    std::string_view name = plain_op_name(names.text(id));
    if (name.size() > 1 && name.ends_with('_')) name.remove_suffix(1);
    return key(op_keys, id, name, shared);
  }

 private:
  static std::uint32_t key(std::vector<std::uint32_t>& keys, StringId id, std::string_view text, Shared& shared) {
    constexpr StringId kMaxKept = 1u << 20;  // the format's cap on ids
    if (id >= kMaxKept) return shared.of(text);
    if (id >= keys.size()) keys.resize(std::max<std::size_t>(id + 1, keys.size() + keys.size() / 2));
    if (keys[id] == 0) keys[id] = shared.of(text) + 1;
    return keys[id] - 1;
  }
};

// A difference whose names are looked up only if it turns out to be the first of its kind.
struct Draft : Difference {
  StringId module_id = 0, op_id = 0;
  const Names* names = nullptr;
};

// The rows of one module in one phase.
struct Group {
  std::vector<std::uint32_t> a, b;  // rows
};

class Comparison {
 public:
  Comparison(const AttemptTrace& a, const AttemptTrace& b, const DiffOptions& options)
      : a_(a), b_(b), options_(options) {
    result_.a.info = a.info;
    result_.b.info = b.info;
    result_.levels_differ = a.info.level != b.info.level;
  }

  DiffResult run() {
    std::optional<DiffStep> a = next(a_, result_.a), b = next(b_, result_.b);
    while (a && b) {
      const auto place = [](const DiffStep& step) { return std::pair(step.step, step.part); };
      if (place(*a) == place(*b)) {
        compare(*a, *b);
        a = next(a_, result_.a);
        b = next(b_, result_.b);
      } else if (place(*a) < place(*b)) {
        result_.steps_only_a += a->part == 0;
        a = next(a_, result_.a);
      } else {
        result_.steps_only_b += b->part == 0;
        b = next(b_, result_.b);
      }
    }
    for (; a; a = next(a_, result_.a)) result_.steps_only_a += a->part == 0;
    for (; b; b = next(b_, result_.b)) result_.steps_only_b += b->part == 0;
    finish(a_, result_.a);
    finish(b_, result_.b);
    return std::move(result_);
  }

 private:
  static std::optional<DiffStep> next(Side& side, DiffSide& told) {
    std::optional<DiffStep> step = side.stream.next();
    if (!step) return step;
    side.add(*step);
    told.steps += step->part == 0;
    told.ops += static_cast<std::uint64_t>(std::ranges::count_if(
        step->rows, [&](const DiffRow& row) { return !comes_from_outside(row, side.names); }));
    told.last_step = step->step;
    return step;
  }
  static void finish(const Side& side, DiffSide& told) {
    told.status = side.stream.status();
    told.health = side.stream.health();
    told.why_no_tap = side.stream.why_no_tap();
  }

  // Rows of A in order; a row that B alone has comes before the row of A that follows it there.
  void compare(const DiffStep& a, const DiffStep& b) {
    result_.steps_compared += a.part == 0;
    step_ = a.step;
    phases_a_ = phases_of(a);
    phases_b_ = phases_of(b);
    result_.steps_with_ops += a.part == 0 && (phases_a_ & phases_b_) != 0;
    const std::vector<std::int32_t> b_of_a = align_rows(a, b);
    std::vector<std::int32_t> a_of_b(b.rows.size(), kUnmatched);
    for (std::size_t i = 0; i < b_of_a.size(); ++i) {
      if (b_of_a[i] != kUnmatched) a_of_b[static_cast<std::size_t>(b_of_a[i])] = static_cast<std::int32_t>(i);
    }
    std::size_t told = 0;  // rows of B
    const auto report_b_before = [&](std::size_t limit) {
      for (; told < limit; ++told) {
        if (a_of_b[told] == kUnmatched) only_in(DiffKind::kOnlyInB, b, b.rows[told], b_);
      }
    };
    for (std::size_t i = 0; i < a.rows.size(); ++i) {
      if (b_of_a[i] == kUnmatched) {
        only_in(DiffKind::kOnlyInA, a, a.rows[i], a_);
        continue;
      }
      report_b_before(static_cast<std::size_t>(b_of_a[i]));
      compare_rows(a, a.rows[i], b, b.rows[static_cast<std::size_t>(b_of_a[i])]);
    }
    report_b_before(b.rows.size());
    compare_ends(a, b);
  }

  std::vector<std::int32_t> align_rows(const DiffStep& a, const DiffStep& b) {
    std::vector<Group> groups;
    std::unordered_map<std::uint64_t, std::size_t> places;  // looked up only, never listed
    const auto group_of = [&](Side& side, const DiffRow& row) -> Group& {
      // Micro-batches beyond 2^28 share groups, which costs precision only.
      const std::uint64_t key = static_cast<std::uint64_t>(row.micro_batch) << 36 |
                                static_cast<std::uint64_t>(row.phase) << 32 | side.module_key(row.module, shared_);
      const auto [at, added] = places.try_emplace(key, groups.size());
      if (added) groups.emplace_back();
      return groups[at->second];
    };
    for (std::size_t i = 0; i < a.rows.size(); ++i) group_of(a_, a.rows[i]).a.push_back(static_cast<std::uint32_t>(i));
    for (std::size_t i = 0; i < b.rows.size(); ++i) group_of(b_, b.rows[i]).b.push_back(static_cast<std::uint32_t>(i));
    std::vector<std::int32_t> b_of_a(a.rows.size(), kUnmatched);
    std::vector<std::uint32_t> ops_a, ops_b;
    for (const Group& group : groups) {
      ops_a.clear();
      ops_b.clear();
      for (const std::uint32_t row : group.a) ops_a.push_back(a_.op_key(a.rows[row].op, shared_));
      for (const std::uint32_t row : group.b) ops_b.push_back(b_.op_key(b.rows[row].op, shared_));
      const Alignment aligned = align(ops_a, ops_b);
      result_.loosely_aligned += !aligned.exact;
      for (std::size_t i = 0; i < aligned.b_of_a.size(); ++i) {
        if (aligned.b_of_a[i] == kUnmatched) continue;
        b_of_a[group.a[i]] = static_cast<std::int32_t>(group.b[static_cast<std::size_t>(aligned.b_of_a[i])]);
      }
    }
    return b_of_a;
  }

  static std::uint32_t phases_of(const DiffStep& step) {
    std::uint32_t phases = 0;
    for (const DiffRow& row : step.rows) phases |= 1u << static_cast<unsigned>(row.phase);
    return phases;
  }
  // Inputs, losses and marks are rows, but no ops.
  static bool comes_from_outside(const DiffRow& row, const Names& names) {
    return names.text(row.op).starts_with('<');
  }
  // With levels that differ a trace has all ops of a step, some phases of it, or none.
  bool could_be_in_both(const DiffRow& row, const Names& names) const {
    return !comes_from_outside(row, names) && ((phases_a_ & phases_b_) >> static_cast<unsigned>(row.phase) & 1u) != 0;
  }

  void only_in(DiffKind kind, const DiffStep& step, const DiffRow& row, Side& side) {
    const bool in_a = kind == DiffKind::kOnlyInA;
    if (result_.levels_differ && !could_be_in_both(row, side.names)) {
      ++(in_a ? result_.ops_unshared_a : result_.ops_unshared_b);
      return;
    }
    Draft d = at_row(kind, row, side.names);
    (in_a ? d.seq_a : d.seq_b) = row.seq;
    add(d);
    for (std::uint32_t i = 0; i < row.output_count; ++i) {
      parted_ = std::max(parted_, unit_roundoff(step.outputs[row.first_output + i].dtype));
    }
    // What an op writes on purpose is no bad health; what it only hands on was told before.
    if (!row.fresh || side.names.op(row.op).has(kWritesConstant)) return;
    for (std::uint32_t i = 0; i < row.output_count; ++i) {
      const DiffValue& value = step.outputs[row.first_output + i];
      if (badness(value) == 0) continue;
      d.kind = DiffKind::kBadness;
      d.output = i;
      (in_a ? d.value_a : d.value_b) = value;
      add(d);
      return;
    }
  }

  void compare_rows(const DiffStep& a, const DiffRow& row_a, const DiffStep& b, const DiffRow& row_b) {
    result_.ops_compared += !comes_from_outside(row_a, a_.names);
    Draft d = at_row(DiffKind::kBadness, row_a, a_.names);
    d.seq_a = row_a.seq;
    d.seq_b = row_b.seq;
    if (row_a.output_count != row_b.output_count) {
      d.kind = DiffKind::kShape;
      d.what = "outputs";
      d.number_a = row_a.output_count;
      d.number_b = row_b.output_count;
      add(d);
    }
    const std::uint32_t count = std::min(row_a.output_count, row_b.output_count);
    for (std::uint32_t i = 0; i < count; ++i) {
      const DiffValue& x = a.outputs[row_a.first_output + i];
      const DiffValue& y = b.outputs[row_b.first_output + i];
      d.output = i;
      d.value_a = x;
      d.value_b = y;
      part(row_a, x, row_b, y);
      compare_values(d, x, y, tolerance_of(row_a, x, row_b, y));
    }
  }

  double tolerance_of(const DiffRow& row_a, const DiffValue& x, const DiffRow& row_b, const DiffValue& y) const {
    const double stored = std::max({unit_roundoff(x.dtype), unit_roundoff(y.dtype), parted_});
    const double computed = std::max(unit_roundoff(row_a.compute_dtype), unit_roundoff(row_b.compute_dtype));
    return grown(stored + computed * std::sqrt(std::max(row_a.terms, row_b.terms)));
  }
  double grown(double one) const {
    const double far = std::sqrt(1 + static_cast<double>(result_.ops_compared));
    return std::min(kLargestTolerance, options_.tolerance * kRoundings * one * far);
  }

  // Rounding in which the runs differ: whatever comes after it may be as far apart.
  void part(const DiffRow& row_a, const DiffValue& x, const DiffRow& row_b, const DiffValue& y) {
    if (x.dtype != y.dtype) parted_ = std::max({parted_, unit_roundoff(x.dtype), unit_roundoff(y.dtype)});
    const DType in_a = row_a.compute_dtype, in_b = row_b.compute_dtype;
    if (in_a != in_b) parted_ = std::max({parted_, unit_roundoff(in_a), unit_roundoff(in_b)});
  }

  void compare_values(Draft& d, const DiffValue& x, const DiffValue& y, double tolerance) {
    if (!x.known || !y.known) return;
    coarsest_ = std::max({coarsest_, unit_roundoff(x.dtype), unit_roundoff(y.dtype)});
    d.tolerance = 0;
    if (x.numel != y.numel) {
      d.kind = DiffKind::kShape;
      d.what = "elements";
      d.number_a = static_cast<double>(x.numel);
      d.number_b = static_cast<double>(y.numel);
      add(d);
    }
    if (!same_badness(x, y)) {
      d.kind = DiffKind::kBadness;
      d.what = "badness";
      d.number_a = static_cast<double>(x.nan + x.pos_inf + x.neg_inf);
      d.number_b = static_cast<double>(y.nan + y.pos_inf + y.neg_inf);
      add(d);
      return;
    }
    if (x.numel != y.numel || !x.counted || !y.counted) return;
    d.kind = DiffKind::kStatistics;
    d.tolerance = tolerance;
    const double least = std::max(smallest(x.dtype), smallest(y.dtype));
    const auto apart = [&](double a, double b) {
      return std::fabs(a - b) > tolerance * std::max(std::fabs(a), std::fabs(b)) + least;
    };
    const double rms_x = rms(x), rms_y = rms(y);
    if (apart(x.amax, y.amax)) {
      tell(d, "amax", x.amax, y.amax);
    } else if (x.summed && y.summed && apart(rms_x, rms_y)) {
      tell(d, "rms", rms_x, rms_y);
    } else if (std::fabs(zero_share(x) - zero_share(y)) > kZeroShare) {
      d.tolerance = kZeroShare;
      tell(d, "zero_share", zero_share(x), zero_share(y));
    }
  }

  void compare_ends(const DiffStep& a, const DiffStep& b) {
    Draft d;
    d.step = step_;
    d.phase = Phase::kLoss;
    const auto compare_numbers = [&](DiffKind kind, const char* what, double x, double y, double tolerance) {
      const bool alike = std::isfinite(x) && std::isfinite(y)
                             ? std::fabs(x - y) <= tolerance * std::max(std::fabs(x), std::fabs(y))
                             : (std::isnan(x) && std::isnan(y)) || x == y;
      if (alike) return;
      d.kind = kind;
      d.tolerance = tolerance;
      tell(d, what, x, y);
    };
    const double rounding = grown(std::max(coarsest_, parted_));
    if (a.health && b.health) {
      const HealthRecord &x = *a.health, &y = *b.health;
      if ((x.bad != 0) != (y.bad != 0)) {
        d.kind = DiffKind::kBadness;
        d.module = a_.names.text(x.first_bad).empty() ? b_.names.text(y.first_bad) : a_.names.text(x.first_bad);
        tell(d, "bad_tensors", x.bad_tensors, y.bad_tensors);
        d.module.clear();
      } else {
        compare_numbers(DiffKind::kLoss, "gradient_norm", x.gradient_norm, y.gradient_norm, rounding);
      }
    }
    if (!a.end || !b.end) return;
    compare_numbers(DiffKind::kLoss, "loss", a.end->loss, b.end->loss, rounding);
    d.phase = Phase::kUpdate;
    if (a.end->skipped != b.end->skipped) {
      d.kind = DiffKind::kSkip;
      d.tolerance = 0;
      tell(d, "skipped", a.end->skipped ? 1 : 0, b.end->skipped ? 1 : 0);
    }
    compare_numbers(DiffKind::kScale, "scale", a.end->scale, b.end->scale, 0);
    d.phase = Phase::kOptimizer;
    compare_numbers(DiffKind::kLearningRate, "lr", a.end->lr, b.end->lr, 0);
  }

  Draft at_row(DiffKind kind, const DiffRow& row, const Names& names) const {
    Draft d;
    d.kind = kind;
    d.step = step_;
    d.micro_batch = row.micro_batch;
    d.phase = row.phase;
    d.module_id = row.module;
    d.op_id = row.op;
    d.names = &names;
    return d;
  }
  void tell(Draft& d, const char* what, double x, double y) {
    d.what = what;
    d.number_a = x;
    d.number_b = y;
    add(d);
  }
  void add(const Draft& d) {
    const auto kind = static_cast<std::size_t>(d.kind);
    if (result_.counts[kind]++ != 0) return;
    Difference first = d;
    first.order = found_++;
    if (d.names != nullptr) {
      first.module = d.names->text(d.module_id);
      first.op = d.names->text(d.op_id);
    }
    result_.first[kind] = std::move(first);
  }

  Side a_, b_;
  DiffOptions options_;
  Shared shared_;
  DiffResult result_;
  std::uint32_t step_ = 0;
  std::uint32_t phases_a_ = 0, phases_b_ = 0;  // of which the step at hand has ops, 1 << Phase
  std::uint64_t found_ = 0;  // kinds so far
  double parted_ = 0;
  double coarsest_ = unit_roundoff(DType::kF32);  // of the formats met so far
};

}  // namespace

std::string_view diff_kind_name(DiffKind kind) {
  constexpr std::array<std::string_view, kDiffKinds> kNames = {
      "badness", "statistics", "loss", "skip", "scale", "learning_rate", "shape", "only_in_a", "only_in_b"};
  const auto at = static_cast<std::size_t>(kind);
  return at < kNames.size() ? kNames[at] : "unknown";
}

const Difference* DiffResult::first_health() const {
  const Difference* earliest = nullptr;
  for (const std::optional<Difference>& one : first) {
    if (one && is_health(one->kind) && (earliest == nullptr || one->order < earliest->order)) earliest = &*one;
  }
  return earliest;
}

Result<DiffResult> diff_attempts(const AttemptTrace& a, const AttemptTrace& b, const DiffOptions& options) {
  DiffResult result = Comparison(a, b, options).run();
  for (const DiffSide* side : {&result.a, &result.b}) {
    if (!side->status && side->status.code() != StatusCode::kDamaged) return side->status;
  }
  return result;
}

}  // namespace nanhunt::analyze
