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
    running_.push_back({std::move(given)});
  }

  // It has run. `outputs`: with what it was given and has written, the last `written` of them. Whether there is anything
  // bad among them though nothing among `inputs` is NaN; but for infinities that a healthy step had there. `site`: of the
  // call.
  bool went_bad(const c10::List<at::Tensor>& outputs, std::size_t written, const c10::List<at::Tensor>& inputs,
                std::int64_t site) {
    if (running_.empty() || plan_ == nullptr || rows_.held.is_late()) return false;
    name_anew(outputs, written);
    const auto bits = [](const c10::List<at::Tensor>& tensors) {
      std::uint8_t all = 0;
      for (const at::Tensor& t : tensors)
        if (t.has_storage() && Describer::holds(t)) all |= finite::bits_of(t).value_or(0);
      return all;
    };
    const std::uint8_t made = bits(outputs);
    if (made == 0 || (bits(inputs) & finite::kNan) != 0) return false;
    return (made & finite::kNan) != 0 || rows_.held.births.is_new(*plan_, site);
  }

  // Its row. `inner`: what was bad inside. Its number; -1: the recorder has not got it.
  std::int64_t end(const c10::List<at::Tensor>& outputs, std::size_t written, const c10::List<at::Tensor>& inner, std::int64_t site) {
    if (running_.empty()) return -1;
    if (plan_ != nullptr) name_anew(outputs, written);
    const std::unique_ptr<Given> given = std::move(running_.back().given);
    running_.pop_back();
    if (plan_ == nullptr) return -1;
    for (const at::Tensor& t : inner) {
      const auto quad = rows_.describer.describe(t, true);
      if (!quad) continue;
      put(given->words, *quad);
      given->key.push_back(kAsTensor);
      given->old |= finite::bits_of(t).value_or(0);
      given->inputs_finite = false;
    }
    rows_.held.begin_reported();
    rows_.after(*plan_, *given, {outputs}, site);
    rows_.held.launch_looks();  // a replay writes over it unheard
    return rows_.held.ring.keeps() ? -1 : static_cast<std::int64_t>(rows_.held.first_reported());
  }
  // It has raised.
  void drop() {
    if (!running_.empty()) running_.pop_back();
  }

 private:
  // Contents are others now.
  void name_anew(const c10::List<at::Tensor>& outputs, std::size_t written) {
    Running& running = running_.back();
    if (std::exchange(running.is_named, true)) return;
    Identities& identities = rows_.describer.identities;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const at::Tensor t = outputs.get(i);
      if (!t.has_storage()) continue;
      Identity& identity = identities.of(t.storage().unsafeGetStorageImpl());
      // A CUDA graph gives the same memory each time.
      if (i >= outputs.size() - written || !was_given(*running.given, identity.word >> kVersionBits)) identities.bump(identity);
    }
  }

  static bool was_given(const Given& given, std::int64_t storage) {
    for (std::size_t at = 1; at < given.words.size(); at += kValueWords)
      if (given.words[at] >> kVersionBits == storage) return true;
    return false;
  }

  Rows& rows_;
  std::unique_ptr<Plan> plan_;
  struct Running {
    std::unique_ptr<Given> given;
    bool is_named = false;  // what it has made and written
  };
  std::vector<Running> running_;  // they nest
};

}  // namespace nanhunt::tap
