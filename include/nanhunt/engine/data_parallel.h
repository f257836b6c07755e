// SPDX-License-Identifier: Apache-2.0
// Data parallel training as Apex's DistributedDataParallel does it: every rank has the whole model, trains on its share
// of a batch, and gradients are added up over the ranks in buckets while backward runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/module.h"
#include "nanhunt/engine/ranks.h"
#include "nanhunt/engine/tensor.h"

namespace nanhunt::engine {

// Apex's arguments and defaults. There are no streams: `num_allreduce_streams` is not here.
struct DataParallelOptions {
  std::shared_ptr<RankGroup> ranks = {};
  std::int64_t message_size = 10'000'000;              // a bucket is closed from so many elements on
  std::vector<std::string> allreduce_trigger_params = {};  // paths; a bucket ends with one of these instead
  bool delay_allreduce = false;                        // all of it after backward, one buffer for each dtype
  bool allreduce_always_fp32 = false;
  bool gradient_average = true;
  double gradient_predivide_factor = 1;
};

// From rank 0 to all, one buffer for each dtype.
void broadcast_all(const std::vector<Tensor>& tensors, RankGroup& ranks);

class DataParallel final : public GradientListener {
 public:
  // Broadcasts the parameters of rank 0, grouped by dtype.
  DataParallel(std::vector<NamedTensor> parameters, const DataParallelOptions& options);

  // Before each forward. The next backward finds the buckets anew where the set of trainable parameters has changed.
  void begin_forward();
  // Off: gradients add up on each rank by themselves (Apex's disable_allreduce).
  void enable_allreduce(bool on) { enabled_ = on; }
  // What a backward tells of while a ScopedGradientListener has this: gradients as they arrive, and its end. A bucket
  // is reduced when all its slots are filled, and those before it are. A slot filled twice, and one left empty at the
  // end, are std::logic_error.
  void on_gradient(const Tensor& leaf) override;
  void on_backward_end() override;
  // All gradients at once, one buffer for each dtype: Apex's Reducer.
  void reduce_all();

  struct Bucket {
    std::vector<std::size_t> slots;  // indices of parameters that train, in the order of arrival
    bool operator==(const Bucket&) const = default;
  };
  // As rank 0 had them in its first backward; empty before it.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  RankGroup& ranks() const { return *options_.ranks; }

 private:
  void record(std::size_t index);
  void adopt_structure();
  void fill(std::size_t index);
  void reduce(const std::vector<Tensor>& gradients);
  std::size_t index_of(const Tensor& leaf) const;

  std::vector<NamedTensor> parameters_;
  DataParallelOptions options_;
  bool enabled_ = true;
  std::vector<Tensor> active_;  // parameters that train
  std::vector<bool> triggers_;  // by active parameter
  bool refresh_ = true;         // the buckets are yet to be found
  bool arrived_ = false;        // a gradient, in this backward
  struct Open {
    std::vector<std::size_t> slots;
    std::int64_t elements = 0;
  };
  std::vector<Open> open_;  // by dtype: half, float, double, bfloat16
  std::vector<Bucket> buckets_;
  std::vector<std::pair<std::size_t, std::size_t>> place_;  // by active parameter: bucket, slot
  std::vector<std::vector<bool>> filled_;                   // by bucket and slot
  std::size_t next_bucket_ = 0;
};

}  // namespace nanhunt::engine
