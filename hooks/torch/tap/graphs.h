// SPDX-License-Identifier: Apache-2.0
// A compiled graph, heard as one op: what it is given, before it runs, and what it gives. Nothing of it is kept alive.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
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

  // `kept`: of each input, whether who calls it keeps it as it is until the graph has run. Others may be freed or written
  // over by then: their memory is not read after this.
  void begin(const c10::List<at::Tensor>& inputs, const std::vector<bool>& kept) {
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
      const bool all_kept = std::find(kept.begin(), kept.end(), false) == kept.end();
      if (!all_kept && !given->inputs_finite)
        given->old = Births::taken(*plan_, given->args, {}, rows_.describer.identities, 0, bad);
      if (!all_kept) forget_memory(*given, inputs, kept);
      given->args = {c10::IValue(c10::List<at::Tensor>())};
    }
    running_.push_back({std::move(given), {}, {}});
  }

  // What a graph has made: NaN, something bad though it was given NaN, infinities that no healthy step had there.
  enum class Verdict : std::int32_t { kFinite = 0, kMadeNan = 1, kGivenNan = 2, kInfinite = 3 };

  // The verdict on a graph that has run. `outputs`: with what it was given and has written, the last `written` of them.
  // `site`: of the call.
  Verdict judge(const c10::List<at::Tensor>& outputs, std::size_t written, const c10::List<at::Tensor>& inputs, std::int64_t site) {
    if (running_.empty() || plan_ == nullptr || rows_.held.is_late()) return Verdict::kFinite;
    name_anew(outputs, written);
    std::uint8_t made = 0, had = 0;
    for (const at::Tensor& t : outputs) made |= look_at(t);
    if (made == 0) return Verdict::kFinite;
    Running& running = running_.back();
    for (const at::Tensor& t : inputs) {
      const std::uint8_t bits = t.has_storage() && Describer::holds(t) ? finite::bits_of(t).value_or(0) : 0;
      had |= bits;
      if (bits != 0) running.bad.push_back(rows_.describer_identity(t)->word);
    }
    running.given->old |= had;
    if ((had & finite::kNan) != 0) return Verdict::kGivenNan;
    if ((made & finite::kNan) != 0) return Verdict::kMadeNan;
    return rows_.held.births.is_new(*plan_, site) ? Verdict::kInfinite : Verdict::kFinite;
  }

  // Its row. `inside`: what was bad there. The row's number, if badness began in it; else -1.
  std::int64_t end(const c10::List<at::Tensor>& outputs, std::size_t written, const c10::List<at::Tensor>& inside, std::int64_t site) {
    if (running_.empty()) return -1;
    if (plan_ != nullptr) name_anew(outputs, written);
    Running running = std::move(running_.back());
    const std::unique_ptr<Given> given = std::move(running.given);
    running_.pop_back();
    if (plan_ == nullptr) return -1;
    if (!inside.empty()) drop_inputs(*given, running.bad);  // what is inside stands for them
    for (const at::Tensor& t : inside) {
      const auto quad = rows_.describer.describe(t, true);
      if (!quad) continue;
      put(given->words, *quad);
      given->key.push_back(kAsTensor);
      given->old |= finite::bits_of(t).value_or(0);
      given->inputs_finite = false;
    }
    for (std::size_t i = outputs.size() - written; i < outputs.size(); ++i) rows_.note_written_unheard(outputs.get(i));
    rows_.held.begin_reported();
    rows_.after(*plan_, *given, {outputs}, site);
    rows_.held.launch_looks();  // a replay writes over it unheard
    return rows_.held.began() ? static_cast<std::int64_t>(rows_.last_reported()) : -1;
  }
  // It has raised.
  void drop() {
    if (!running_.empty()) running_.pop_back();
  }

 private:
  void forget_memory(Given& given, const c10::List<at::Tensor>& inputs, const std::vector<bool>& kept) {
    Words gone;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (kept[i]) continue;
      if (const auto quad = rows_.describer.describe(inputs.get(i), false)) gone.push_back(quad->word);
    }
    std::sort(gone.begin(), gone.end());
    for (std::size_t at = 0; at + 1 < given.words.size(); at += kValueWords)
      if (std::binary_search(gone.begin(), gone.end(), given.words[at + 1])) given.words[at] = 0;
  }
  // What it has made is looked at once.
  std::uint8_t look_at(const at::Tensor& t) {
    if (!t.has_storage() || !Describer::holds(t)) return 0;
    Identity& identity = rows_.describer.identities.of(t.storage().unsafeGetStorageImpl());
    if (identity.is_finite()) return 0;
    const std::optional<finite::Found> found = finite::look_at(t);
    if (found && finite::covers(t)) identity.note_bad(found->bits, found->amax);
    return found ? found->bits : 0;
  }
  // Contents are others now.
  void name_anew(const c10::List<at::Tensor>& outputs, std::size_t written) {
    Running& running = running_.back();
    Identities& identities = rows_.describer.identities;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const at::Tensor t = outputs.get(i);
      if (!t.has_storage()) continue;
      Identity& identity = identities.of(t.storage().unsafeGetStorageImpl());
      // A CUDA graph gives the same memory each time.
      if (std::find(running.named.begin(), running.named.end(), identity.word) != running.named.end()) continue;
      if (i >= outputs.size() - written || !was_given(*running.given, identity.word >> kVersionBits)) {
        if (rows_.held.ring.keeps()) rows_.held.ring.note_before(identity.word);
        identities.bump(identity);
      }
      running.named.push_back(identity.word);
    }
  }

  static void drop_inputs(Given& given, const Words& some) {
    Words words;
    Key key;
    for (std::size_t i = 0; i < given.key.size() && (i + 1) * kValueWords <= given.words.size(); ++i) {
      const auto quad = given.words.begin() + static_cast<std::ptrdiff_t>(i * kValueWords);
      if (std::find(some.begin(), some.end(), quad[1]) != some.end()) continue;
      words.insert(words.end(), quad, quad + kValueWords);
      key.push_back(given.key[i]);
    }
    given.words = std::move(words);
    given.key = std::move(key);
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
    Words named;  // contents that it has made or written
    Words bad;    // ... that it was given, and are not finite
  };
  std::vector<Running> running_;  // they nest
};

}  // namespace nanhunt::tap
