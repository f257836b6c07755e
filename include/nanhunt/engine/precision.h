// SPDX-License-Identifier: Apache-2.0
// fp32 against recipes of mixed precision: the same weights, batches and steps in each, what came of it, what it took,
// which layers lose most, and which must stay in fp32.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "nanhunt/engine/workloads.h"
#include "nanhunt/precision.h"

namespace nanhunt::engine {

struct PrecisionOptions {
  std::uint64_t seed = 1;
  std::uint32_t steps = 0;                       // 0: the workload's
  std::int64_t batch_size = 0;                   // 0: the workload's
  std::vector<const NamedRecipe*> recipes = {};  // beside fp32, which always comes first
  std::vector<std::int64_t> batch_sizes = {};    // for which memory and time are measured too; the workload takes them
  std::uint32_t sweep_steps = 10;                // timed ones of each
  std::uint32_t probes = 4;                      // steps at which layers are compared
  double tolerance = 0.05;                       // of what fp32 learnt, by which a final loss may be higher, at least
  std::function<double()> seconds = {};          // a clock that only moves on; none: the machine's
  // Told what is being done, and how far it is.
  std::function<void(std::string_view what, std::uint32_t done, std::uint32_t of)> progress = {};
};

// Trains the workload in fp32 and in each recipe, step by step in turn, so that a busy machine is shared by all; and
// fp32 from another seed, for a loss that differs by no more than that is as good. Then, at some steps of fp32's
// course, computes one step in fp32 and in the recipe from the same weights, buffers, random numbers and batch, and
// compares what each layer made; and computes it with one layer alone in the recipe's format, and with one layer alone
// in fp32. Where a recipe falls short of fp32 it trains it again with the layers that did most
// harm kept in fp32 (Module::keep_fp32), the fewest first, and says what has restored the loss. All but times is the
// same bits at every call. A recipe that refuses the workload is said so; what fp32 throws is thrown.
PrecisionComparison compare_precision(const Workload& workload, const PrecisionOptions& options);

}  // namespace nanhunt::engine
