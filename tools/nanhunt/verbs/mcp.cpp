// SPDX-License-Identifier: Apache-2.0
// nanhunt mcp: runs, reports and rows for agents, over the Model Context Protocol.
#include <signal.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "tools/nanhunt/mcp/server.h"
#include "tools/nanhunt/terminal.h"
#include "tools/nanhunt/verb.h"

namespace nanhunt::cli {
namespace {

class McpVerb final : public Verb {
 public:
  void declare(Options options) override {
    options.add_list("--root", roots_, "A folder in which runs may be read; several by giving it again (default: the working directory)").value_name("DIR");
    options.add_flag("--write", server_.writes, "Also offer `repro`, which writes into new folders below a root");
    options.add("--timeout", server_.seconds, "Seconds that one call may take").value_name("SECONDS").in_range(1u, 86400u).show_default();
  }

  int run() override {
    auto roots = mcp::Roots::open(roots_);
    if (!roots) return fail(roots.status());
    if (::isatty(STDIN_FILENO) != 0) say("this waits for a client of the Model Context Protocol on stdin; Ctrl-D ends it. `nanhunt mcp --help` says how one is set up.");
    ::signal(SIGPIPE, SIG_IGN);
    mcp::LineChannel channel(STDIN_FILENO, STDOUT_FILENO);
    mcp::Server(channel, std::move(*roots), server_).serve();
    return kDone;
  }

 private:
  std::vector<std::string> roots_;
  mcp::ServerOptions server_;
};

const RegisterVerb<McpVerb> kMcp{{.order = 95,
                                  .name = "mcp",
                                  .summary = "Serves runs and reports to agents, over the Model Context Protocol on stdin and stdout",
                                  .exit_statuses = "  0  the client went away\n  2  wrong usage\n  3  a folder of --root cannot be read\n"}};

}  // namespace
}  // namespace nanhunt::cli
