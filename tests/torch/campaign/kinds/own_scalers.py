# SPDX-License-Identifier: Apache-2.0
"""Loss scalers that programs write for themselves, in several forms of each of their parts."""

from __future__ import annotations

import math

import torch
from models import pass_the_format
from score import LOSS, SEEN, Expected
from torch import nn
from training import Training

from kinds import Fault

ENOUGH = 14  # steps after which a run that skips all of them has shown that it only skips


class OwnScaling(Training):
    """fp16 autocast; the scale multiplies the loss, gradients are looked at, divided, or given up."""

    scale, dynamic = 1024.0, True

    def set_up(self) -> None:
        self.drawn.precision = "fp16"
        rng = self.drawn.rng
        self.as_tensor = rng.random() < 0.5
        self.is_finite = rng.choice((self.each_is_finite, self.sum_is_finite, self.norm_is_finite))
        self.divide = rng.choice((self.by_division, self.by_inverse, self.by_list))
        self.hysteresis = rng.choice((1, 1, 2))
        self.updates = 0

    # Forms of its parts.
    def each_is_finite(self) -> bool:
        return all(bool(torch.isfinite(p.grad).all()) for p in self.parameters)

    def sum_is_finite(self) -> bool:
        return math.isfinite(sum(float(p.grad.sum()) for p in self.parameters))

    def norm_is_finite(self) -> bool:
        return bool(torch.isfinite(torch.stack([p.grad.norm() for p in self.parameters]).norm()))

    def by_division(self) -> None:
        for p in self.parameters:
            p.grad.div_(self.scale)

    def by_inverse(self) -> None:
        for p in self.parameters:
            p.grad = p.grad * (1.0 / self.scale)

    def by_list(self) -> None:
        torch._foreach_mul_([p.grad for p in self.parameters], 1.0 / self.scale)

    # The program.
    def clear(self) -> None:
        self.optimizer.zero_grad()

    def backward(self) -> None:
        (self.compute_loss() * (torch.tensor(self.scale) if self.as_tensor else self.scale)).backward()

    def before_unscale(self) -> None: ...

    def lower(self) -> None:
        self.hysteresis -= 1
        if self.dynamic and self.hysteresis <= 0:
            self.scale /= 2

    def step(self) -> None:
        self.clear()
        self.backward()
        if not self.is_finite():
            self.lower()
            return
        self.before_unscale()
        self.divide()
        self.after_backward()
        self.optimizer.step()
        self.updates += 1


class StaticBeyond(OwnScaling):
    """A static scale far beyond what fp16 gradients hold."""

    dynamic = False

    def set_up(self) -> None:
        super().set_up()
        self.scale = 2.0 ** self.drawn.rng.randint(26, 34) if self.faulty else 1024.0
        self.drawn.steps = max(self.drawn.steps, ENOUGH)


class TwoLosses(StaticBeyond):
    """One of two losses has a scale of its own; gradients of the other are added after it was taken out."""

    def backward(self) -> None:
        self.compute_loss().backward()
        self.others = [p.grad for p in self.parameters]
        self.optimizer.zero_grad()
        super().backward()

    def after_backward(self) -> None:
        for p, other in zip(self.parameters, self.others, strict=True):
            p.grad.add_(other)


class Collapse(OwnScaling):
    """Activations overflow in every step from `at` on: no scale can help."""

    once = False

    def set_up(self) -> None:
        super().set_up()
        self.drawn.steps = self.drawn.at + 26
        self.site.body = lambda x: pass_the_format(x) if self.bad else x * 1.0


class ClipBeforeUnscale(OwnScaling):
    scale, dynamic = 4096.0, False

    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.parameters, 0.5)

    def before_unscale(self) -> None:
        if self.faulty:
            self.clip()

    def after_backward(self) -> None:
        if not self.faulty:
            self.clip()


class OwnClipBeforeUnscale(ClipBeforeUnscale):
    def set_up(self) -> None:
        super().set_up()
        self.by_number, self.in_place = self.drawn.rng.choice(((False, True), (True, True), (True, False)))

    def clip(self) -> None:
        total = torch.stack([p.grad.norm() for p in self.parameters]).norm()
        factor = min(0.5 / (total.item() + 1e-6), 1.0) if self.by_number else torch.clamp(0.5 / (total + 1e-6), max=1.0)
        for p in self.parameters:
            if self.in_place:
                p.grad.mul_(factor)
            else:
                p.grad = p.grad * factor


class Kept(OwnScaling):
    """Gradients are cleared after the optimizer's step; those of a skipped one stay, and the next are added to them."""

    def set_up(self) -> None:
        super().set_up()
        self.drawn.steps = self.drawn.at + 8
        self.dynamic = self.drawn.rng.random() < 0.5

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().loss(out, y) * (1e7 if self.now else 1.0)

    def clear(self) -> None: ...

    def step(self) -> None:
        updates = self.updates
        super().step()
        if self.updates > updates or not self.faulty:
            self.optimizer.zero_grad()


class TestOverflows(OwnScaling):
    """The test for overflow sums squares up in fp16, where they overflow although no gradient does."""

    scale, dynamic = 2.0**13, False

    def set_up(self) -> None:
        super().set_up()
        form = self.drawn.rng.choice((self.squares, self.norms, self.products))
        self.drawn.steps = max(self.drawn.steps, ENOUGH)
        if self.faulty:
            self.is_finite = form

    def squares(self) -> bool:
        return math.isfinite(float(sum((p.grad.half() ** 2).sum() for p in self.parameters)))

    def norms(self) -> bool:
        total = torch.zeros((), dtype=torch.float16)
        for p in self.parameters:
            norm = p.grad.half().norm()
            total += norm * norm
        return bool(torch.isfinite(total))

    def products(self) -> bool:
        return all(bool(torch.isfinite(torch.dot(g, g))) for g in (p.grad.half().flatten() for p in self.parameters))


class OnlySkips(OwnScaling):
    """A term of the loss has a slope without end in every step, so that every step is given up."""

    dynamic = False

    def set_up(self) -> None:
        super().set_up()
        self.drawn.steps = max(self.drawn.steps, ENOUGH)

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        spread = (out - out.detach()).float().pow(2).sum()
        return super().loss(out, y) + torch.sqrt(spread + (0.0 if self.faulty else 1e-6))


class Calibrates(OwnScaling):
    def set_up(self) -> None:
        super().set_up()
        self.scale = 2.0 ** self.drawn.rng.randint(20, 26)
        self.drawn.steps = 20


STATIC = Expected("overflow", ("backward",), module=SEEN, from_start=True)
FAULTS = {
    "static": Fault(StaticBeyond, STATIC),
    "two losses": Fault(TwoLosses, STATIC),
    "collapse": Fault(
        Collapse, Expected("scaler_collapse", ("forward",), ("aten::mul",), lambda t: t.site_path(), step=0)
    ),
    "clip before unscale": Fault(
        ClipBeforeUnscale, Expected("api_misuse", ("clip",), ("clip_grad_norm_",), seen=False, from_start=True)
    ),
    "own clip before unscale": Fault(
        OwnClipBeforeUnscale,
        Expected("api_misuse", ("clip",), seen=False, from_start=True, why="no one op is the program's own clipping"),
    ),
    "kept": Fault(Kept, Expected("api_misuse", ("backward",), ("aten::add_",), seen=False, step=1)),
    "test overflows": Fault(TestOverflows, Expected("overflow", ("clip", "unscale"), from_start=True)),
    "only skips": Fault(OnlySkips, Expected("divide_by_zero", ("backward",), ("aten::div",), LOSS, from_start=True)),
}
HEALTHY = {"calibrates": Calibrates}
