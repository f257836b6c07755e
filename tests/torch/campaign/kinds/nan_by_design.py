# SPDX-License-Identifier: Apache-2.0
"""NaN that a program writes as a mark, and asks about, harms nobody. What goes wrong beside it is told all the same."""

from __future__ import annotations

import math

import torch
from models import CLASSES, ROWS
from score import Expected
from training import Training

from kinds import Fault


class Marked(Training):
    """Some targets are not known in each step."""

    def set_up(self) -> None:
        rng = self.drawn.rng
        self.mark = rng.choice((self.by_index, self.by_fill, self.by_where))
        self.form = rng.choice((self.selected, self.replaced, self.filled, self.cleared))

    # Forms of marking.
    def by_index(self, t: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        t[hidden] = math.nan
        return t

    def by_fill(self, t: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return t.masked_fill(hidden, math.nan)

    def by_where(self, t: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return torch.where(hidden, math.nan, t)

    # Forms of leaving out what is marked.
    def selected(self, out: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        known = ~torch.isnan(t)
        return (out[known] - t[known]).square().mean()

    def replaced(self, out: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return (out - torch.where(t.isnan(), out.detach(), t)).square().mean()

    def filled(self, out: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return ((out - t.nan_to_num(0.0)).square() * (t == t)).sum() / ROWS

    def cleared(self, out: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        centre = t.nanmean()
        t = t - centre
        t[torch.isnan(t)] = 0.0
        return (out - t).square().mean()

    def targets(self) -> torch.Tensor:
        hidden = torch.zeros(ROWS, CLASSES, dtype=torch.bool)
        hidden[self.i % ROWS, 1] = hidden[2, 0] = True
        return self.mark(torch.linspace(-1, 1, ROWS * CLASSES).view(ROWS, CLASSES).clone(), hidden)

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().loss(out, y) + 0.1 * self.form(out.float(), self.targets())


class Group(Marked):
    """Rewards of groups are centred and divided by their spread, marked ones left out; of one group one is left."""

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = torch.zeros(2, 4, dtype=torch.bool)
        hidden[0, self.i % 4] = True
        hidden[1, 1:] = self.now
        reward = self.mark(torch.linspace(0, 1, 8).view(2, 4).clone(), hidden)
        count = (~reward.isnan()).sum(1, keepdim=True)
        apart = reward - reward.nanmean(1, keepdim=True)
        spread = (apart.square().nansum(1, keepdim=True) / (count - 1).clamp(min=0 if self.faulty else 1)).sqrt()
        advantage = torch.where(reward.isnan(), 0.0, apart / (spread + 1e-3))
        return super(Marked, self).loss(out, y) + 0.1 * (out.float()[:, 0] * advantage.flatten()).mean()


FAULTS = {
    "one of a group": Fault(
        Group,
        Expected("divide_by_zero", ("loss",), ("aten::div",), step=0, seen=False, why="marks are seen before it"),
    ),
}
HEALTHY = {"marked targets": Marked}
