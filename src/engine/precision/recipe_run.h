// SPDX-License-Identifier: Apache-2.0
// A workload in one recipe: its trainer, from the workload's start or from weights of another one, with some layers
// kept in fp32.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "nanhunt/engine/workloads.h"
#include "nanhunt/precision.h"

namespace nanhunt::engine {

// What one step begins with.
struct StartingPoint {
  std::uint32_t step = 0;
  std::vector<Tensor> parameters, buffers;  // copies, in the order of the model
  std::vector<std::uint64_t> random_positions;
  LossScaler::Saved scaler = {};  // empty: as it is made
};
StartingPoint copy_point(Trainer& trainer);

struct RecipePlan {
  const Workload* workload = nullptr;
  const NamedRecipe* recipe = nullptr;
  std::uint64_t seed = 1;
  std::int64_t batch_size = 0;
  std::uint32_t steps = 0;                          // a validation ends so many; 0: none
  std::set<std::string> kept = {};                  // paths of modules
  bool keep_all = false;                            // the whole model
  bool masters = false;                             // fp32 ones whatever the recipe has
  LossScaler::Saved scaler = {};                    // that it starts with; empty: as the recipe makes it
  std::map<std::string, DType> input_formats = {};  // to which a module's floating input is cast, by its path
};

// Counts answers of classes. What the loss sees is kept, and looked at when it is asked.
class AnswerCount {
 public:
  LossFunction around(LossFunction loss);
  void keep(bool on) { keeps_ = on; }
  // Of the training batches since the last call; of the validation. Nothing: the targets are not classes.
  std::optional<double> take_training();
  std::optional<double> take_validation();

 private:
  struct Seen {
    std::uint64_t right = 0, all = 0;
    std::optional<double> share();
  };
  static void count(const Tensor& output, const Tensor& targets, Seen& seen);
  void look();

  bool keeps_ = true;
  std::vector<std::pair<Tensor, Tensor>> kept_;  // of training: outputs and targets
  Seen training_, validation_;
};

// `answers`, if any, must outlive it. Throws std::invalid_argument where the recipe does not take the workload.
std::unique_ptr<Trainer> make_in_recipe(const RecipePlan& plan, const StartingPoint* from = nullptr,
                                        AnswerCount* answers = nullptr);

// The loss of the workload's validation with these weights in an fp32 model, without autocast.
ValidationResult validate_in_fp32(const RecipePlan& plan, const StartingPoint& weights);

struct Course {
  std::vector<PrecisionStep> steps;
  std::string ended_by, refused;
  std::optional<double> validation_loss;  // that of the last step, in the recipe's own format
};
// Trains plan.steps steps, or until training ends; then validates, where there is data for it.
Course train_course(const RecipePlan& plan);

}  // namespace nanhunt::engine
