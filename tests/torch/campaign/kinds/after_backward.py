# SPDX-License-Identifier: Apache-2.0
"""What programs do themselves with gradients and weights between backward and the next step."""

from __future__ import annotations

import torch
from score import Expected
from training import Training

from kinds import Fault


class Clip(Training):
    """In step `at` a mask leaves nothing of the loss: all gradients are 0, and the limit is divided by their norm."""

    def set_up(self) -> None:
        self.total = self.drawn.rng.choice((self.squares, self.norms, self.listed))
        self.form = self.drawn.rng.choice((self.factor, self.quotient, self.direct))

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().loss(out, y) * (0.0 if self.now else 1.0)

    def squares(self) -> torch.Tensor:
        return torch.sqrt(sum((p.grad**2).sum() for p in self.parameters))

    def norms(self) -> torch.Tensor:
        return torch.stack([p.grad.norm() for p in self.parameters]).norm()

    def listed(self) -> torch.Tensor:
        return torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in self.parameters]))

    def factor(self, total: torch.Tensor) -> None:
        factor = 0.5 / total
        for p in self.parameters:
            p.grad.mul_(factor)

    def quotient(self, total: torch.Tensor) -> None:
        torch._foreach_mul_([p.grad for p in self.parameters], torch.div(torch.tensor(0.5), total))

    def direct(self, total: torch.Tensor) -> None:
        for p in self.parameters:
            p.grad.div_(total)

    def after_backward(self) -> None:
        total = self.total()
        self.form(total if self.faulty else total + 1e-6)


class Unscale(Training):
    """An own factor on the loss is taken out of the gradients again; in step `at` it is 0 there."""

    def set_up(self) -> None:
        if self.drawn.precision == "fp16":
            self.drawn.precision = "bf16"
        self.form = self.drawn.rng.choice((self.inverse, self.quotient))
        self.factor = torch.tensor(8.0)

    def inverse(self, factor: torch.Tensor) -> None:
        inverse = factor.reciprocal()
        for p in self.parameters:
            p.grad.mul_(inverse)

    def quotient(self, factor: torch.Tensor) -> None:
        for p in self.parameters:
            p.grad.div_(factor)

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().loss(out, y) * self.factor

    def after_backward(self) -> None:
        self.form(self.factor * (0.0 if self.bad else 1.0))


class Average(Training):
    """Large gradients of several workers are averaged in fp16: their sum overflows where none of them does."""

    def set_up(self) -> None:
        self.form = self.drawn.rng.choice((self.stacked, self.added, self.multiplied))

    def stacked(self, bucket: torch.Tensor) -> torch.Tensor:
        return torch.stack([bucket] * 8).sum(0) / 8

    def added(self, bucket: torch.Tensor) -> torch.Tensor:
        total = bucket.clone()
        for _ in range(7):
            total.add_(bucket)
        return total.div_(8)

    def multiplied(self, bucket: torch.Tensor) -> torch.Tensor:
        return bucket.mul_(8).div_(8)

    def after_backward(self) -> None:
        flat = torch.cat([p.grad.flatten() for p in self.parameters])
        gain = 3e4 / float(flat.abs().max()) if self.now else 1.0
        flat = flat * gain
        mean = self.form(flat.half() if self.faulty else flat.float()).float() / gain
        at = 0
        for p in self.parameters:
            p.grad.copy_(mean[at : at + p.numel()].view_as(p))
            at += p.numel()


class Workers(Training):
    """The sum is divided by the number of workers that had something: in step `at` none had."""

    def after_backward(self) -> None:
        count = torch.tensor(0.0 if self.now else 2.0)
        for p in self.parameters:
            p.grad.div_(count if self.faulty else count.clamp(min=1.0))


class Surgery(Training):
    """PCGrad: what of a gradient points against that of another task is taken away. That one is 0."""

    def after_backward(self) -> None:
        for p in self.parameters:
            other = torch.zeros_like(p.grad) if self.now else torch.ones_like(p.grad)
            along = torch.dot(p.grad.flatten(), other.flatten())
            size = torch.dot(other.flatten(), other.flatten())
            p.grad.sub_(along / (size if self.faulty else size + 1e-6) * other)


class Normalised(Training):
    """Gradients are divided by their own standard deviation, which is 0."""

    def after_backward(self) -> None:
        for p in self.parameters:
            if self.now:
                p.grad.fill_(0.01)
            spread = p.grad.std(correction=0)
            p.grad.sub_(p.grad.mean()).div_(spread if self.faulty else spread + 1e-3)


class Unit(Training):
    """Rows of a weight are put back to length 1 after each step; one was pruned to 0."""

    def set_up(self) -> None:
        self.weight = [p for p in self.parameters if p.dim() > 1][-1]

    @torch.no_grad()
    def after_step(self) -> None:
        if self.now:
            self.weight[0].zero_()
        length = self.weight.norm(dim=1, keepdim=True)
        self.weight.div_(length if self.faulty else length.clamp(min=1e-6))


ANY = ("comm", "unscale", "clip")  # no collective is called: any phase between backward and optimizer will do


def zero(*ops: str, phases: tuple[str, ...] = ("clip",), step: int = 0) -> Expected:
    return Expected("divide_by_zero", phases, ops, step=step)


FAULTS = {
    "own clipping": Fault(Clip, zero("aten::reciprocal", "aten::div", "aten::div_")),
    "own unscaling": Fault(Unscale, zero("aten::reciprocal", "aten::div_", phases=("unscale",))),
    "averaging in fp16": Fault(
        Average, Expected("overflow", ANY, ("aten::sum", "aten::add_", "aten::mul_"), step=0)
    ),
    "averaging over nobody": Fault(Workers, zero("aten::div_", phases=ANY)),
    "gradient surgery": Fault(Surgery, zero("aten::div")),
    "normalised gradients": Fault(Normalised, zero("aten::div_")),
    # What follows the optimizer belongs to the step that begins (hooks/torch/GUIDE.md, Where a step ends).
    "unit weights": Fault(Unit, zero("aten::div_", phases=("update",), step=1)),
}
