# SPDX-License-Identifier: Apache-2.0
"""Remedies of an optimizer whose update was not finite, tried on the gradients and moments that it had: an optimizer of
PyTorch's that divides by the root of a second moment. Nothing of it is called.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from nanhunt._steps.trial import MAX_ELEMENTS, NARROW, Outcome, outcome_of, tensors

if TYPE_CHECKING:
    from nanhunt._steps.origin import Call

_Tensor = torch.Tensor
_SECOND = ("exp_avg_sq", "square_avg", "sum")


def of_optimizer(optimizers: Iterable[Any], call: Call) -> Iterator[tuple[str, Outcome]]:
    """(Id of the advice, what came of it.) Nothing where it is not known which parameter the call wrote."""
    written = next(iter(tensors(call.results)), None)
    before = call.args[0] if call.args else None
    if written is None or not isinstance(before, _Tensor) or written.dtype not in NARROW:
        return
    for optimizer in optimizers:
        if not type(optimizer).__module__.startswith("torch.optim."):
            continue
        for group in optimizer.param_groups:
            for p in group["params"]:
                if _shows(p, written):
                    yield from _of(type(optimizer).__name__, group, p.grad, optimizer.state.get(p, {}), before)
                    return


def _shows(p: _Tensor, written: _Tensor) -> bool:
    if p.dtype != written.dtype or p.shape != written.shape or p.device != written.device or p.numel() > MAX_ELEMENTS:
        return False
    now = p.detach()
    return bool(((now == written) | (torch.isnan(now) & torch.isnan(written))).all())


def _of(name: str, group: Mapping[str, Any], grad: _Tensor | None, state: Mapping[str, Any],
        before: _Tensor) -> Iterator[tuple[str, Outcome]]:
    square = next((state[key] for key in _SECOND if isinstance(state.get(key), _Tensor)), None)
    if square is None or grad is None or grad.shape != square.shape or not bool(torch.isfinite(grad).all()):
        return
    first, second = group.get("betas", (0.0, group.get("alpha", 0.0)))
    first, second, eps, lr = float(first), float(second), float(group["eps"]), float(group["lr"])
    steps = float(state.get("step", 1))
    adam = "exp_avg" in state
    rate = lr / (1 - first ** steps if adam else 1)
    spread = (1 - second ** steps) ** 0.5 if adam else 1.0
    moment = (state["exp_avg"] if adam else grad).detach()

    def update(square: _Tensor, eps: float, format: torch.dtype) -> _Tensor:
        divisor = (square.to(format).sqrt() / spread).to(format) + eps
        return before.to(format) - rate * moment.to(format) / divisor

    # Of this step's gradient a second moment in fp32 holds at least its share.
    share = grad.detach().float().square() * (1 - second)
    rows = (("fp32-masters", "in fp32, its moments too", torch.float32,
             update(torch.maximum(square.detach().float(), share), eps, torch.float32)),
            ("fused-optimizer", "in fp32, from its moments as they were stored", before.dtype,
             update(square.detach(), eps, torch.float32).to(before.dtype)),
            ("eps-1e-4", "with an eps of 1e-4", before.dtype, update(square.detach(), 1e-4, before.dtype)))
    for remedy, how, dtype, made in rows:
        yield remedy, outcome_of(f"the update of {name} {how}, from these gradients", 1, [made], dtype)
