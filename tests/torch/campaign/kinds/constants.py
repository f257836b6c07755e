# SPDX-License-Identifier: Apache-2.0
"""-Inf that a program writes as a constant is deliberate; the op that makes NaN of it is the origin."""

from __future__ import annotations

import math

import torch
from models import CLASSES, ROWS
from score import LOSS, Expected
from training import Training

from kinds import Fault

INF = -math.inf


def by_fill(hidden: torch.Tensor) -> torch.Tensor:
    return torch.zeros(hidden.shape).masked_fill(hidden, INF)


def by_full(hidden: torch.Tensor) -> torch.Tensor:
    mask = torch.full(hidden.shape, INF)
    mask[~hidden] = 0.0
    return mask


def by_index(hidden: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(hidden.shape)
    mask[hidden] = INF
    return mask


def by_list(hidden: torch.Tensor) -> torch.Tensor:
    return torch.tensor([INF if h else 0.0 for h in hidden.flatten().tolist()]).view(hidden.shape)


def by_where(hidden: torch.Tensor) -> torch.Tensor:
    return torch.where(hidden, INF, 0.0)


def by_like(hidden: torch.Tensor) -> torch.Tensor:
    return torch.where(hidden, torch.full_like(hidden, INF, dtype=torch.float32), torch.zeros(()))


FORMS = (by_fill, by_full, by_index, by_list, by_where, by_like)


class Masked(Training):
    """Some classes are hidden by a mask that is written before training, in a buffer, or anew in each step."""

    def hidden(self) -> torch.Tensor:
        hidden = torch.zeros(ROWS, CLASSES, dtype=torch.bool)
        hidden[:, 1] = True
        return hidden

    def set_up(self) -> None:
        self.form = self.drawn.rng.choice(FORMS)
        self.kept_at = self.drawn.rng.choice(("before", "buffer", "in the step"))
        if self.kept_at != "in the step":
            self.mask = self.form(self.hidden())
        if self.kept_at == "buffer":
            self.model.register_buffer(self.drawn.word(), self.mask)

    def scores(self, out: torch.Tensor) -> torch.Tensor:
        return out.float() + (self.form(self.hidden()) if self.kept_at == "in the step" else self.mask)


class Product(Masked):
    """0 * -Inf: the entropy of masked probabilities."""

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scores = self.scores(out)
        p = torch.softmax(scores, -1)
        entropy = (p * scores).sum() if self.bad else (p * out.float()).sum()
        return super().loss(out, y) + 0.01 * entropy


class AllHidden(Masked):
    """Softmax of a row in which the mask hides every class."""

    def hidden(self) -> torch.Tensor:
        hidden = super().hidden()
        hidden[2, 0 if self.bad else 1 :] = True
        return hidden

    def set_up(self) -> None:
        super().set_up()
        self.kept_at = "in the step"
        self.softmax = self.drawn.rng.choice((torch.softmax, torch.log_softmax))

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        given = self.softmax(self.scores(out), -1)
        return super().loss(out, y) + 0.01 * given.masked_fill(given == INF, 0.0).sum()


class Difference(Masked):
    """-Inf - -Inf: scores less their largest, with everything of a row hidden."""

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scores = self.scores(out)
        if self.now:
            scores = scores[:, 1:2] if self.faulty else scores[:, :2]
        shifted = scores - scores.amax(-1, keepdim=True)
        return super().loss(out, y) + 0.01 * shifted.exp().mean()


class InLayer(Training):
    """A layer's own softmax, over features of which its mask hides all."""

    def set_up(self) -> None:
        form = self.drawn.rng.choice(FORMS)

        def body(x: torch.Tensor) -> torch.Tensor:
            hidden = torch.zeros(x.shape[-1], dtype=torch.bool)
            hidden[0 if self.bad else 1 :] = True
            return x + 0.1 * torch.softmax(x.float() + form(hidden), -1).to(x.dtype)

        self.site.body = body


class Absorbed(Masked):
    """Written, and clamped or selected away."""

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scores = self.scores(out)
        chosen = torch.where(torch.isinf(scores), out.float(), scores.clamp(min=-50.0))
        return super().loss(out, y) + 0.01 * chosen.logsumexp(-1).mean()


def invalid(*ops: str) -> Expected:
    return Expected("invalid", ("loss",), ops, LOSS, step=0)


FAULTS = {
    "0 times -Inf": Fault(Product, invalid("aten::mul")),
    "everything hidden": Fault(AllHidden, invalid("aten::_softmax", "aten::_log_softmax")),
    "-Inf less -Inf": Fault(Difference, invalid("aten::sub")),
    "everything hidden in a layer": Fault(
        InLayer, Expected("invalid", ("forward",), ("aten::_softmax",), lambda t: t.site_path(), step=0)
    ),
}
HEALTHY = {"absorbed": Absorbed}
