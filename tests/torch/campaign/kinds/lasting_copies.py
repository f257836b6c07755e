# SPDX-License-Identifier: Apache-2.0
"""Averages of weights and teachers last as parameters do. What follows the optimizer belongs to the step that begins
(hooks/torch/GUIDE.md, Where a step ends)."""

from __future__ import annotations

import copy
import math

import torch
from score import STATE, Expected
from settings import Settings
from torch.nn import functional as F
from training import Training

from kinds import Fault


class Averaged(Training):
    """A list of tensors, or a teacher: a copy of the model, whose outputs may be learnt from."""

    dtype, decay = torch.float32, 0.9

    def set_up(self) -> None:
        rng = self.drawn.rng
        is_teacher = rng.random() < 0.5
        self.distils = is_teacher and rng.random() < 0.5
        self.average = rng.choice((self.in_place, self.by_list, self.by_copy))
        if is_teacher:
            self.teacher = copy.deepcopy(self.model).to(self.dtype).requires_grad_(False)
            self.kept = list(self.teacher.parameters())
        else:
            self.kept = [p.detach().clone().to(self.dtype) for p in self.parameters]

    def in_place(self, decay: float) -> None:
        for k, p in zip(self.kept, self.parameters, strict=True):
            k.mul_(decay).add_(p.detach().to(k.dtype), alpha=1 - decay)

    def by_list(self, decay: float) -> None:
        torch._foreach_mul_(self.kept, decay)
        torch._foreach_add_(self.kept, [p.detach().to(self.dtype) for p in self.parameters], alpha=1 - decay)

    def by_copy(self, decay: float) -> None:
        for k, p in zip(self.kept, self.parameters, strict=True):
            k.copy_(decay * k + (1 - decay) * p.detach().to(k.dtype))

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.x, y = super().batch()
        return self.x, y

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = super().loss(out, y)
        if self.distils:
            with torch.no_grad():
                taught = self.teacher(self.x)
            loss = loss + 0.1 * F.mse_loss(out.float(), taught.float())
        return loss

    @torch.no_grad()
    def after_step(self) -> None:
        self.average(self.decay)


class Lost(Averaged):
    """The copy is kept in 16 bits, where what is added at this decay rounds away."""

    decay = 0.9999

    def __init__(self, drawn: Settings, faulty: bool) -> None:
        narrow = torch.float16 if drawn.seed % 2 else torch.bfloat16
        self.dtype = narrow if faulty else torch.float32
        super().__init__(drawn, faulty)

    def set_up(self) -> None:
        self.drawn.steps = 24
        super().set_up()
        self.distils = False


class Overflows(Averaged):
    """The decay of one step is a number far too large."""

    @torch.no_grad()
    def after_step(self) -> None:
        self.average(3.3e38 if self.bad else self.decay)


class Debiased(Averaged):
    """Divided by 1 - decay^t, with t counted anew in step `at`."""

    @torch.no_grad()
    def after_step(self) -> None:
        super().after_step()
        t = torch.tensor(0.0 if self.now else 4.0)
        bias = 1 - torch.tensor(0.5) ** (t if self.faulty else t.clamp(min=1.0))
        for k in self.kept:
            k.div_(bias)


class Past(Averaged):
    """A number of the copy is written through NumPy between two steps."""

    def set_up(self) -> None:
        super().set_up()
        self.number = self.drawn.rng.choice((math.nan, math.inf, 3e38))
        self.where = self.drawn.rng.choice(self.targets())

    def targets(self) -> list[torch.Tensor]:
        return self.kept

    def step(self) -> None:
        if self.bad:
            self.where.detach().numpy().reshape(-1)[0] = self.number
        super().step()


class PastParameter(Past):
    """The same of a parameter."""

    def targets(self) -> list[torch.Tensor]:
        return list(self.parameters)


PRODUCTS = ("aten::mul_", "aten::_foreach_mul_", "aten::mul")
FAULTS = {
    "lost updates": Fault(
        Lost,
        Expected(
            "update_loss",
            ("update",),
            seen=False,
            why="parameter, op and first step are many",
        ),
    ),
    "overflow": Fault(Overflows, Expected("overflow", ("update",), PRODUCTS, step=1)),
    "bias of no step": Fault(Debiased, Expected("divide_by_zero", ("update",), ("aten::div_",), step=1)),
    "copy written by NumPy": Fault(Past, Expected("corruption", ("data",), (STATE,), seen=False, step=0)),
    "parameter written by NumPy": Fault(
        PastParameter, Expected("corruption", ("data",), (STATE,), lambda t: t.path_of(t.where), seen=False, step=0)
    ),
}
