# SPDX-License-Identifier: Apache-2.0
"""Programs that train nothing: each call of the model is a step, and what follows it is part of that."""

from __future__ import annotations

import torch
from score import Expected
from training import FORMATS, Training

from kinds import Fault


class Calling(Training):
    def set_up(self) -> None:
        self.optimizer = None
        self.model.eval()
        self.quiet = self.drawn.rng.choice((torch.no_grad, torch.inference_mode))
        self.choose()

    def choose(self) -> None: ...

    def after(self, out: torch.Tensor) -> torch.Tensor:
        return out.float().softmax(-1)

    def step(self) -> None:
        x, _ = self.batch()
        precision = self.drawn.precision
        with self.quiet(), torch.autocast("cpu", dtype=FORMATS[precision], enabled=precision != "fp32"):
            self.losses.append(float(self.after(self.model(x)).abs().max()))


class Layer(Calling):
    """A layer of the model divides by a spread that is 0 in one call."""

    def choose(self) -> None:
        self.site.body = self.spread

    def spread(self, x: torch.Tensor) -> torch.Tensor:
        apart = x - x.mean(-1, keepdim=True)
        size = apart.abs().amax(-1, keepdim=True) * (0.0 if self.now else 1.0)
        return apart / (size if self.faulty else size + 0.5)


class Temperature(Calling):
    """Sampling cools down until nothing is left to divide by."""

    def choose(self) -> None:
        self.number = self.drawn.rng.choice((float, torch.tensor))

    def after(self, out: torch.Tensor) -> torch.Tensor:
        cold = 0.0 if self.now else 1.0
        return (out.float() / self.number(cold if self.faulty else max(cold, 1e-2))).softmax(-1)


class OwnSoftmax(Calling):
    """Written by hand, without the largest score taken off."""

    def after(self, out: torch.Tensor) -> torch.Tensor:
        scores = out.float() + (100.0 if self.now else 0.0)
        parts = (scores if self.faulty else scores - scores.amax(-1, keepdim=True)).exp()
        return parts / parts.sum(-1, keepdim=True)


class Filtered(Calling):
    """All but the best are masked by -Inf."""

    def after(self, out: torch.Tensor) -> torch.Tensor:
        best = out.float().amax(-1, keepdim=True)
        return out.float().masked_fill(out.float() < best, -torch.inf).softmax(-1)


class LeftOut(Calling):
    """Of a class that does not occur the share is 0/0, and the mean leaves it out."""

    def after(self, out: torch.Tensor) -> torch.Tensor:
        found = out.argmax(-1).flatten()
        shares = [(found == c).sum().float() / (found == c).sum().float() for c in (int(found[0]), 100)]
        return torch.stack(shares).nanmean()


def forward(cls: str, op: str) -> Expected:
    return Expected(cls, ("forward",), (op,), step=0)


FAULTS = {
    "a layer without a spread": Fault(
        Layer, Expected("divide_by_zero", ("forward",), ("aten::div",), Training.site_path, step=0)
    ),
    "no temperature": Fault(Temperature, forward("divide_by_zero", "aten::div")),
    "softmax by hand": Fault(OwnSoftmax, forward("overflow", "aten::exp")),
}
HEALTHY = {"masked but for the best": Filtered, "a class that is left out": LeftOut}
