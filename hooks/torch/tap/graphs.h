// SPDX-License-Identifier: Apache-2.0
// A compiled graph, heard as one op: what it is given, before it runs, and what it gives. Nothing of it is kept alive.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "hooks/torch/tap/held/births.h"
#include "hooks/torch/tap/plan.h"
#include "hooks/torch/tap/rows/given.h"
#include "hooks/torch/tap/rows/rows.h"

namespace nanhunt::tap {

class CompiledGraphs {
 public:
  static constexpr const char* kSchema = "compiled_graph(Tensor[] inputs) -> Tensor[]";

  explicit CompiledGraphs(Rows& rows) : rows_(rows) {}

  void begin(const c10::List<at::Tensor>& inputs) {
    rows_.held.launch_looks();  // what it writes is not known yet
    if (plan_ == nullptr) {
      const auto op = c10::Dispatcher::singleton().findSchema({"nanhunt_tap::compiled_graph", ""});
      if (op) {
        plan_ = std::make_unique<Plan>(plans::read(*op));
        plan_->op = "compiled_graph";
      }
    }
    auto given = std::make_unique<Given>();
    if (plan_ != nullptr) {
      rows_.before(*plan_, {inputs}, *given);
      std::vector<const at::Tensor*> bad;
      if (!given->inputs_finite) given->old = Births::taken(*plan_, given->args, {}, rows_.describer.identities, 0, bad);
      given->args = {c10::IValue(c10::List<at::Tensor>())};
    }
    running_.push_back(std::move(given));
  }

  // `outputs`: with what it was given and has written, the last `written` of them. `site`: of the call.
  void end(const c10::List<at::Tensor>& outputs, std::size_t written, std::int64_t site) {
    if (running_.empty()) return;
    const std::unique_ptr<Given> given = std::move(running_.back());
    running_.pop_back();
    if (plan_ == nullptr) return;
    Identities& identities = rows_.describer.identities;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const at::Tensor t = outputs.get(i);
      if (!t.has_storage()) continue;
      Identity& identity = identities.of(t.storage().unsafeGetStorageImpl());
      // A CUDA graph gives the same memory each time.
      if (i >= outputs.size() - written || !was_given(*given, identity.word >> kVersionBits)) identities.bump(identity);
    }
    rows_.after(*plan_, *given, {outputs}, site);
    rows_.held.launch_looks();  // a replay writes over it unheard
  }
  // It has raised.
  void drop() {
    if (!running_.empty()) running_.pop_back();
  }

 private:
  static bool was_given(const Given& given, std::int64_t storage) {
    for (std::size_t at = 1; at < given.words.size(); at += kValueWords)
      if (given.words[at] >> kVersionBits == storage) return true;
    return false;
  }

  Rows& rows_;
  std::unique_ptr<Plan> plan_;
  std::vector<std::unique_ptr<Given>> running_;  // they nest
};

}  // namespace nanhunt::tap
