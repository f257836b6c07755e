// SPDX-License-Identifier: Apache-2.0
// The dynamic scaler of Apex's first FP16_Optimizer.
#include "nanhunt/engine/loss_scalers.h"
#include "src/engine/amp/scalers/apex_legacy_scale.h"
#include "src/engine/amp/scalers/family.h"

namespace nanhunt::engine {
namespace {

class ApexLegacy final : public Family<ApexLegacy> {
 public:
  explicit ApexLegacy(const ApexLegacyScalerOptions& options) : rule_(options) {}

  double get_scale() const override { return rule_.scale; }
  void for_each_number(const auto& call) { rule_.for_each_number(call); }

 private:
  std::string next(bool found_inf) override { return rule_.next(found_inf); }
  ScalerEvent described() const override { return rule_.described(); }

  ApexLegacyScale rule_;
};

}  // namespace

std::unique_ptr<LossScaler> make_scaler(const ApexLegacyScalerOptions& options) {
  return std::make_unique<ApexLegacy>(options);
}

}  // namespace nanhunt::engine
