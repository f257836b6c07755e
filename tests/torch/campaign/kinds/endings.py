# SPDX-License-Identifier: Apache-2.0
"""Programs that end, or go on, as soon as they see that a number is bad."""

from __future__ import annotations

import contextlib
import math
import os
import sys

import torch
from models import pass_the_format
from score import LOSS, Expected
from training import Training

from kinds import Fault


class LogOfZero(Training):
    """The loss takes the logarithm of a probability that is 0; `look` sees the loss."""

    def set_up(self) -> None:
        self.drawn.steps = self.drawn.at + 3

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        p = torch.softmax(out.float(), -1)
        if self.now:
            p = p * torch.tensor([0.0, 1.0, 1.0, 1.0])
        return super().loss(out, y) - 0.01 * (p + (0.0 if self.faulty else 1e-6)).log().mean()

    def compute_loss(self) -> torch.Tensor:
        loss = super().compute_loss()
        self.look(loss)
        return loss

    def look(self, loss: torch.Tensor) -> None: ...


class Asserts(LogOfZero):
    def look(self, loss: torch.Tensor) -> None:
        assert torch.isfinite(loss), "the loss is not finite"


class Raises(LogOfZero):
    def look(self, loss: torch.Tensor) -> None:
        if not math.isfinite(loss.item()):
            raise RuntimeError(f"loss is {loss.item()}")


class Exits(LogOfZero):
    def look(self, loss: torch.Tensor) -> None:
        if not math.isfinite(loss.item()):
            print("Loss is not finite, stopping training")
            sys.exit(1)


class ExitsAtOnce(LogOfZero):
    def look(self, loss: torch.Tensor) -> None:
        if bool(torch.isnan(loss)) or bool(torch.isinf(loss)):
            os._exit(3)


class Enough(Exception):
    pass


class Breaks(LogOfZero):
    def look(self, loss: torch.Tensor) -> None:
        if not bool(torch.isfinite(loss)):
            raise Enough

    def run(self) -> None:
        with contextlib.suppress(Enough):
            super().run()


class Continues(Breaks):
    """Steps are left out, every one from `at` on, and the program goes on."""

    once = False

    def set_up(self) -> None:
        self.drawn.steps = self.drawn.at + 12

    def step(self) -> None:
        with contextlib.suppress(Enough):
            super().step()


class Anomaly(Training):
    """Anomaly mode raises in backward, where the slope of a root at 0 becomes NaN."""

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        spread = (out - out.detach()).float().pow(2).sum()
        return super().loss(out, y) + (torch.sqrt(spread + (0.0 if self.faulty else 1e-6)) if self.now else 0.0)

    def run(self) -> None:
        with torch.autograd.detect_anomaly():
            super().run()


class InForward(Training):
    """A layer overflows, looks at what it made, and raises."""

    def set_up(self) -> None:
        def body(x: torch.Tensor) -> torch.Tensor:
            out = pass_the_format(x) if self.bad else x * 1.0
            if not bool(torch.isfinite(out).all()):
                raise ValueError("a layer made a number that is not finite")
            return out

        self.site.body = body


class Validates(Training):
    """Training is fine; in evaluation, on other data, the loss is not."""

    def set_up(self) -> None:
        self.drawn.steps = self.drawn.at + 1

    @torch.no_grad()
    def after_step(self) -> None:
        if not self.now:
            return
        self.model.eval()
        p = torch.softmax(self.model(self.batch()[0]).float(), -1) * (0.0 if self.faulty else 1.0)
        loss = -p.log().mean()
        print("validation loss", float(loss))
        self.losses.append(float(loss))
        self.model.train()


LOG = Expected("divide_by_zero", ("loss",), ("aten::log",), LOSS, step=0)
ROOT = Expected("divide_by_zero", ("backward",), ("aten::div",), LOSS, step=0)
PRODUCT = Expected("overflow", ("forward",), ("aten::mul",), lambda t: t.site_path(), step=0)
FAULTS = {
    "assert": Fault(Asserts, LOG, alone=True),
    "raise": Fault(Raises, LOG, alone=True),
    "sys.exit": Fault(Exits, LOG, alone=True),
    "os._exit": Fault(ExitsAtOnce, LOG, alone=True),
    "break": Fault(Breaks, LOG),
    "continue": Fault(Continues, LOG),
    "anomaly mode": Fault(Anomaly, ROOT, alone=True),
    "raise in forward": Fault(InForward, PRODUCT, alone=True),
    "validation": Fault(
        Validates,
        Expected(
            "divide_by_zero",
            ("validation",),
            ("aten::log",),
            step=1,
            why="what follows the optimizer belongs to the step that begins",
        ),
    ),
}
