# SPDX-License-Identifier: Apache-2.0
"""Programs that go on for long after the fault: it stays the first that is told, whatever follows."""

from __future__ import annotations

import math

import torch
from models import pass_the_format
from score import LOSS, Expected
from training import Training

from kinds import Fault

LATER = 9  # steps after the fault, another thing goes wrong


class GoesOn(Training):
    """The loss divides by a count that is 0 once. Its weights are NaN from then on."""

    def set_up(self) -> None:
        self.drawn.steps = self.drawn.at + self.drawn.rng.choice((30, 60, 120))

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        count = torch.tensor(0.0 if self.now else 8.0)
        parts = torch.nn.functional.cross_entropy(out.float(), y, reduction="none") * (0.0 if self.now else 1.0)
        return parts.sum() / (count if self.faulty else count.clamp(min=1.0))


class Restores(GoesOn):
    """Weights and optimizer are put back as they were, and the program trains on; a layer overflows later."""

    def set_up(self) -> None:
        super().set_up()
        self.saved: list[torch.Tensor] = []
        self.site.body = lambda x: pass_the_format(x) if self.faulty and self.i == self.drawn.at + LATER else x * 1.0

    @torch.no_grad()
    def step(self) -> None:
        self.saved = [p.clone() for p in self.parameters]
        with torch.enable_grad():
            super().step()
        if math.isfinite(self.losses[-1]):
            return
        for p, old in zip(self.parameters, self.saved, strict=True):
            p.copy_(old)
        self.optimizer.state.clear()


ZERO = Expected("divide_by_zero", ("loss",), ("aten::div",), LOSS, step=0)
FAULTS = {"goes on": Fault(GoesOn, ZERO), "restores": Fault(Restores, ZERO)}
