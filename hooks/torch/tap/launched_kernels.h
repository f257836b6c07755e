// SPDX-License-Identifier: Apache-2.0
// Kernels that the program launches past the dispatcher, each heard as one op: what it was given, and what of that it wrote.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hooks/torch/tap/plan.h"
#include "hooks/torch/tap/rows/given.h"
#include "hooks/torch/tap/rows/rows.h"

namespace nanhunt::tap {

class LaunchedKernels {
 public:
  static constexpr const char* kSchema =
      "launched_kernel(Tensor[] read, Tensor(a!)[] written, *, Tensor(b!)[] fresh) -> ()";

  explicit LaunchedKernels(Rows& rows) : rows_(rows) {}

  // On the host what it writes is seen by a checksum. On a device it may write all that is no weight, and in an optimizer
  // weights too. Memory that nothing has written yet is a place for results.
  void begin(const std::string& name, const c10::List<at::Tensor>& tensors) {
    running_.emplace_back();
    Running& running = running_.back();
    rows_.held.launch_looks();
    running.plan = plan_of(name);
    if (running.plan == nullptr) return;
    c10::List<at::Tensor> read, written, fresh;
    for (const at::Tensor& t : tensors) {
      if (!t.has_storage() || t.layout() != c10::kStrided) continue;
      const Identity* const known = rows_.describer.identities.find(t.storage().unsafeGetStorageImpl());
      const bool is_kept = t.device().is_cpu() ? !Describer::holds(t) : !rows_.is_in_optimizer() && rows_.copies.is_weights(t);
      if ((!t.is_floating_point() && !t.is_complex()) || is_kept) {
        read.push_back(t);
      } else if (known != nullptr && known->is_unwritten()) {
        fresh.push_back(t);
      } else {
        written.push_back(t);
      }
    }
    running.given = std::make_unique<Given>();
    rows_.before(*running.plan, {read, written, fresh}, *running.given);
    for (const Given::Written& one : running.given->written) running.checksums.push_back(one.at < 0 ? 0 : checksum_of(one.tensor));
  }

  void end(std::int64_t site) {
    if (running_.empty()) return;
    Running running = std::move(running_.back());
    running_.pop_back();
    if (running.given == nullptr) return;
    Given& given = *running.given;
    for (std::size_t i = given.written.size(); i-- > 0;) {
      const Given::Written& one = given.written[i];
      if (one.at < 0 || !one.tensor.device().is_cpu() || checksum_of(one.tensor) != running.checksums[i]) continue;
      const auto quad = rows_.describer.describe(one.tensor, true);
      if (quad) given.words[static_cast<std::size_t>(one.at)] = quad->data;
      given.key[static_cast<std::size_t>(one.at) / kValueWords] = 8 * one.arg->index + kAsRead;
      given.written.erase(given.written.begin() + static_cast<std::ptrdiff_t>(i));
    }
    for (const Given::Written& one : given.written) rows_.note_written_unheard(one.tensor);
    rows_.held.begin_reported();
    rows_.after(*running.plan, given, {}, site);
    rows_.held.launch_looks();
  }
  // It has raised.
  void drop() {
    if (!running_.empty()) running_.pop_back();
  }

 private:
  struct Running {
    Plan* plan = nullptr;
    std::unique_ptr<Given> given;
    std::vector<std::uint64_t> checksums;  // of what may be written, on the host
  };

  Plan* plan_of(const std::string& name) {
    std::unique_ptr<Plan>& plan = plans_[name];
    if (plan == nullptr) {
      const auto op = c10::Dispatcher::singleton().findSchema({"nanhunt_tap::launched_kernel", ""});
      if (!op) return nullptr;
      plan = std::make_unique<Plan>(plans::read(*op));
      plan->op = name;
    }
    return plan.get();
  }

  // Of the memory that it lies in: two contents are taken for one once in 2^64.
  static std::uint64_t checksum_of(const at::Tensor& t) {
    if (!t.device().is_cpu() || t.numel() == 0 || !Describer::holds(t)) return 0;
    std::int64_t last = 0;
    for (std::int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
    const auto* const data = static_cast<const char*>(t.storage().data()) + t.storage_offset() * static_cast<std::int64_t>(t.itemsize());
    const std::size_t size = static_cast<std::size_t>(last + 1) * t.itemsize();
    std::uint64_t sum = size;
    for (std::size_t at = 0; at < size; at += sizeof sum) {
      std::uint64_t word = 0;
      std::memcpy(&word, data + at, std::min(sizeof word, size - at));
      sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
      sum ^= sum >> 29;
    }
    return sum;
  }

  Rows& rows_;
  std::map<std::string, std::unique_ptr<Plan>> plans_;
  std::vector<Running> running_;  // they nest
};

}  // namespace nanhunt::tap
