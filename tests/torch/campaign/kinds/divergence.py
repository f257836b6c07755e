# SPDX-License-Identifier: Apache-2.0
"""Rates that are far too high, of drawn optimizers and schedules: no operation is at fault."""

from __future__ import annotations

from typing import Any

import torch
from models import CLASSES
from score import Expected
from torch.nn import functional as F
from training import Training

from kinds import Fault

Optim = torch.optim
# What makes one, its sound rate, and by how much more it breaks: an update of Adam is as long as its rate.
DRAWN: dict[str, tuple[Any, float, float]] = {
    "sgd": (lambda p, lr: Optim.SGD(p, lr), 1e-3, 1e4),
    "momentum": (lambda p, lr: Optim.SGD(p, lr, momentum=0.9), 1e-3, 1e4),
    "nesterov": (lambda p, lr: Optim.SGD(p, lr, momentum=0.9, nesterov=True), 1e-3, 1e4),
    "rmsprop": (lambda p, lr: Optim.RMSprop(p, lr), 1e-4, 1e14),
    "adam": (lambda p, lr: Optim.Adam(p, lr), 1e-3, 1e14),
    "adamw": (lambda p, lr: Optim.AdamW(p, lr), 1e-3, 1e14),
    "nadam": (lambda p, lr: Optim.NAdam(p, lr), 1e-3, 1e14),
}


class Diverges(Training):
    """The rate of the schedule is a drawn factor too high: from the start, from step `at` on, or growing from there."""

    once = False

    def set_up(self) -> None:
        rng = self.drawn.rng
        if self.drawn.precision == "fp16":
            self.drawn.precision = "bf16"
        make, self.rate, least = DRAWN[rng.choice(sorted(DRAWN))]
        self.factor = least * 10 ** rng.uniform(0, 6)
        self.schedule = rng.choice((self.constant, self.jump, self.growth))
        self.optimizer = make(self.parameters, self.rate)
        self.drawn.steps = self.drawn.at + 16

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(out.float(), F.one_hot(y, CLASSES).float())

    def constant(self) -> float:
        return self.factor

    def jump(self) -> float:
        return self.factor if self.now else 1.0

    def growth(self) -> float:
        return self.factor ** min((self.i - self.drawn.at + 1) / 3, 1.0) if self.now else 1.0

    def step(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * (self.schedule() if self.faulty else 1.0)
        super().step()


FAULTS = {
    "rate": Fault(
        Diverges,
        Expected(
            "exploding",
            ("forward", "loss", "backward", "clip", "optimizer"),
            seen=False,
            why="the operation that overflows first is arbitrary, and how soon it does",
        ),
    ),
}
