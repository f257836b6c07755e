// SPDX-License-Identifier: Apache-2.0
// Recipes of mixed precision: what a library makes of an fp32 model and a bare optimizer. One recipe is one file in
// src/engine/amp/recipes, where its row says what it casts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "nanhunt/engine/module.h"
#include "nanhunt/engine/optimizer.h"
#include "nanhunt/engine/trainer.h"

namespace nanhunt::engine {

// What a Trainer is made of, but for its data and its loss.
struct TrainingSetup {
  std::unique_ptr<Module> model;
  OptimizerOptions optimizer;
  TrainerOptions options;
};
std::unique_ptr<Trainer> make_trainer(TrainingSetup setup, BatchSource batches, LossFunction loss);

// The arguments of Apex's amp.initialize. What is not given is the level's.
struct ApexOptions {
  bool enabled = true;
  std::string opt_level = "O1";
  std::optional<DType> cast_model_type = {};
  std::optional<bool> patch_torch_functions = {};
  std::optional<std::variant<bool, std::string>> keep_batchnorm_fp32 = {};  // or "True", "False"
  std::optional<bool> master_weights = {};
  std::optional<std::variant<double, std::string>> loss_scale = {};  // or "128.0", "dynamic"
  std::optional<DType> cast_model_outputs = {};                      // whatever the level
  std::uint32_t num_losses = 1;  // each with a scaler
  std::optional<double> min_loss_scale = {};
  double max_loss_scale = 0x1p24;
  bool delay_unscale = false;  // of every loss of a step but the last, in a Trainer
};

// Apex's property table: a level, and what was overridden.
struct ApexProperties {
  bool enabled = true;
  std::string opt_level;
  std::optional<DType> cast_model_type = {};   // of parameters, buffers and inputs; outputs become fp32
  bool patch_torch_functions = false;          // casts around ops, by Apex's lists
  std::optional<bool> keep_batchnorm_fp32 = {};
  std::optional<bool> master_weights = {};
  std::optional<double> loss_scale = {};       // none: dynamic
  bool operator==(const ApexProperties&) const = default;
};

// Throws std::invalid_argument with Apex's words on a level or an override that it refuses.
ApexProperties apex_properties(const ApexOptions& options);
// As Apex prints them, a line each: "opt_level              : O2".
std::string apex_properties_text(const ApexProperties& properties);

// What Apex keeps of a run: a scaler for each loss, and which optimizers skip their next step.
struct ApexAmpOptions {
  ApexScalerOptions scaler = {};
  std::uint32_t num_losses = 1;
  bool delay_unscale = false;  // in backward(), of every loss of a step but the last
};
class ApexAmp : public LossScaler {
 public:
  explicit ApexAmp(const ApexAmpOptions& options);
  ~ApexAmp() override;

  struct ScaleLoss {
    std::uint32_t loss_id = 0;
    bool delay_unscale = false;
  };
  // `with amp.scale_loss(loss, optimizers, loss_id, delay_unscale) as scaled: run(scaled)`. Before, gradients that are
  // there already are put aside, unless an earlier block has left them scaled; those of the model that have a master are
  // dropped, for the master's hold the sum. After, new ones are checked, divided by this loss's scale and added to the
  // others, and this scale is updated. A dynamic scale that found an overflow has each of the optimizers skip its next step.
  // With delay_unscale gradients stay scaled, until a later block without.
  void scale_loss(const Tensor& loss, const std::vector<Optimizer*>& optimizers, const ScaleLoss& options,
                  const std::function<void(const Tensor& scaled)>& run);
  void backward(const Tensor& loss, Optimizer& optimizer, const LossOfStep& which = {}) override;
  bool unscales_each_backward() const override;
  void unscale_(Optimizer&) override {}  // scale_loss has
  // False, with Apex's words in message(), where a block told it to skip. Gradients of masters are dropped by the next
  // block after it.
  bool step(Optimizer& optimizer) override;
  void update() override;  // each block has; ends the step

  double get_scale() const override;  // in a step: that of its last loss, with which it was scaled
  double loss_scale(std::uint32_t loss_id) const;
  // As amp.state_dict() has them: "loss_scaler0.loss_scale", "loss_scaler0.unskipped", ...
  Saved saved() const override;
  void load(const Saved& saved) override;

 private:
  struct State;
  std::string next(bool) override { return {}; }
  ScalerEvent described() const override;
  bool looks() const override;

  std::unique_ptr<State> state_;
};
std::unique_ptr<LossScaler> make_scaler(const ApexAmpOptions& options);

// amp.initialize of one model and its optimizer, which are in fp32 and bare: throws std::invalid_argument with Apex's
// words where they are not. With `enabled` false everything stays as it was. Otherwise the model is converted in place,
// its calls cast inputs and outputs, and optimizer and options get masters, the lists of ops and the scaler of the
// properties. Without masters a constant scale of 1 is no scaler: nothing is multiplied and nothing checked.
// The cast of a parameter under O1 lives to the end of forward and loss; Apex keeps it to the end of scale_loss.
TrainingSetup apex_initialize(TrainingSetup setup, const ApexOptions& options = {});
// Parameters and buffers as Apex saves those of a model that it has cast: copies, floating ones in fp32.
std::vector<NamedTensor> apex_saved_model(const Module& model);

// Functions of one's own on O1's lists: amp.half_function, amp.float_function, amp.promote_function. Where O1's casts
// are on (an Autocast with CastLists::kApex), the function gets its fp16, bf16 and fp32 arguments in fp16 (of a
// parameter the cached cast), in fp32, or, where fp16 meets fp32, in fp32; elsewhere as they are. Promotion refuses
// fp64 with others. What the function calls is cast by the lists as ever.
using TensorFunction = std::function<Tensor(const std::vector<Tensor>& inputs)>;
TensorFunction apex_half_function(TensorFunction function);
TensorFunction apex_float_function(TensorFunction function);
TensorFunction apex_promote_function(TensorFunction function);

// Apex's FP16_Optimizer, as first published: its arguments.
struct ApexFp16OptimizerOptions {
  double static_loss_scale = 1;
  std::optional<ApexLegacyScalerOptions> dynamic_loss_scale = {};  // instead; with dynamic_loss_args
};
// It wraps an optimizer with fp32 masters. `backward` leaves the model's gradients scaled; update_master_grads, once for
// all losses, copies them to the masters and divides. Under a dynamic scale it looks first, and on an overflow leaves the
// masters as they were; a static one does not look. A Trainer calls it before it clips (unscale_), so `backward` there
// is Apex's with update_master_grads=False. The state of the optimizer has the masters.
class ApexFp16Optimizer : public LossScaler {
 public:
  explicit ApexFp16Optimizer(const ApexFp16OptimizerOptions& options);
  ~ApexFp16Optimizer() override;

  void update_master_grads(Optimizer& optimizer);
  // -1, and nothing is clipped, where the gradients overflowed.
  double clip_master_grads(Optimizer& optimizer, double max_norm);
  bool overflow() const;  // of the last update_master_grads

  void unscale_(Optimizer& optimizer) override { update_master_grads(optimizer); }
  double clip(Optimizer& optimizer, double max_norm) override { return clip_master_grads(optimizer, max_norm); }
  bool step(Optimizer& optimizer) override;  // updates the scale first
  // optimizer.step(closure): runs the closure, which zeroes gradients, calls backward and update_master_grads and
  // returns the loss, then steps, and returns that loss. Throws std::invalid_argument in Apex's words under a dynamic
  // scale. The engine's optimizers would call a closure once, as torch's SGD and Adam do; one that calls it again is
  // not there.
  Tensor step(Optimizer& optimizer, const std::function<Tensor()>& closure);
  void update() override;
  double get_scale() const override;  // in a step: that of its loss
  Tensor scale(const Tensor& output) override;
  Saved saved() const override;
  void load(const Saved& saved) override;

 private:
  struct State;
  std::string next(bool found_inf) override;
  ScalerEvent described() const override;
  bool looks() const override;

  std::unique_ptr<State> state_;
};
std::unique_ptr<LossScaler> make_scaler(const ApexFp16OptimizerOptions& options);

// network_to_half and FP16_Optimizer: an fp16 model with fp32 batch norms whose inputs are cast, and masters.
TrainingSetup apex_fp16_optimizer(TrainingSetup setup, const ApexFp16OptimizerOptions& options = {});

// The arguments of fastai v1's to_fp16.
struct FastaiOptions {
  std::optional<double> loss_scale = {};  // none: 65536, static 512
  std::int64_t max_noskip = 1000;
  bool dynamic = true;
  std::optional<double> clip = {};  // of the masters' gradients; nothing is clipped where they were dropped
  double max_scale = 0x1p24;
};
// An fp16 model with fp32 batch norms and masters; batches are cast to fp16, what the model makes to fp32.
TrainingSetup fastai_to_fp16(TrainingSetup setup, const FastaiOptions& options = {});
// The arguments of Lightning's Trainer and of its precision plugins.
struct LightningOptions {
  // "16-mixed", "bf16-mixed", "16-true", "bf16-true", "32-true", "64-true", or what Lightning also takes for one of them:
  // "16", "bf16", "32", "64".
  std::string precision = "32-true";
  std::optional<GradScalerOptions> scaler = {};  // of 16-mixed, instead of its own
  double gradient_clip_val = 0;                  // 0: none
};
// Mixed precisions put autocast around forward and loss, 16-mixed scales too; a true one converts the whole model, batch
// norms included, and floating inputs of its call, and scales nothing. Floating targets are as the batch source gives them;
// Lightning converts these too. A loss function that gives an undefined tensor is a training_step that returns None.
// Throws std::invalid_argument with Lightning's words on a precision that it does not know or that does not go with
// scaler, optimizer or clipping: what Lightning would refuse in the first step is refused here.
TrainingSetup lightning_trainer(TrainingSetup setup, const LightningOptions& options = {});
// Lightning's warning about a name of old: "" for the others.
std::string lightning_warning(const std::string& precision);

// Every recipe by the name that a user gives.
struct NamedRecipe {
  std::string_view name, summary;
  DType dtype;  // in which it computes most
  std::function<TrainingSetup(TrainingSetup)> apply;
};
std::span<const NamedRecipe> named_recipes();
// By its name, or as its library says it: "fp16" and "bf16" (torch.amp), "O0" to "O3", "16-mixed" and the like.
// Null: none.
const NamedRecipe* find_recipe(std::string_view name);
// What a recipe makes of a bare setup that may clip and validate: both are as they were, the validation under the
// recipe's autocast. (By themselves some recipes refuse clipping that is no argument of theirs.)
TrainingSetup apply_recipe(const NamedRecipe& recipe, TrainingSetup setup);

}  // namespace nanhunt::engine
