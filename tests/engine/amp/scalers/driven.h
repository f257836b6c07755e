// SPDX-License-Identifier: Apache-2.0
// A loss scaler of any family with one optimizer, driven by flags; and what observers are told of it.
#pragma once

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/loss_scalers.h"
#include "tests/engine/amp/scaler_fixture.h"

namespace nanhunt::engine::testing {

class DrivenScaler : public Observer {
 public:
  explicit DrivenScaler(const ScalerChoice& choice) : scaler(choice.make()), handle_(add_observer(*this)) {}

  // One update; what the library says of it.
  std::string update(bool found_inf) {
    scaler->scale(Tensor::full({}, 1, DType::kF32));
    optimizer.set_gradient(0, found_inf ? std::numeric_limits<double>::infinity() : 1);
    scaler->step(optimizer);
    scaler->update();
    return scaler->message();
  }
  std::vector<double> scales(const std::vector<bool>& found_inf) {
    std::vector<double> out;
    for (const bool found : found_inf) {
      update(found);
      out.push_back(scaler->get_scale());
    }
    return out;
  }
  void on_scaler(const ScalerEvent& event) noexcept override {
    if (event.action == ScalerAction::kCreate) family = event.text;
    if (event.action == ScalerAction::kUpdate || event.action == ScalerAction::kGaveUp) {
      last = event;
      last_text = event.text;
    }
  }

  std::unique_ptr<LossScaler> scaler;
  CountingOptimizer optimizer{"p"};
  std::string family, last_text;
  ScalerEvent last;  // of the last update

 private:
  HookHandle handle_;
};

}  // namespace nanhunt::engine::testing
