// SPDX-License-Identifier: Apache-2.0
// Small networks of the four kinds, of the bundled layers, with places where a hand-written layer may stand.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "nanhunt/engine/module.h"
#include "nanhunt/engine/trainer.h"
#include "nanhunt/engine/transformer.h"
#include "tests/campaign/settings.h"

namespace nanhunt::campaign {

// A layer that a user wrote: whatever `body` computes, nothing without one.
class Site : public engine::Module {
 public:
  std::function<engine::Tensor(const engine::Tensor&)> body;

 protected:
  engine::Tensor forward(const engine::Tensor& input) override { return body ? body(input) : input; }
};

struct Network {
  std::unique_ptr<engine::Module> model;
  std::vector<Site*> sites;                          // in forward order
  std::vector<engine::Module*> layers;               // those with a matrix or a kernel, in forward order
  std::vector<engine::TransformerBlock*> blocks;     // transformers only
};
Network make_network(const Settings& settings);

// Small batches of the digits or the text.
engine::BatchSource make_batches(const Settings& settings);
engine::Tensor base_loss(const Settings& settings, const engine::Tensor& output, const engine::Batch& batch);

}  // namespace nanhunt::campaign
