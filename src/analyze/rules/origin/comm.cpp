// SPDX-License-Identifier: Apache-2.0
// comm: what came back from other ranks was bad although what this rank gave was finite.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/analyze/ranks/rank_propagation.h"
#include "src/analyze/rules/registry.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

std::string place(const Case& c) { return c.where().empty() ? c.op() : c.op() + " " + c.where(); }

void tell_unseen(const Case& c, const CallStory& call, Diagnosis& d) {
  d.sure = false;
  d.title = fmt::format("{} brought in non-finite numbers from other ranks", place(c));
  d.explanation = fmt::format("{}, and everything this rank put in was finite", made_text(c));
  d.advice = {"look-at-other-ranks"};
  if (!call.lined_up) {
    d.explanation += ". The ranks do not agree on what this call of theirs was, so what others gave is not known.";
    return;
  }
  if (!call.bad_from.empty()) {
    d.explanation +=
        fmt::format(". What {} gave was bad, and where it became so is not recorded.", ranks_text(call.bad_from));
    return;
  }
  d.explanation += fmt::format(": what {} gave was bad, {}or the transfer itself failed.", ranks_text(call.unknown),
                               call.can_pass ? "the sum over the ranks passed what the format holds, " : "");
  std::vector<std::uint32_t> unread;
  std::set_difference(call.unknown.begin(), call.unknown.end(), call.untraced.begin(), call.untraced.end(),
                      std::back_inserter(unread));
  if (!call.untraced.empty()) d.evidence.push_back(fmt::format("There is no trace of {}.", ranks_text(call.untraced)));
  if (!unread.empty()) d.evidence.push_back(fmt::format("What {} gave was not read.", ranks_text(unread)));
}

void report_between(const Case& c, const CallStory& call, Diagnosis& d) {
  const std::string limit = number(format_limits(call.dtype).max_finite);
  const std::string format = std::string(dtype_name(call.dtype));
  const bool product = call.reduction == Reduction::kProduct;
  const std::string all = call.givers.size() == 1 ? fmt::format("What {} gave", ranks_text(call.givers))
                                                   : fmt::format("What each of {} gave", ranks_text(call.givers));
  if (call.can_pass) {
    d.title = fmt::format("{} overflowed between the ranks: finite shares {} pass {}, the largest {} number", place(c),
                          product ? "multiplied" : "added up", limit, format);
    d.explanation = fmt::format("{}. {} was finite; the {} of their largest magnitudes is {}, and {} ends at {}.",
                                made_text(c), all, product ? "product" : "sum", number(call.reach), format, limit);
    d.advice = {"reduce-wider"};
  } else {
    d.title = fmt::format("{} brought in non-finite numbers that no rank gave", place(c));
    d.explanation = fmt::format(
        "{}. {} was finite, and {}: the transfer itself failed, or something wrote over the result.", made_text(c), all,
        call.reduction == Reduction::kNone || call.reduction == Reduction::kMin || call.reduction == Reduction::kMax
            ? "the call computes nothing that could overflow"
            : fmt::format("together they cannot pass {}, the largest {} number", limit, format));
    d.advice = {"check-memory"};
  }
  if (!call.fine_on.empty()) {
    d.evidence.push_back(
        fmt::format("{} got bad numbers; {} got finite ones.", ranks_text(call.bad_on), ranks_text(call.fine_on)));
    d.evidence.back()[0] = 'R';
  }
}

std::optional<Diagnosis> diagnose_comm(const Case& c) {
  if (!c.is_op() || c.context == nullptr || !c.names.is_exchange(c.birth.at.phase, c.birth.at.op)) return std::nullopt;
  if (c.call == nullptr && !c.inputs_finite()) return std::nullopt;
  Diagnosis d;
  if (c.call == nullptr) {
    d.title = fmt::format("{} brought in non-finite numbers from other ranks", place(c));
    d.explanation = fmt::format(
        "{}, and everything this rank put in was finite: another rank's share was bad, the sum over the ranks passed "
        "what the format holds, or the transfer itself failed.",
        made_text(c));
    d.sure = false;  // the other ranks' shares are not in this trace
    d.advice = {"look-at-other-ranks"};
  } else if (!c.call->unknown.empty() || !c.call->bad_from.empty()) {
    tell_unseen(c, *c.call, d);
  } else {
    report_between(c, *c.call, d);
  }
  add_if(d.evidence, c.element_text());
  add_if(d.evidence, range_text(c));
  return d;
}

}  // namespace

extern const Rule kCommRule{FindingClass::kComm, diagnose_comm};

}  // namespace nanhunt::analyze
