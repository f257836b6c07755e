// SPDX-License-Identifier: Apache-2.0
// Rows of collectives: what a rank gives is read before the call, what it got once the work has ended. Nobody here waits
// for a work to end.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "hooks/torch/tap/rows/rows.h"

namespace nanhunt::tap {

class Collectives {
 public:
  Collectives(Rows& rows, const Recording& to, State*& state) : rows_(rows), to_(to), state_(state) {}

  // One call of a process group, as a collective row has it.
  struct Call {
    std::string group;
    std::uint64_t call = 0;
    std::int32_t kind = 0, reduction = NANHUNT_NO_REDUCTION, peer = -1;
    std::vector<std::uint32_t> ranks;
  };

  // Reads what this rank is about to give: a collective may write over it. nullopt: no call between ranks.
  std::optional<Call> begin(const Plan& plan, const std::vector<c10::IValue>& args) {
    const Kind* kind = kind_of(plan);
    const c10::IValue* group = argument(plan, args, "process_group");
    if (kind == nullptr || group == nullptr || !group->isCustomClass()) return std::nullopt;
    Call call;
    call.group = group->toCustomClass<c10d::ProcessGroup>()->getGroupName();
    call.ranks = ranks_of(call.group);
    call.kind = kind->number;
    if (!kind->end.empty()) {
      const c10::IValue* at = argument(plan, args, kind->end);
      if (at != nullptr && at->isInt() && at->toInt() >= 0 && at->toInt() < static_cast<std::int64_t>(call.ranks.size()))
        call.peer = static_cast<std::int32_t>(call.ranks[static_cast<std::size_t>(at->toInt())]);
    }
    // All ranks count alike: collectives together, sends and receives by peer.
    const bool one_to_one = call.kind == NANHUNT_SEND || call.kind == NANHUNT_RECV;
    call.call = made_[{call.group, one_to_one ? call.kind : -1, one_to_one ? call.peer : -1}]++;
    if (call.kind == NANHUNT_ALLREDUCE || call.kind == NANHUNT_REDUCE || call.kind == NANHUNT_REDUCE_SCATTER)
      call.reduction = reduction_of(argument(plan, args, "reduce_op"));
    Words shares;
    if (const c10::IValue* given = kind->given.empty() ? nullptr : argument(plan, args, kind->given)) {
      each_tensor(*given, [&](const at::Tensor& t) {
        if (const auto quad = rows_.describer.describe(t, true)) put(shares, *quad);
      });
    }
    report(call, UINT64_MAX, shares);
    rows_.describer.release_hosts();
    return call;
  }

  void after(Plan& plan, Given& given, const c10::Stack& stack, std::optional<Call> call, std::int64_t site) {
    if (plan.waits) {
      report_finished(&plan, given.args);
      return;
    }
    Pending one{&plan, std::move(given), {stack.end() - static_cast<std::ptrdiff_t>(plan.returns), stack.end()},
                rows_.here(site), std::move(call), nullptr, nullptr, {}, false};
    if (!plan.functional && !one.results.empty() && one.results.back().isCustomClass())
      one.work = one.results.back().toCustomClass<c10d::Work>();
    bool on_cpu = true;
    for (const c10::IValue& value : one.given.args)
      each_tensor(value, [&](const at::Tensor& t) {
        on_cpu = on_cpu && t.device().is_cpu();
        if (t.has_storage()) one.storages.insert(t.storage().unsafeGetStorageImpl());
        if (state_->phase == NANHUNT_PHASE_LOSS) rows_.between.on_exchange(t, rows_.describer.identities);
      });
    if (one.work != nullptr && on_cpu) one.future = future_of(*one.work);
    pending_.push_back(std::move(one));
    report_finished(nullptr, {});
  }

  // Whether an op that is about to run is the backend's own, by which it brings a result where it is waited for: a copy of
  // what nobody has seen. gloo reduces all of a tensor, and then copies this rank's part.
  bool is_own(const Plan& plan, c10::ArrayRef<c10::IValue> args) {
    if (plan.op != "aten::copy_" || !args[0].isTensor() || !args[1].isTensor()) return false;
    const at::Tensor &to = args[0].toTensor(), &from = args[1].toTensor();
    if (!to.has_storage() || !from.has_storage() ||
        rows_.describer.identities.find(from.storage().unsafeGetStorageImpl()) != nullptr)
      return false;
    for (Pending& one : pending_)
      if (one.work != nullptr && one.storages.contains(to.storage().unsafeGetStorageImpl())) return one.brought = true;
    return false;
  }

  // Somebody is about to read this: what brought it has ended.
  void report_before_reading(const at::Tensor& t) {
    if (waiting() && t.defined()) report_finished(&kReads, c10::IValue(t));
  }

  bool waiting() const { return !pending_.empty(); }
  std::size_t pending() const { return pending_.size(); }
  void forget() { pending_.clear(); }

  // Rows of the collectives that have ended. `plan`, `args`: of the op that is about to run.
  void report_finished(const Plan* plan, c10::ArrayRef<c10::IValue> args) {
    const bool waited = plan != nullptr && plan->waits && !args.empty() && args[0].isTensor();
    std::set<const void*> read;
    if (plan != nullptr && !plan->collective)
      for (const c10::IValue& value : args)
        each_tensor(value, [&](const at::Tensor& t) {
          if (t.layout() == c10::kStrided && t.has_storage()) read.insert(t.storage().unsafeGetStorageImpl());
        });
    for (auto one = pending_.begin(); one != pending_.end();) {
      if (!ended(*one, waited ? &args[0].toTensor() : nullptr, read)) {
        ++one;
        continue;
      }
      Pending done = std::move(*one);
      one = pending_.erase(one);
      // What was given is described now: it was written meanwhile.
      Given given = described(*done.plan, done.given);
      rows_.held.hand_over();
      const std::uint64_t first = to_.next_seq(to_.self);
      rows_.simple(*done.plan, given, done.results, &done.where);
      const std::uint64_t end = to_.next_seq(to_.self);
      if (done.call) report(*done.call, end == first ? UINT64_MAX : end - 1, {});  // a barrier has no row
      rows_.describer.release_hosts();
    }
  }

 private:
  struct Kind {
    std::string_view name;
    std::int32_t number;
    std::string_view given, end;  // argument that this rank gives; that names the root or the other end
  };
  static constexpr Kind kKinds[] = {
      {"allreduce_", NANHUNT_ALLREDUCE, "tensors", ""},
      {"allreduce_coalesced_", NANHUNT_ALLREDUCE, "tensors", ""},
      {"broadcast_", NANHUNT_BROADCAST, "tensors", "root_rank"},
      {"reduce_", NANHUNT_REDUCE, "tensors", "root_rank"},
      {"allgather_", NANHUNT_ALLGATHER, "input_tensors", ""},
      {"_allgather_base_", NANHUNT_ALLGATHER, "input_tensor", ""},
      {"allgather_coalesced_", NANHUNT_ALLGATHER, "input_list", ""},
      {"allgather_into_tensor_coalesced_", NANHUNT_ALLGATHER, "inputs", ""},
      {"reduce_scatter_", NANHUNT_REDUCE_SCATTER, "input_tensors", ""},
      {"_reduce_scatter_base_", NANHUNT_REDUCE_SCATTER, "input_tensor", ""},
      {"reduce_scatter_tensor_coalesced_", NANHUNT_REDUCE_SCATTER, "inputs", ""},
      {"alltoall_", NANHUNT_ALLTOALL, "input_tensors", ""},
      {"alltoall_base_", NANHUNT_ALLTOALL, "input", ""},
      {"scatter_", NANHUNT_SCATTER, "input_tensors", "root_rank"},
      {"gather_", NANHUNT_GATHER, "input_tensors", "root_rank"},
      {"send", NANHUNT_SEND, "tensors", "dst"},
      {"recv_", NANHUNT_RECV, "", "src"},
      {"barrier", NANHUNT_BARRIER, "", ""}};

  inline static const Plan kReads{};

  struct Pending {
    Plan* plan;
    Given given;
    c10::Stack results;
    Place where;
    std::optional<Call> call;
    c10::intrusive_ptr<c10d::Work> work;
    c10::intrusive_ptr<c10::ivalue::Future> future;  // on the CPU: it is there before who waits for it goes on
    std::set<const void*> storages;
    bool brought = false;  // by an op of the backend's own
  };

  static const Kind* kind_of(const Plan& plan) {
    const std::string_view op = plan.op;
    const std::string_view name = op.substr(op.find("::") + 2);
    for (const Kind& kind : kKinds)
      if (kind.name == name) return &kind;
    return nullptr;
  }

  static const c10::IValue* argument(const Plan& plan, const std::vector<c10::IValue>& args, std::string_view name) {
    const Arg* arg = plan.find(name);
    return arg == nullptr ? nullptr : &args[static_cast<std::size_t>(arg->index)];
  }

  static std::int32_t reduction_of(const c10::IValue* value) {
    if (value == nullptr || !value->isCustomClass()) return NANHUNT_SUM;
    switch (static_cast<c10d::ReduceOp::RedOpType>(value->toCustomClass<c10d::ReduceOp>()->op_)) {
      case c10d::ReduceOp::SUM: return NANHUNT_SUM;
      case c10d::ReduceOp::AVG: return NANHUNT_AVG;
      case c10d::ReduceOp::PRODUCT: return NANHUNT_PRODUCT;
      case c10d::ReduceOp::MIN: return NANHUNT_MIN;
      case c10d::ReduceOp::MAX: return NANHUNT_MAX;
      default: return NANHUNT_NO_REDUCTION;
    }
  }

  const std::vector<std::uint32_t>& ranks_of(const std::string& group) {
    auto [known, added] = ranks_.try_emplace(group);
    if (added) {
      std::vector<std::uint32_t> ranks(1 << 16);
      const std::int64_t count = to_.group(group.c_str(), ranks.data(), static_cast<std::int64_t>(ranks.size()));
      ranks.resize(static_cast<std::size_t>(std::clamp<std::int64_t>(count, 0, static_cast<std::int64_t>(ranks.size()))));
      known->second = std::move(ranks);
    }
    return known->second;
  }

  static c10::intrusive_ptr<c10::ivalue::Future> future_of(c10d::Work& work) {
    try {
      return work.getFuture();
    } catch (const std::exception&) {
      return nullptr;  // not every backend has them
    }
  }

  // `waited`: the result that the run waits for now; null: for none. `read`: storages that an op is about to read: a run
  // does that only when they are there, which its work may not say yet.
  static bool ended(const Pending& one, const at::Tensor* waited, const std::set<const void*>& read) {
    if (!one.plan->functional) {
      if (one.work == nullptr || one.brought || one.work->isCompleted()) return true;
      if (one.future != nullptr && one.future->completed()) return true;
      for (const void* storage : one.storages)
        if (read.contains(storage)) return true;
      return false;
    }
    bool found = false;
    if (waited != nullptr)
      for (const c10::IValue& value : one.results)
        each_tensor(value, [&](const at::Tensor& t) {
          found = found || t.storage().unsafeGetStorageImpl() == waited->storage().unsafeGetStorageImpl();
        });
    return found;
  }

  // What is written and not given is not read: memory that nobody has written is no fault there.
  Given described(const Plan& plan, Given& taken) {
    const Kind* kind = kind_of(plan);
    Given given;
    given.args = std::move(taken.args);
    given.late = taken.late;
    for (const Arg& arg : plan.args) {
      if (arg.kind != ArgKind::kTensor && arg.kind != ArgKind::kTensors) continue;
      each_tensor(given.args[static_cast<std::size_t>(arg.index)], [&](const at::Tensor& t) {
        if (arg.written && kind != nullptr && arg.name != kind->given) {
          given.written.push_back({-1, {}, t, &arg});
          return;
        }
        const auto quad = rows_.describer.describe(t, !arg.blind && !arg.written);
        if (!quad) return;
        if (arg.written) given.written.push_back({static_cast<std::ptrdiff_t>(given.words.size()), *quad, t, &arg});
        given.key.push_back(8 * arg.index + kAsTensor);
        put(given.words, *quad);
      });
    }
    return given;
  }

  void report(const Call& call, std::uint64_t seq, const Words& shares) {
    rows_.held.hand_over();
    nanhunt_collective row{};
    row.struct_size = sizeof row;
    row.step = static_cast<std::uint32_t>(state_->step);
    row.seq = seq;
    row.group = call.group.c_str();
    row.call = call.call;
    row.kind = call.kind;
    row.reduction = call.reduction;
    row.peer = call.peer;
    row.ranks = call.ranks.data();
    row.rank_count = call.ranks.size();
    row.shares = shares.data();
    row.share_count = shares.size() / kValueWords;
    if (to_.collective(to_.self, &row) != NANHUNT_OK) ++rows_.refused;
  }

  Rows& rows_;
  const Recording& to_;
  State*& state_;
  std::map<std::tuple<std::string, std::int32_t, std::int32_t>, std::uint64_t> made_;
  std::map<std::string, std::vector<std::uint32_t>> ranks_;
  std::list<Pending> pending_;  // collectives that have not ended
};

}  // namespace nanhunt::tap
