// SPDX-License-Identifier: Apache-2.0
// Apex amp's LossScaler.
#include "nanhunt/engine/loss_scalers.h"
#include "src/engine/amp/scalers/apex_scale.h"
#include "src/engine/amp/scalers/family.h"

namespace nanhunt::engine {
namespace {

class Apex final : public Family<Apex> {
 public:
  explicit Apex(const ApexScalerOptions& options) : rule_(options) {}

  double get_scale() const override { return rule_.scale; }
  void for_each_number(const auto& call) {
    call("scale", rule_.scale);
    call("unskipped", rule_.unskipped);
  }

 private:
  bool looks() const override { return rule_.dynamic(); }
  std::string next(bool found_inf) override { return rule_.next(found_inf); }
  ScalerEvent described() const override { return rule_.described(); }

  ApexScale rule_;
};

}  // namespace

std::unique_ptr<LossScaler> make_scaler(const ApexScalerOptions& options) { return std::make_unique<Apex>(options); }

}  // namespace nanhunt::engine
