// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/verb.h"

#include <algorithm>
#include <tuple>

namespace nanhunt::cli {
namespace {

// A function's static: verbs register before main, in an order nobody promises.
std::vector<VerbEntry>& entries() {
  static std::vector<VerbEntry> list;
  return list;
}

}  // namespace

void register_verb(const VerbEntry& entry) { entries().push_back(entry); }

std::vector<VerbEntry> registered_verbs() {
  std::vector<VerbEntry> list = entries();
  std::sort(list.begin(), list.end(), [](const VerbEntry& a, const VerbEntry& b) {
    return std::tie(a.info.order, a.info.name) < std::tie(b.info.order, b.info.name);
  });
  return list;
}

}  // namespace nanhunt::cli
