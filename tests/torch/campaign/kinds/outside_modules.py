# SPDX-License-Identifier: Apache-2.0
"""Code of the program that no module calls: what it makes of its data, terms of the weights, what it keeps for the next
step."""

from __future__ import annotations

import torch
from score import Expected
from torch.nn import functional as F
from training import Training

from kinds import Fault


class Weights(Training):
    """Weights of the loss, made with the batch before the model is called."""

    def set_up(self) -> None:
        self.form = self.drawn.rng.choice((self.by_count, self.by_spread, self.by_logarithm))

    def by_count(self, y: torch.Tensor) -> torch.Tensor:
        count = torch.tensor([2.0, 0.0 if self.now else 1.0, 2.0, 3.0])
        share = 1.0 / count if self.bad else 1.0 / count.clamp(min=1.0)
        return share * (count / count.sum())

    def by_spread(self, y: torch.Tensor) -> torch.Tensor:
        rows = torch.full((4, 3), 0.5) if self.now else torch.tensor([[0.1, 0.5, 0.2]]).repeat(4, 1)
        apart = rows - rows.mean(1, keepdim=True)
        spread = rows.std(1, correction=0, keepdim=True)
        return (apart / (spread if self.faulty else spread + 1e-3)).abs().sum(1) + 1.0

    def by_logarithm(self, y: torch.Tensor) -> torch.Tensor:
        seen = torch.tensor([3.0, 0.0 if self.now else 2.0, 4.0, 2.0])
        return (seen if self.faulty else seen.clamp(min=1.0)).log() + 1.0

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = super().batch()
        self.weight = self.form(y)
        return x, y

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (F.cross_entropy(out.float(), y, reduction="none") * self.weight[y]).mean() + 0.01 * self.weight.mean()


class Term(Training):
    """A term of the weights themselves: a direction of one that a mask leaves nothing of."""

    def set_up(self) -> None:
        self.form = self.drawn.rng.choice((self.direction, self.entropy, self.ratio))

    def direction(self, w: torch.Tensor) -> torch.Tensor:
        length = w.norm()
        return (w / (length if self.faulty else length + 1e-6)).sum()

    def entropy(self, w: torch.Tensor) -> torch.Tensor:
        part = w.square() / (w.square().sum() if self.faulty else w.square().sum() + 1e-6)
        return (part * (part + 1e-6).log()).sum()

    def ratio(self, w: torch.Tensor) -> torch.Tensor:
        total = w.abs().sum()
        return torch.div(w.sum(), total if self.faulty else total + 1e-6)

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        weight = next(p for p in self.parameters if p.dim() > 1)
        return super().loss(out, y) + 0.01 * self.form(weight * (0.0 if self.now else 1.0))


class KeptFactor(Training):
    """What was computed after one step is a factor of the next one's loss."""

    def set_up(self) -> None:
        self.factor = torch.ones(())

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().loss(out, y) * self.factor

    @torch.no_grad()
    def after_step(self) -> None:
        moved = torch.zeros(3) if self.now else torch.full((3,), 0.5)
        apart = moved.norm()
        self.factor = torch.div(moved.sum(), apart if self.faulty else apart + 1e-3).clamp(0.5, 2.0)


def zero(*ops: str, phases: tuple[str, ...], step: int = 0) -> Expected:
    return Expected("divide_by_zero", phases, ops, step=step)


FAULTS = {
    "weights of the loss": Fault(
        Weights, zero("aten::mul", "aten::reciprocal", "aten::div", "aten::log", phases=("data",))
    ),
    "a term of the weights": Fault(Term, zero("aten::div", phases=("loss",))),
    # What follows the optimizer belongs to the step that begins (hooks/torch/GUIDE.md, Where a step ends).
    "kept for the next step": Fault(KeptFactor, zero("aten::div", phases=("update", "data"), step=1)),
}
