// SPDX-License-Identifier: Apache-2.0
// A verb of the command line: one file that holds its options, its help and its work, and registers itself.
//
//   class InfoVerb final : public Verb { ... };
//   const RegisterVerb<InfoVerb> kInfo{{.order = 30, .name = "info", .summary = "...", .exit_statuses = "..."}};
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tools/nanhunt/options.h"

namespace nanhunt::cli {

class Verb {
 public:
  virtual ~Verb() = default;
  virtual void declare(Options options) = 0;
  virtual int run() = 0;                    // exit status
  // With VerbInfo::takes_command: the words after `--`, as they are. Before run().
  virtual void take_command(std::vector<std::string> command) { static_cast<void>(command); }
};

struct VerbInfo {
  int order = 0;  // place in --help
  std::string_view name;
  std::string_view summary;        // one line
  std::string_view exit_statuses;  // lines "N  meaning", shown below the options
  bool takes_command = false;      // what stands after `--` is somebody else's command line: never parsed
};

struct VerbEntry {
  VerbInfo info;
  std::unique_ptr<Verb> (*make)() = nullptr;
};

// By order, then name.
std::vector<VerbEntry> registered_verbs();
void register_verb(const VerbEntry& entry);

template <typename T>
struct RegisterVerb {
  explicit RegisterVerb(const VerbInfo& info) {
    register_verb({info, []() -> std::unique_ptr<Verb> { return std::make_unique<T>(); }});
  }
};

}  // namespace nanhunt::cli
