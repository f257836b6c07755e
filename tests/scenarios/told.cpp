// SPDX-License-Identifier: Apache-2.0
#include "tests/scenarios/told.h"

#include <optional>
#include <ostream>
#include <sstream>

namespace nanhunt::testing_support {
namespace {

std::ostream& operator<<(std::ostream& out, const std::optional<std::string>& text) {
  return out << text.value_or("-");
}

}  // namespace

std::string told(const Analysis& analysis) {
  std::ostringstream out;
  out << verdict_status_name(analysis.verdict.status) << " " << analysis.verdict.origin << ": "
      << analysis.verdict.headline << "\n"
      << analysis.coverage.steps << " steps, " << analysis.coverage.ops << " ops, " << analysis.coverage.values
      << " values\n";
  for (const Finding& f : analysis.findings) {
    out << f.id << " " << finding_class_name(f.cls) << " " << severity_name(f.severity) << " "
        << confidence_name(f.confidence) << (f.benign ? " benign " : " ") << phase_name(f.place.phase) << " step "
        << f.place.step << " micro-batch " << f.place.micro_batch << " module " << f.place.module << " op "
        << f.place.op << " seq " << f.place.seq << "\n  " << f.title << "\n  " << f.explanation << "\n  in "
        << f.occurrence_count << " steps " << f.first_step << ".." << f.last_step << ", bad " << f.bad_steps.count
        << ", " << f.bad_elements << " elements, scale " << f.scale << "\n";
    for (const std::string& line : f.evidence) out << "  evidence: " << line << "\n";
    for (const std::string& sink : f.sinks) out << "  sink: " << sink << "\n";
    for (const std::string& module : f.also) out << "  also: " << module << "\n";
    for (const std::int64_t sample : f.samples) out << "  sample: " << sample << "\n";
    for (const Advice& a : f.advice) {
      out << "  advice: " << a.id << (a.verified ? *a.verified ? " works " : " does not help " : " ") << a.text << " "
          << a.evidence << "\n";
    }
  }
  return out.str();
}

}  // namespace nanhunt::testing_support
