// SPDX-License-Identifier: Apache-2.0
// A server of the Model Context Protocol over stdio. A tool is called by running a verb of this program beside it, so that
// nothing in a trace can end the server, and a call can be cancelled.
#pragma once

#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/nanhunt/mcp/line_channel.h"
#include "tools/nanhunt/mcp/roots.h"
#include "tools/nanhunt/mcp/tools.h"

namespace nanhunt::cli::mcp {

struct ServerOptions {
  bool writes = false;         // tools that write are offered
  std::uint32_t seconds = 600;  // that one call may take
};

class Server {
 public:
  Server(LineChannel& channel, Roots roots, const ServerOptions& options)
      : channel_(channel), roots_(std::move(roots)), options_(options) {}

  void serve();  // until the client goes away

 private:
  using json = nlohmann::json;

  void take(const std::string& line);
  void handle(const json& message);
  void answer(const json& id, json result);
  void refuse(const json& id, int code, const std::string& why);
  json initialize(const json& params) const;
  json list_tools() const;
  void call(const json& id, const json& params);
  json run_list(const json& given) const;
  // What a verb printed, as a result of the tool; null: cancelled.
  json run_verb(const json& id, const Tool& tool, std::vector<std::string> words);
  // While a verb runs: whether the client cancelled it. Other requests wait.
  bool is_cancelled(const json& id);

  LineChannel& channel_;
  Roots roots_;
  ServerOptions options_;
  bool gone_ = false;        // nobody reads what is answered
  std::deque<json> waiting_;  // that came while a verb ran
};

}  // namespace nanhunt::cli::mcp
