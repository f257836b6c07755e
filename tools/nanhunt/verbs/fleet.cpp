// SPDX-License-Identifier: Apache-2.0
// nanhunt fleet: one verdict over the ranks of a run, from their digests and a few of their traces.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "src/fleet/fleet_text.h"
#include "src/fleet/read_digests.h"
#include "src/fleet/verdict.h"
#include "tools/nanhunt/progress.h"
#include "tools/nanhunt/terminal.h"
#include "tools/nanhunt/verb.h"

namespace nanhunt::cli {
namespace {

class FleetVerb final : public Verb {
 public:
  void declare(Options options) override {
    options.add("RUN", run_, "Run folder: of each rank a digest, a trace, or both").required();
    options.add_flag("--json", json_, "The verdict as JSON (schema nanhunt.fleet)");
    options.add_flag("--digests-only", digests_only_, "Reads no trace: neither for a digest that is missing nor for the details");
    options.add("--jobs", jobs_, "Ranks to read at a time; 0: one for each processor").show_default();
  }

  int run() override {
    fleet::ReadOptions options;
    options.make = !digests_only_;
    options.workers = jobs_;
    std::unique_ptr<Progress> progress;
    options.progress = [&](std::size_t done, std::size_t all) {
      if (progress == nullptr) progress = std::make_unique<Progress>("digests", all);
      progress->update(done, "");
    };
    auto digests = fleet::read_digests(run_, options);
    progress.reset();
    if (!digests) return fail(digests.status());
    const std::uint64_t made = digests->made;
    const fleet::FleetVerdict verdict = fleet::judge_fleet(std::move(*digests));
    if (made > 0) say(made == 1 ? "made 1 digest from its trace" : "made " + std::to_string(made) + " digests from their traces");
    return print_and_return(json_ ? render_fleet_json(verdict) : text_of(verdict), exit_status(verdict));
  }

 private:
  std::string text_of(const fleet::FleetVerdict& verdict) const {
    TextOptions options;
    options.colour = stdout_has_colour();
    options.width = stdout_width();
    options.run = run_;
    std::optional<Analysis> opened;
    if (!digests_only_ && !verdict.to_open.empty()) {
      AnalyzeOptions few;
      few.ranks = verdict.to_open;
      if (auto analysis = analyze_run(run_, few)) opened = std::move(*analysis);  // digests alone may be there
    }
    return render_fleet_text(verdict, opened ? &*opened : nullptr, options);
  }

  static ExitStatus exit_status(const fleet::FleetVerdict& verdict) {
    if (verdict.status == VerdictStatus::kFault) return kFoundFault;
    if (!verdict.digests.unread.empty()) return kDamagedInput;
    return verdict.status == VerdictStatus::kInconclusive ? kInconclusive : kDone;
  }

  std::string run_;
  unsigned jobs_ = 0;
  bool json_ = false, digests_only_ = false;
};

const RegisterVerb<FleetVerb> kFleet{{.order = 35,
                                      .name = "fleet",
                                      .summary = "One verdict over many ranks, from a small digest of each",
                                      .exit_statuses = "  0  no fault\n"
                                                       "  1  a fault\n"
                                                       "  2  wrong usage\n"
                                                       "  3  no digest and no trace can be read\n"
                                                       "  4  some digests are damaged, and no fault is in the others\n"
                                                       "  5  inconclusive; also where ranks are missing\n"
                                                       "  6  the answer could not be written"}};

}  // namespace
}  // namespace nanhunt::cli
