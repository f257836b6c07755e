# SPDX-License-Identifier: Apache-2.0
"""A training program: one step after another. Kinds put their own code into its places."""

from __future__ import annotations

from typing import Any

import torch
from models import make_batch, make_model, make_optimizer
from settings import Settings
from torch.nn import functional as F

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Training:
    """`faulty`: with the fault; else the same program without it, repaired where it can be."""

    once = True  # what leads to the fault happens in step `at` alone; else from it on

    def __init__(self, drawn: Settings, faulty: bool) -> None:
        self.drawn, self.faulty, self.i = drawn, faulty, 0
        drawn.rng.seed(drawn.seed)
        torch.manual_seed(drawn.seed)
        self.model, self.sites = make_model(drawn)
        self.parameters = list(self.model.parameters())
        self.optimizer: torch.optim.Optimizer | None = make_optimizer(drawn, self.parameters)
        self.losses: list[float] = []
        self.kept: list[torch.Tensor] = []  # copies of weights that last
        self.set_up()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=drawn.precision == "fp16")

    @property
    def now(self) -> bool:
        """Whether what leads to the fault happens; the twin meets it as well, and bears it."""
        return self.i == self.drawn.at if self.once else self.i >= self.drawn.at

    @property
    def bad(self) -> bool:
        return self.faulty and self.now

    @property
    def site(self) -> Any:
        return self.sites[self.drawn.site]

    # What kinds change.
    def set_up(self) -> None: ...

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        return make_batch(self.drawn)

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out, y)

    def after_backward(self) -> None: ...

    def after_step(self) -> None: ...

    # The program.
    def compute_loss(self) -> torch.Tensor:
        x, y = self.batch()
        precision = self.drawn.precision
        with torch.autocast("cpu", dtype=FORMATS[precision], enabled=precision != "fp32"):
            loss = self.loss(self.model(x), y)
        self.losses.append(float(loss.detach()))
        return loss

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.scaler.scale(self.compute_loss()).backward()
        self.scaler.unscale_(self.optimizer)
        self.after_backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.after_step()

    def run(self) -> None:
        while self.i < self.drawn.steps:
            self.step()
            self.i += 1

    def path_of(self, parameter: torch.Tensor) -> str:
        return next(name for name, p in self.model.named_parameters() if p is parameter)

    def site_path(self) -> str:
        return next(name for name, module in self.model.named_modules() if module is self.site)
