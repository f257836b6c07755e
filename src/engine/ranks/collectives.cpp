// SPDX-License-Identifier: Apache-2.0
// What ranks exchange, on tensors: a group moves the bytes, the sums are made here.
#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/ranks.h"
#include "src/engine/ops/loops/elementwise.h"
#include "src/engine/ops/loops/strided.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

struct Larger {
  template <typename T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

std::size_t byte_count(const Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel()) * dtype_size(tensor.dtype());
}

std::span<std::byte> exchanged_bytes(Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.raw()), byte_count(tensor)};
}

void expect_exchangeable(std::string_view op, const Tensor& self) {
  expect_defined(op, self, "tensors");
  if (!self.is_contiguous()) fail(op, "a tensor without gaps", describe(self));
  if (self.requires_grad() && grad_enabled()) fail(op, "a tensor without gradient", "one with requires_grad");
}

// Of one call, as long as it runs.
class ToldCall {
 public:
  ToldCall(const Tensor& self, RankGroup& ranks, CollectiveKind kind, nanhunt::Reduction reduction, std::int32_t root)
      : phase_(Phase::kComm), module_("") {
    const std::uint64_t number = ranks.number_call();  // with or without observers
    if (!ops_observed()) return;
    notify_collective({kind, reduction, root, number, ranks.size(), &self});
  }

 private:
  ScopedPhase phase_;
  ScopedModule module_;
};

}  // namespace

Tensor& all_reduce_(Tensor& self, RankGroup& ranks, nanhunt::Reduction reduction) {
  constexpr std::string_view kOp = "c10d::allreduce_";
  expect_exchangeable(kOp, self);
  expect_floating(kOp, self, "tensors");
  if (reduction != nanhunt::Reduction::kSum && reduction != nanhunt::Reduction::kMax)
    fail(kOp, "sum or max", reduction_name(reduction));
  const ToldCall call(self, ranks, CollectiveKind::kAllReduce, reduction, /*root=*/-1);
  // Larger is no formula of devices.
  DeviceCommunicator* communicator =
      reduction == nanhunt::Reduction::kSum ? ranks.communicator(self.device()) : nullptr;
  const Device where = communicator != nullptr ? self.device() : Device{};
  Tensor mine = self.on(where);
  Tensor all = Tensor::empty({static_cast<std::int64_t>(ranks.size()), self.numel()}, self.dtype(), where);
  if (communicator != nullptr) {
    communicator->gather(device_data(mine), device_data(all), byte_count(mine));
  } else {
    ranks.gather(exchanged_bytes(mine), exchanged_bytes(all));
  }
  const auto share_of = [&](std::uint32_t rank) { return make_view(all, {self.numel()}, {1}, rank * self.numel()); };
  const Tensor sum = share_of(0);
  for (std::uint32_t rank = 1; rank < ranks.size(); ++rank) {
    if (reduction == nanhunt::Reduction::kSum) {
      map_into(sum, sum.dtype(), formulas::Add{}, sum, share_of(rank));
    } else {
      map_into(sum, sum.dtype(), Larger{}, sum, share_of(rank));
    }
  }
  copy_elements(self, make_view(sum.on(self.device()), self.sizes(), self.strides(), 0));
  return finish_in_place(kOp, op_math(self.dtype()), self, {});
}

Tensor& broadcast_(Tensor& self, RankGroup& ranks, std::uint32_t root) {
  constexpr std::string_view kOp = "c10d::broadcast_";
  expect_exchangeable(kOp, self);
  if (root >= ranks.size()) fail(kOp, "a root below " + std::to_string(ranks.size()), std::to_string(root));
  const ToldCall call(self, ranks, CollectiveKind::kBroadcast, nanhunt::Reduction::kNone,
                      static_cast<std::int32_t>(root));
  if (DeviceCommunicator* communicator = ranks.communicator(self.device())) {
    communicator->broadcast(device_data(self), byte_count(self), root);
  } else {
    Tensor contents = self.on({}).clone();
    ranks.broadcast(exchanged_bytes(contents), root);
    copy_elements(self, contents.on(self.device()));
  }
  return finish_in_place(kOp, self.dtype(), self, {});
}

}  // namespace nanhunt::engine
