// SPDX-License-Identifier: Apache-2.0
// What lasts from step to step (parameters, state, buffers), and changed although nothing that is watched wrote it and
// torch's own count of writes stands still. Whoever writes by torch is heard, or at least counted.
//
// What the host can read is compared here. What lies on a device the library compares there (NANHUNT_ROW_CHECK) with
// what the last op or mark saw, and tells when that has come.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "hooks/torch/tap/rows/rows.h"

namespace nanhunt::tap {

class Lasting {
 public:
  Lasting(Rows& rows, const Recording& to, State*& state) : rows_(rows), to_(to), state_(state) {}

  // Looks at them before something reads them. `on_devices`: those there too. `copies`: that is what they are.
  void look(const std::vector<at::Tensor>& tensors, bool on_devices, bool copies = false) {
    Words checks;
    std::vector<Seen> all = described(tensors, copies, state_->step);
    read(all, NANHUNT_READ_CHECKSUM);
    // Most show what they showed: how large that is was read then.
    std::vector<Seen*> others;
    for (Seen& now : all) {
      const auto known = seen_.find(now.key);
      if (known != seen_.end() && known->second.word == now.word && known->second.checksum == now.checksum) {
        now.amax = known->second.amax;
        now.bad = known->second.bad;
      } else {
        others.push_back(&now);
      }
    }
    read(others, NANHUNT_READ_NORM);
    for (const Seen& now : all) {
      const auto known = seen_.find(now.key);
      const bool first = known == seen_.end() || known->second.word != now.word;
      const Seen before = first ? now : known->second;
      keep(now);
      if (first) continue;  // new, another storage (p.data = q), or written by what is watched
      // Compiled code counts its write before it writes.
      const bool is_counted = before.version != now.version && before.version != kUncounted &&
                              (now.away || before.checksum != now.checksum);
      if (is_counted || before.data != now.data) {
        written(now);  // by torch, where nothing is watched: compiled code, another thread
        ++rows_.notes["writes to parameters, state or buffers that no watched operation made"];
      } else if (now.away) {
        if (!on_devices) continue;
        if (const auto quad = rows_.describer.describe(now.tensor, true)) {
          checks.insert(checks.end(), {NANHUNT_ROW_CHECK, state_->step});
          put(checks, *quad);
        }
      } else if (before.checksum != now.checksum && (now.bad || Births::is_gross(before.amax, now.amax))) {
        state_->left_bad = 1;
        rows_.held.report_changed(now.tensor, before.step);
      } else if (before.checksum != now.checksum) {
        // Through NumPy, or a memory error: PyTorch's users do the first on purpose, so what stays as large is no finding.
        written(now);
        ++rows_.notes["writes to parameters, state or buffers past PyTorch, which left them finite"];
      }
    }
    if (!checks.empty()) rows_.send(checks);
    rows_.describer.release_hosts();
  }

  // They were written by what is watched.
  void note(const std::vector<at::Tensor>& tensors, bool copies = false) {
    std::vector<Seen> all = described(tensors, copies, state_->step + 1);
    read(all, NANHUNT_READ_NORM | NANHUNT_READ_CHECKSUM);
    for (Seen& now : all) {
      if (copies) now.version = kUncounted;
      keep(now);
    }
    if (seen_.size() <= room_) return;  // an optimizer may make its state anew in each step
    std::erase_if(seen_, [&](const auto& one) { return one.second.step < state_->step - 1; });
    room_ = std::max(room_, 2 * seen_.size());
  }

 private:
  static constexpr std::int64_t kTablesEvery = 64;
  static constexpr std::int64_t kUncounted = -1;  // torch counts the write of an op when the op has returned
  // The tensor: another one there shows other contents. Of a copy of a parameter, which is looked at through tensors of
  // ours: storage, offset, layout.
  using Key = std::tuple<const void*, std::int64_t, std::int64_t>;
  struct Seen {
    Key key;
    at::Tensor tensor;          // of this moment alone: what is kept holds none
    std::int64_t version = 0, word = 0, data = 0, layout = 0, step = 0;
    std::uint64_t checksum = 0;
    double amax = 0;
    bool bad = false, away = false;
  };

  void keep(const Seen& now) {
    Seen& kept = seen_[now.key];
    kept = now;
    kept.tensor.reset();
  }

  void written(const Seen& now) {
    Identity& identity = *rows_.describer_identity(now.tensor);
    Seen& kept = seen_[now.key];
    kept.word = rows_.describer.identities.bump(identity);
  }

  // Those that can be read, without what is read; tables of which few rows are written where `step` is one of kTablesEvery.
  std::vector<Seen> described(const std::vector<at::Tensor>& tensors, bool copies, std::int64_t step) {
    std::vector<Seen> found;
    found.reserve(tensors.size());
    for (const at::Tensor& t : tensors) {
      if (!t.is_floating_point() || t.numel() == 0 || t.layout() != c10::kStrided || !t.has_storage() ||
          t.device().is_meta() || t.key_set().has(c10::DispatchKey::Python))
        continue;
      const bool away = !t.device().is_cpu();
      const auto quad = rows_.describer.describe(t, !away);
      if (!quad || (!away && quad->data == 0) || (quad->identity->by_rows && step % kTablesEvery != 0)) continue;
      Seen seen;
      seen.tensor = t;
      seen.version = t.is_inference() ? 0 : t._version();
      seen.word = quad->word;
      seen.layout = quad->layout;
      seen.key = {t.unsafeGetTensorImpl(), 0, 0};
      if (copies) seen.key = {t.storage().unsafeGetStorageImpl(), quad->offset, quad->layout};
      seen.data = away ? static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(t.storage().unsafeGetStorageImpl()->data()))
                       : quad->data;
      seen.step = state_->step;
      seen.away = away;
      found.push_back(std::move(seen));
    }
    return found;
  }

  void read(std::vector<Seen>& some, std::int32_t what) {
    std::vector<Seen*> all;
    all.reserve(some.size());
    for (Seen& one : some) all.push_back(&one);
    read(all, what);
  }
  void read(const std::vector<Seen*>& some, std::int32_t what) {
    Words pairs;
    std::vector<Seen*> here;
    for (Seen* one : some) {
      if (one->away) continue;
      here.push_back(one);
      pairs.push_back(one->data);
      pairs.push_back(one->layout);
    }
    if (here.empty() || to_.read == nullptr) return;
    std::vector<nanhunt_reading> readings(here.size());
    std::size_t bad = 0;
    if (to_.read(to_.self, pairs.data(), here.size(), what, readings.data(), &bad) != NANHUNT_OK) return;
    for (std::size_t i = 0; i < here.size(); ++i) {
      if ((what & NANHUNT_READ_CHECKSUM) != 0) here[i]->checksum = readings[i].checksum;
      if ((what & NANHUNT_READ_NORM) == 0) continue;
      here[i]->bad = readings[i].bad != 0;
      here[i]->amax = readings[i].amax;
    }
  }

  Rows& rows_;
  const Recording& to_;
  State*& state_;
  std::map<Key, Seen> seen_;
  std::size_t room_ = 8192;  // entries before those of tensors that are gone are dropped
};

}  // namespace nanhunt::tap
