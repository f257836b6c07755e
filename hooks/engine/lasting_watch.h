// SPDX-License-Identifier: Apache-2.0
// Contents that outlive a step and may be written while nobody reads them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/trainer.h"

namespace nanhunt::hooks {

class OpAdapter;

// An optimizer and a batch norm write over their state in one op, so no op shows what it held before. This looks at it
// in time: what has a new version when a step begins was written by the program and is marked anew; contents that
// changed under the same version are found before they are gone. So are those of gradients, which unscale and clip
// write over: all but the first one, whose op is over when it is heard of.
class LastingWatch final : public engine::Observer {
 public:
  // Everything goes through `adapter`, which must know of a step before this does.
  LastingWatch(engine::Trainer& trainer, OpAdapter& adapter);

  void on_op(const engine::OpCall& call) noexcept override;
  void on_step_begin(std::uint32_t step) noexcept override;
  void on_optimizer_begin() noexcept override;
  void on_step_end(std::uint32_t step, double loss, double lr, double scale, bool skipped) noexcept override;
  void on_step_given_up(std::uint32_t step, StepEnding, std::string_view) noexcept override {
    on_step_end(step, 0, 0, 1, false);
  }

 private:
  struct Lasting {
    TensorRole kind;
    std::string path;
    engine::Tensor tensor;
    std::uint32_t version = 0;  // when the last step ended
  };
  template <class Gather>
  void check(Gather gather) noexcept;

  engine::Trainer& trainer_;
  OpAdapter& adapter_;
  std::vector<Lasting> all_;
  bool gradients_checked_ = false;  // in this step
  bool known_ = false;  // versions were taken
};

}  // namespace nanhunt::hooks
