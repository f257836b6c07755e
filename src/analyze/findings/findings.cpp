// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/findings/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>
#include <tuple>

#include "src/analyze/findings/derivative.h"
#include "src/analyze/findings/element.h"
#include "src/analyze/findings/remedies.h"
#include "src/analyze/graph/summary.h"
#include "src/analyze/ranks/rank_propagation.h"
#include "src/analyze/rules/changed.h"
#include "src/analyze/rules/rule.h"
#include "src/analyze/rules/run/exploding.h"
#include "src/analyze/rules/run/scaler.h"
#include "src/analyze/rules/run/swallowed.h"
#include "src/analyze/wording/advice.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

constexpr std::size_t kMaxAlso = 1024;
constexpr std::string_view kCopiedElsewhere = "nanhunt::copied_elsewhere";  // as hooks tell of it

struct Diagnosed {
  Case c;
  const EvidenceMap* evidence = nullptr;                      // of the whole run
  const std::vector<HistogramRecord>* histograms = nullptr;  // of values of the origin op
  FindingClass cls = FindingClass::kUnexplained;
  Diagnosis diagnosis;
  bool proved = false;  // by counterfactuals
  const std::vector<ProbeRecord>* probes = nullptr;
  const std::set<std::int64_t>* other_sizes = nullptr;
  const RankVerdict* others = nullptr;
};

Diagnosed diagnose(Case c, const EvidenceMap& evidence) {
  for (const Rule& rule : all_rules()) {
    if (auto diagnosis = rule.diagnose(c)) return {std::move(c), &evidence, nullptr, rule.cls, std::move(*diagnosis)};
  }
  return {std::move(c), &evidence, nullptr, FindingClass::kUnexplained, {}};
}

Diagnosed diagnose_birth(const Birth& birth, Names& names, const FaultContext& context) {
  std::vector<const EvidenceRecord*> elements;
  if (const auto it = context.evidence.find(birth.at.seq); it != context.evidence.end() && birth.context != nullptr) {
    const OpSnapshot& op = birth.context->op;
    for (const EvidenceRecord& record : it->second) {
      const bool ours = birth.context->bad_output < op.outputs.size() &&
                        op.outputs[birth.context->bad_output].value == record.value;
      if (ours) elements.push_back(&record);
    }
    std::stable_sort(elements.begin(), elements.end(),
                     [](const auto* a, const auto* b) { return a->flat_index < b->flat_index; });
  }
  Case c = make_case(birth, names, std::move(elements));
  if (const auto it = context.others.calls.find(birth.id); it != context.others.calls.end()) c.call = &it->second;
  Diagnosed found = diagnose(std::move(c), context.evidence);
  found.others = &context.others;
  found.other_sizes = &context.other_sizes;
  if (const auto it = context.histograms.find(birth.at.seq); it != context.histograms.end())
    found.histograms = &it->second;
  if (const auto it = context.probes.find(birth.at.seq); it != context.probes.end()) {
    found.proved = apply_probes(found.c, it->second, found.cls, found.diagnosis);
    found.probes = &it->second;
  }
  add_selection(found.diagnosis, found.cls, found.c);
  return found;
}

// Earliest harm first, then the earliest birth; what was bad before any op comes before ops.
bool earlier(const Birth* a, const Birth* b) {
  auto key = [](const Birth& birth) {
    return std::tuple(birth.events.first(), birth.kind == BirthKind::kOp ? 1 : 0, birth.at.seq, birth.id);
  };
  return key(*a) < key(*b);
}

// What was bad there is bad in the next step too.
bool lasts(const SinkHit& sink) {
  return sink.kind != TensorRole::kOutput && sink.kind != TensorRole::kLoss && sink.kind != TensorRole::kBoundaryGradient;
}

std::string text_of(const SinkHit& sink, const Case& c) {
  const bool validated = sink.kind == TensorRole::kOutput &&
                         (sink.made_in == Phase::kValidation || c.birth.at.phase == Phase::kValidation);
  return validated ? "what a validation computed" : sink_text(sink.kind, c.text(sink.path));
}

void add_histogram(TensorSummary& to, ValueId value, const std::vector<HistogramRecord>& histograms) {
  for (const HistogramRecord& record : histograms) {
    if (record.value != value || !to.has_stats) continue;
    if (to.stats.level == StatsLevel::kSums) to.stats.level = StatsLevel::kHistogram;
    to.stats.histogram_min_exponent = record.min_exponent;
    to.stats.histogram = record.bins;
  }
}

// When the births of one finding were, and which steps were bad because of them.
class Steps {
 public:
  Steps() = default;
  explicit Steps(const Birth& birth) { add(birth); }
  void add(const Birth& birth) {
    born_.add(birth.born.empty() ? step_of(birth) : birth.born);
    events_.add(birth.events);
    unwatched_.add(birth.unwatched);
    open_ = open_ || birth.open_end;
  }
  void tell(Finding& f) const {
    f.occurrence_count = born_.count();
    f.first_step = born_.first();
    f.last_step = born_.last();
    f.bad_steps = {};
    if (events_.empty()) return;
    std::uint64_t anew = born_.count_in(events_);
    const std::uint64_t unwatched = unwatched_.count_in(events_);
    const bool of_data = f.place.op && (f.cls == FindingClass::kBadInput || !f.place.op->starts_with('<'));
    if (of_data && is_of_next_step(f.place.phase, born_.first(), events_) && anew < events_.count()) {
      f.place.step = f.first_step = events_.first();
      f.last_step = std::max(f.first_step, f.last_step);
      ++anew;
    }
    f.bad_steps = {events_.count(), anew,           std::min(unwatched, events_.count() - anew),
                   events_.first(), events_.last(), open_};
  }

 private:
  static StepSet step_of(const Birth& birth) {
    StepSet one;
    one.add(birth.at.step);
    return one;
  }
  StepSet born_, events_, unwatched_;
  bool open_ = false;
};

// The steps in which it did harm, or, where it did none itself, disappeared.
const StepSet& harmed_by(const Birth& birth) {
  return birth.events.empty() && birth.swallow != nullptr ? birth.swallow->steps : birth.events;
}

bool is_of_model(const Case& c) { return c.birth.at.module != 0 && c.module() != kOutsideModules; }

// A figure of a validation, made of finite single numbers, of which nothing else was made: the precision of a class that
// it lacks, the perplexity of a large loss. The loss itself is made of more.
bool is_figure(const Diagnosed& d) {
  const Birth& birth = d.c.birth;
  if (birth.at.phase != Phase::kValidation || !d.c.is_op() || is_of_model(d.c)) return false;
  const std::vector<ArgSnapshot>& read = d.c.context->op.inputs;
  const std::vector<ChainNode>& nodes = birth.chain.nodes;
  return !read.empty() &&
         std::all_of(read.begin(), read.end(), [](const ArgSnapshot& in) {
           return in.known && in.bad == 0 && in.stats.numel == 1;
         }) &&
         std::all_of(nodes.begin(), nodes.end(), [](const ChainNode& node) { return node.numel == 1; }) &&
         std::all_of(birth.sinks.begin(), birth.sinks.end(),
                     [](const SinkHit& sink) { return sink.kind == TensorRole::kOutput; });
}

void tell_sinks(Finding& f, const Case& c) {  // those that are not named yet
  for (const SinkHit& sink : c.birth.sinks) {
    std::string text = text_of(sink, c);
    if (std::ranges::find(f.sinks, text) == f.sinks.end() && f.sinks.size() < kMaxSinks) f.sinks.push_back(std::move(text));
  }
}

Finding make_finding(const Diagnosed& d) {
  const Case& c = d.c;
  const Birth& birth = c.birth;
  Finding f;
  f.cls = d.cls;
  f.figure = is_figure(d);
  f.severity = birth.taken_back || f.figure ? Severity::kWarning : Severity::kFault;
  f.confidence = !birth.watched || birth.after_loss || !(d.diagnosis.sure || d.proved) ? Confidence::kInferred
                 : d.proved                                                            ? Confidence::kProved
                                                                                       : Confidence::kObserved;
  f.place = place_of(birth.at, c.names);
  // What is computed with gradients off and trained with is no validation: targets of another model.
  const bool is_given = (c.is_op() || birth.kind == BirthKind::kUnwatched) && c.reaches_training();
  const auto set_phase = [&](Phase& phase, bool model) {
    if (is_given && phase == Phase::kValidation) phase = model ? Phase::kForward : Phase::kLoss;
  };
  set_phase(f.place.phase, is_of_model(c));
  if (birth.kind == BirthKind::kBatch) f.place.module.reset();
  if (birth.into_role && is_sink(*birth.into_role) && birth.at.module == 0) f.place.module = c.text(birth.into_name);
  f.call_site = c.text(birth.call_site);
  f.scale = birth.scale;
  const StepSet& events = harmed_by(birth);
  Steps(birth).tell(f);
  f.title = d.diagnosis.title;
  f.cause = d.diagnosis.cause;
  f.part_of = d.diagnosis.part_of;
  f.explanation = d.diagnosis.explanation;
  f.evidence = d.diagnosis.evidence;
  f.lifecycle = birth.lifecycle;
  f.element = element_of(c, d.other_sizes);
  if (c.is_op()) {
    const OpSnapshot& op = c.context->op;
    for (std::size_t i = 0; i < op.inputs.size(); ++i)
      f.inputs.push_back(summarise(op.inputs[i], "input", static_cast<int>(i), c.names));
    f.output = summarise(*c.output, "output", static_cast<int>(c.context->bad_output), c.names);
    if (d.histograms != nullptr) {
      for (std::size_t i = 0; i < op.inputs.size(); ++i) add_histogram(f.inputs[i], op.inputs[i].value, *d.histograms);
      add_histogram(*f.output, c.output->value, *d.histograms);
    }
    f.tensor = f.output;
    f.bad_elements = c.output->stats.nonfinite();
  } else {
    f.tensor = summarise(birth.source, "input", 0, c.names);
    f.bad_elements = birth.source.stats.nonfinite();
  }
  if (birth.first_inf) f.first_inf = place_of(*birth.first_inf, c.names);
  if (birth.first_nan) f.first_nan = place_of(*birth.first_nan, c.names);
  for (std::optional<OpPlace>* first : {&f.first_inf, &f.first_nan})
    if (*first) set_phase((*first)->phase, (*first)->module && *(*first)->module != kOutsideModules);
  tell_sinks(f, c);
  f.unfinished = !birth.sinks.empty() && std::none_of(birth.sinks.begin(), birth.sinks.end(), lasts);
  if (birth.kind == BirthKind::kBatch) {
    f.samples = bad_samples(c).ids;
  } else if (about_the_batch(birth.at.phase) && birth.samples != nullptr && birth.kind == BirthKind::kOp) {
    f.samples = *birth.samples;
  }
  f.chain = birth.chain;
  for (ChainNode& node : f.chain.nodes) set_phase(node.phase, !node.module.empty() && node.module != kOutsideModules);
  if (birth.more_sinks > 0) f.evidence.push_back(fmt::format("{} more sinks were reached.", birth.more_sinks));
  if (birth.first_bad_loss && *birth.first_bad_loss > events.first())
    f.evidence.push_back(fmt::format("The loss was not finite from step {} on.", *birth.first_bad_loss));
  if (birth.taken_back)
    f.evidence.push_back("The weights that it was computed with were a trial: the program put back those of before.");
  const auto& nodes = birth.chain.nodes;
  const auto copied =
      std::find_if(nodes.begin(), nodes.end(), [](const ChainNode& node) { return node.op == kCopiedElsewhere; });
  if (copied != nodes.end())
    f.evidence.push_back(fmt::format(
        "What step {} read is a copy that nobody was heard to make (another process that loads data, NumPy, a file): a "
        "row of it has the bytes of what this op led to.",
        copied->step));
  if (!birth.watched) f.evidence.push_back("Not every input of the op was watched.");
  if (birth.after_loss) f.evidence.push_back("Records before this op are missing from the trace.");
  add_if(f.evidence, returned_text(c, *d.evidence));
  for (const std::string& id : d.diagnosis.advice) {
    f.advice.push_back(make_advice(id));
    if (c.is_op()) fit_to_format(f.advice.back(), c.stored);
    for (const auto& [about, why] : d.diagnosis.why) {
      if (about == id) f.advice.back().why = why;
    }
  }
  if (d.probes != nullptr) add_trials(f.advice, *d.probes, c);
  return f;
}

// Where the births of one finding went on other ranks.
class Travels {
 public:
  void add(const Diagnosed& found) {
    others_ = found.others;
    if (others_ == nullptr) return;
    if (const auto it = others_->arrivals.find(found.c.birth.id); it != others_->arrivals.end())
      arrivals_.insert(arrivals_.end(), it->second.begin(), it->second.end());
    if (found.c.call != nullptr) {
      for (const std::uint32_t rank : found.c.call->bad_on) ranks_.insert(rank);
    }
  }
  void tell(Finding& f) const {
    f.ranks.assign(ranks_.begin(), ranks_.end());
    if (!arrivals_.empty()) report_rank_propagation(f, arrivals_, others_->rank);
  }

 private:
  const RankVerdict* others_ = nullptr;
  std::vector<Arrival> arrivals_;
  std::set<std::uint32_t> ranks_;
};

// A finding in the making: the birth that leads it, and what the others of the same fault add.
class FindingGroup {
 public:
  explicit FindingGroup(Diagnosed lead) : lead_(std::move(lead)), finding_(make_finding(lead_)) {
    modules_.insert(lead_.c.birth.at.module);
    add_events(lead_.c.birth);
    travels_.add(lead_);
  }

  // What made bad numbers in forward, which were replaced there, and its derivative, which did harm.
  FindingGroup(Diagnosed hidden, const Diagnosed& derivative) : FindingGroup(std::move(hidden)) {
    report_replaced(finding_, *lead_.c.birth.swallow, lead_.c.names);
    finding_.unfinished = true;
    add_derivative(derivative);
  }

  // One finding for what a reader would call one fault: same class and op, in the same step at any module, or again
  // later at a module it has.
  bool holds(const Diagnosed& other) const {
    const OpRef &x = lead_.c.birth.at, &y = other.c.birth.at;
    const bool alike =
        lead_.cls == other.cls && lead_.c.birth.kind == other.c.birth.kind && x.op == y.op && x.phase == y.phase;
    return alike && lead_.c.birth.taken_back == other.c.birth.taken_back &&
           finding_.figure == is_figure(other) && (x.step == y.step || modules_.contains(y.module));
  }
  bool has_derivative(const Diagnosed& other) const { return is_derivative_of(other.c, lead_.c) || repeats(other); }

  void add(const Diagnosed& other) {
    const Birth& birth = other.c.birth;
    add_events(birth);
    travels_.add(other);
    if (birth.kind == BirthKind::kBatch) {
      finding_.evidence.push_back(other.diagnosis.title + ".");
      for (std::int64_t id : bad_samples(other.c).ids) {
        if (std::find(finding_.samples.begin(), finding_.samples.end(), id) == finding_.samples.end())
          finding_.samples.push_back(id);
      }
    } else if (birth.at.step != lead_.c.birth.at.step) {
      if (later_.empty() || later_.back() != birth.at.step) later_.push_back(birth.at.step);
    } else if (!modules_.insert(birth.at.module).second) {
      ++same_module_[other.c.module()];
      if (is_elsewhere_in_file(other.c.text(birth.call_site))) lines_.insert(other.c.text(birth.call_site));
    } else if (finding_.also.size() < kMaxAlso) {
      finding_.also.push_back(other.c.module());
    }
    add_sinks(other);
  }

  // The forward op and its gradient met the same singular number: one fault, two ways into the weights.
  void add_derivative(const Diagnosed& other) {
    add_events(other.c.birth);
    travels_.add(other);
    add_sinks(other);
    if (repeats(other)) return;
    derivative_ = other.c.birth.at;
    finding_.evidence.push_back(
        fmt::format("Its derivative has no finite value there either: {}.", made_text(other.c)));
    Chain& chain = finding_.chain;
    const Chain& more = other.c.birth.chain;
    if (chain.nodes.empty() || chain.nodes.size() + more.nodes.size() > 64) return;
    std::vector<int> places;  // of nodes of `more`
    for (ChainNode node : more.nodes) {
      const auto known = std::find_if(chain.nodes.begin(), chain.nodes.end(), [&](const ChainNode& one) {
        return one.role == "sink" && one.role == node.role && one.step == node.step && one.op == node.op &&
               one.module == node.module;
      });
      places.push_back(static_cast<int>(known - chain.nodes.begin()));
      if (known != chain.nodes.end()) continue;  // what both ways reach is shown once
      if (node.role == "origin") node.role = "carrier";
      chain.nodes.push_back(std::move(node));
    }
    if (!more.nodes.empty()) chain.edges.push_back({0, places.front()});
    const auto place = [&](int node) { return places[static_cast<std::size_t>(node)]; };
    for (const ChainEdge& edge : more.edges) chain.edges.push_back({place(edge.from), place(edge.to)});
    chain.omitted += more.omitted;
  }

  Finding finish() {
    steps_.tell(finding_);
    for (const auto& [module, count] : same_module_)
      finding_.evidence.push_back(fmt::format("{} more such {}{} in this step.", count, count == 1 ? "op" : "ops",
                                              module.empty() ? "" : " in " + module));
    std::vector<std::string> steps;
    for (std::uint32_t step : later_) steps.push_back(std::to_string(step));
    if (!steps.empty())
      finding_.evidence.push_back(
          fmt::format("It arose anew in {} {}.", steps.size() == 1 ? "step" : "steps", join(steps, 8)));
    travels_.tell(finding_);
    finding_.also_at.assign(lines_.begin(), lines_.end());
    return std::move(finding_);
  }

 private:
  void add_events(const Birth& birth) {
    steps_.add(birth);
    if (birth.repeats_in_step > 0) same_module_[lead_.c.text(birth.at.module)] += birth.repeats_in_step;
  }
  void add_sinks(const Diagnosed& other) {
    if (other.c.birth.events.first() != harmed_by(lead_.c.birth).first()) return;
    for (const SinkHit& sink : other.c.birth.sinks)
      finding_.unfinished = finding_.unfinished && !lasts(sink);
    tell_sinks(finding_, other.c);
  }

  bool is_elsewhere_in_file(const std::string& line) const {
    const std::string& own = finding_.call_site;
    return line != own && own.find(':') != own.npos && line.starts_with(own.substr(0, own.rfind(':') + 1));
  }
  // Its derivative, in a later step.
  bool repeats(const Diagnosed& other) const {
    const OpRef &x = other.c.birth.at, &y = derivative_.value_or(x);
    return y.step < x.step && x.op == y.op && x.module == y.module && x.phase == y.phase;
  }

  Diagnosed lead_;
  Finding finding_;
  Steps steps_;
  Travels travels_;
  std::optional<OpRef> derivative_;  // where the forward op's gradient met the same number
  std::set<StringId> modules_;
  std::map<std::string, std::uint64_t> same_module_;
  std::set<std::string> lines_;          // other lines of such ops
  std::vector<std::uint32_t> later_;  // steps in which the same fault began again
};

// Overflows of scaled gradients: one finding, led by the earliest, however many ops and steps.
class ScaledOverflows {
 public:
  void add(Diagnosed found) { all_.push_back(std::move(found)); }
  bool empty() const { return all_.empty(); }
  std::vector<const ScaleTrial*> trials() const {
    std::vector<const ScaleTrial*> out;
    for (const Diagnosed& found : all_) out.push_back(&found.c.birth.trial);
    return out;
  }
  Finding fold() const {
    Finding f = make_finding(all_.front());
    Steps steps;
    Travels travels;
    std::vector<std::string> places;
    for (const Diagnosed& found : all_) {
      const Birth& birth = found.c.birth;
      steps.add(birth);
      travels.add(found);
      if (birth.events.first() == f.bad_steps.first && &found != &all_.front()) tell_sinks(f, found.c);
      std::string place = place_text(birth.at, found.c.names);
      if (&found != &all_.front() && std::find(places.begin(), places.end(), place) == places.end())
        places.push_back(std::move(place));
    }
    std::erase(places, place_text(all_.front().c.birth.at, all_.front().c.names));
    steps.tell(f);
    if (!places.empty()) f.evidence.push_back("Also overflowed: " + join(places, 6) + ".");
    travels.tell(f);
    return f;
  }

 private:
  std::vector<Diagnosed> all_;
};

// Overflows of a step before which training as a whole had grown are one finding about that growth.
void blame_growth(std::vector<Finding>& findings, const Growth& growth) {
  auto overflowed = [&](const Finding& f) {
    return f.cls == FindingClass::kOverflow && f.severity == Severity::kFault && growth.holds(began(f));
  };
  const auto first = std::find_if(findings.begin(), findings.end(), overflowed);
  if (first == findings.end()) return;
  report_exploding(*first, growth);
  std::vector<std::string> others;
  for (const Finding& f : findings) {
    if (!overflowed(f)) continue;
    others.push_back(f.place.op.value_or("") + (f.place.module ? " in " + *f.place.module : "") +
                     (began(f) == growth.step ? "" : fmt::format(" (step {})", began(f))));
    const bool later = f.bad_steps.first > first->bad_steps.last;
    if (later) first->bad_steps.unwatched += f.bad_steps.unwatched;
    first->bad_steps.count = later ? first->bad_steps.count + f.bad_steps.count : std::max(first->bad_steps.count, f.bad_steps.count);
    first->bad_steps.last = std::max(first->bad_steps.last, f.bad_steps.last);
  }
  if (others.empty()) return;
  first->evidence.push_back("Also overflowed: " + join(others, 6) + ".");
  std::erase_if(findings, overflowed);
}

// Overflows that did no harm because something absorbed them. Only magnitude destroys: 1 / Inf of a true pole is exact.
void add_swallowed(std::vector<Finding>& findings, const ValueGraph& graph, Names& names, const FaultContext& context) {
  for (const Birth* birth : graph.swallowed()) {
    Diagnosed found = diagnose_birth(*birth, names, context);
    if (found.cls != FindingClass::kOverflow || (found.c.output->bad & kBadInf) == 0) continue;
    Finding f = make_finding(found);
    const auto same = std::find_if(findings.begin(), findings.end(), [&](const Finding& known) {
      return known.cls == f.cls && known.place.op == f.place.op && known.place.module == f.place.module &&
             known.place.phase == f.place.phase;
    });
    if (same != findings.end()) {  // it did harm in another step
      same->evidence.push_back(fmt::format("In step {} the same overflow disappeared in {}.",
                                           birth->swallow->steps.first(), place_text(birth->swallow->at, names)));
      continue;
    }
    // The usual cure of masks that were added: what they take out stays out, at the format's lowest number again.
    const ValueStats& out = found.c.output->stats;
    const bool replaced = names.op(birth->swallow->at.op).has(kReplaces);
    if (replaced && out.pos_inf == 0 && out.nan == 0 && adds_masks(found.c)) continue;
    report_swallowed(f, *birth->swallow, names);
    findings.push_back(std::move(f));
  }
}

// The scale cannot recover: told with the origin underneath, which is `found` by the caller where one was seen.
Finding collapse_finding(std::optional<Finding> origin, const ScalerWatch::CollapseState& state) {
  Finding f = origin ? std::move(*origin) : Finding{};
  if (!origin) f.place.step = state.step;
  f.occurrence_count = 1;
  f.first_step = f.last_step = state.step;
  report_collapse(f, state);
  return f;
}

// A fault that no scale can cure keeps the scaler skipping: one story, which begins where the fault does.
Finding collapse_under_fault(const Finding& fault, const ScalerWatch::CollapseState& state) {
  Finding f = collapse_finding(fault, state);
  f.occurrence_count = fault.occurrence_count;
  f.first_step = began(fault);
  f.last_step = std::max(f.first_step, fault.last_step);
  if (f.title.starts_with("The ")) f.title[0] = 't';
  f.title = fault.title + "; " + f.title;
  f.explanation += " " + fault.explanation;
  if (!fault.cause.empty()) f.cause = fault.cause + "; the loss scale collapsed because of it";
  std::erase_if(f.advice, [&](const Advice& own) {
    return std::any_of(fault.advice.begin(), fault.advice.end(), [&](const Advice& one) { return one.id == own.id; });
  });
  f.advice.insert(f.advice.begin(), fault.advice.begin(), fault.advice.end());
  return f;
}

}  // namespace

std::vector<Finding> find_faults(const ValueGraph& graph, Names& names, const FaultContext& context) {
  const ScalerWatch& scaler = context.scaler;
  const auto& collapse = scaler.collapse();
  const bool scale_lost = collapse && (collapse->kind == ScalerWatch::Collapse::kZero ||
                                       collapse->kind == ScalerWatch::Collapse::kInfinite);
  ScaledOverflows calibrated, open, ruined;
  std::vector<const Birth*> origins = graph.origins();
  std::sort(origins.begin(), origins.end(), earlier);
  std::vector<FindingGroup> groups;
  for (const Birth* birth : origins) {
    if (context.others.carried.contains(birth->id)) continue;
    Diagnosed found = diagnose_birth(*birth, names, context);
    const Excuse excuse = excuse_of(found.c, found.cls, scaler);
    if (excuse != Excuse::kNone) {
      (excuse == Excuse::kOpen ? open : calibrated).add(std::move(found));
      continue;
    }
    if (scale_lost && birth->at.phase == Phase::kUnscale) {  // 0 * (1 / 0): the scale's doing
      ruined.add(std::move(found));
      continue;
    }
    blame_scale(found.c, found.cls, found.diagnosis, scaler);
    const auto same =
        std::find_if(groups.begin(), groups.end(), [&](const FindingGroup& group) { return group.holds(found); });
    if (same != groups.end()) {
      same->add(found);
      continue;
    }
    const auto forward =
        std::find_if(groups.begin(), groups.end(), [&](const FindingGroup& group) { return group.has_derivative(found); });
    if (forward != groups.end()) {
      forward->add_derivative(found);
    } else if (const Birth* hidden = set_up_by(found.c, graph); hidden == nullptr) {
      groups.emplace_back(std::move(found));
    } else if (names.op(hidden->swallow->at.op).has(kReplaces)) {
      groups.emplace_back(diagnose_birth(*hidden, names, context), found);
    } else {
      add_if(found.diagnosis.evidence, set_up_text(found.c, *hidden));
      groups.emplace_back(std::move(found));
    }
  }
  std::vector<Finding> findings;
  for (FindingGroup& group : groups) findings.push_back(group.finish());
  for (const Growth& growth : context.growths) blame_growth(findings, growth);
  add_swallowed(findings, graph, names, context);
  const bool faults = !findings.empty();
  add_harmless_changes(findings, graph, names);
  if (collapse) {
    std::optional<Finding> origin;
    const bool skips = collapse->kind != ScalerWatch::Collapse::kNeverGrows;
    for (const ScaledOverflows* candidates : {&open, &calibrated}) {
      if (!origin && skips && !candidates->empty()) {
        Finding f = candidates->fold();
        if (ended(f) >= collapse->streak_from) origin = std::move(f);
      }
    }
    const auto fault = std::find_if(findings.begin(), findings.end(), [&](const Finding& f) {
      return skips && f.severity == Severity::kFault && ended(f) >= collapse->streak_from;
    });
    if (!origin && collapse->fault && fault != findings.end()) {
      Finding told = collapse_under_fault(*fault, *collapse);
      findings.erase(fault);
      findings.insert(findings.begin(), std::move(told));
    } else {
      if (!origin && fault != findings.end()) origin = *fault;
      if (!origin && !ruined.empty()) origin = ruined.fold();
      findings.push_back(collapse_finding(std::move(origin), *collapse));
    }
  }
  if (!calibrated.empty()) {
    findings.push_back(calibrated.fold());
    report_calibration(findings.back(), calibrated.trials(), scaler);
  }
  // With a fault at hand the streak needs no finding of its own.
  if (!open.empty() && !faults && !(collapse && collapse->fault)) {
    findings.push_back(open.fold());
    report_open_streak(findings.back(), open.trials());
  }
  report_misuses(findings, scaler);
  return findings;
}

}  // namespace nanhunt::analyze
