# SPDX-License-Identifier: Apache-2.0
"""Remedies of an optimizer whose update was not finite, tried on the gradients and moments that it had: an optimizer of
PyTorch's that divides by the root of a second moment. Nothing of it is called.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from nanhunt._steps.trial import MAX_ELEMENTS, Outcome, outcome_of, tensors
from nanhunt._tap.plain import NARROW

if TYPE_CHECKING:
    from nanhunt._steps.origin import Call

_Tensor = torch.Tensor
_SECOND = ("exp_avg_sq", "square_avg", "sum")
_NORMAL = 1e-3  # its square is a number of fp16


class _Known(NamedTuple):
    """What an optimizer had for one parameter. `before`: the parameter; zeros, where that is gone."""

    name: str
    group: Mapping[str, Any]
    state: Mapping[str, Any]
    grad: _Tensor
    before: _Tensor


# (Format of the arithmetic, format of the moments, eps; None: the optimizer's own): the update.
_Update = Callable[[torch.dtype, torch.dtype, "float | None"], _Tensor]


def of_optimizer(optimizers: Iterable[Any], call: Call) -> Iterator[tuple[str, Outcome]]:
    """(Id of the advice, what came of it.) Nothing where it is not known which parameter the call is of."""
    written = next(iter(tensors(call.results)), None)
    known = None if written is None or written.dtype not in NARROW else _known(optimizers, call, written)
    update = None if known is None else _adam(known) if _second(known) is not None else _adafactor(known)
    if known is None or update is None:
        return
    own, wide = known.before.dtype, torch.float32
    tries: list[tuple[str, str, torch.dtype, torch.dtype, float | None]] = [
        ("fp32-masters", "in fp32, its moments too", wide, wide, None),
        ("fused-optimizer", "in fp32, from its moments as they were stored", wide, own, None),
        ("eps-1e-4", "with an eps of 1e-4", own, own, 1e-4),
        ("raise-eps", f"with an eps of {_NORMAL:g}", own, own, _NORMAL)]
    for remedy, how, arithmetic, moments, eps in tries:
        if remedy == "fused-optimizer" and "fused" not in known.group:
            continue
        made = known.before.to(arithmetic) - update(arithmetic, moments, eps)
        stored = made if remedy == "fp32-masters" else made.to(own)
        yield remedy, outcome_of(f"{known.name} {how}; the update from these gradients", 1, [stored], stored.dtype)


def _known(optimizers: Iterable[Any], call: Call, written: _Tensor) -> _Known | None:
    """Of the parameter that was written so, else of the only one of this shape that has gone bad."""
    found: list[tuple[bool, Any, Mapping[str, Any], _Tensor]] = []
    for optimizer in optimizers:
        if not type(optimizer).__module__.startswith("torch.optim"):
            continue
        for group in optimizer.param_groups:
            for p in group["params"]:
                now = p.detach()
                if (now.dtype, now.shape, now.device) != (written.dtype, written.shape, written.device):
                    continue
                if now.numel() <= MAX_ELEMENTS and not bool(torch.isfinite(now).all()):
                    same = bool(((now == written) | (torch.isnan(now) & torch.isnan(written))).all())
                    found.append((same, optimizer, group, p))
    exact = [one for one in found if one[0]]
    if not exact and len(found) != 1:
        return None
    same, optimizer, group, p = (exact or found)[0]
    before = call.args[0] if call.args else None
    if p.grad is None or not bool(torch.isfinite(p.grad).all()) or p not in optimizer.state:
        return None
    if not same or not isinstance(before, _Tensor) or not bool(torch.isfinite(before).all()):
        before = torch.zeros_like(p, requires_grad=False)
    return _Known(type(optimizer).__name__, group, optimizer.state[p], p.grad.detach(), before.detach())


def _second(known: _Known) -> _Tensor | None:
    return next((known.state[key].detach() for key in _SECOND if isinstance(known.state.get(key), _Tensor)), None)


def _kept(moment: _Tensor, share: _Tensor, moments: torch.dtype) -> _Tensor:
    """A second moment; in fp32 it holds at least the share of this step's gradient."""
    return torch.maximum(moment.detach().float(), share) if moments == torch.float32 else moment.detach()


def _adam(known: _Known) -> _Update | None:
    """And its like: m / (sqrt(v) + eps)."""
    group, state, square = known.group, known.state, _second(known)
    if square is None or square.shape != known.grad.shape:
        return None
    first, second = group.get("betas", (0.0, group.get("alpha", 0.0)))
    steps, is_adam = float(state.get("step", 1)), "exp_avg" in state
    rate = float(group["lr"]) / (1 - float(first) ** steps if is_adam else 1)
    spread = (1 - float(second) ** steps) ** 0.5 if is_adam else 1.0
    share = known.grad.float().square() * (1 - float(second))
    moment = state["exp_avg"].detach() if is_adam else known.grad

    def update(arithmetic: torch.dtype, moments: torch.dtype, eps: float | None) -> _Tensor:
        root = _kept(square, share, moments).to(arithmetic).sqrt() / spread
        return rate * moment.to(arithmetic) / (root + (float(group["eps"]) if eps is None else eps))
    return update


def _adafactor(known: _Known) -> _Update | None:
    """g / sqrt(v), v being a product of means of rows and columns; `eps` guards their mean, its square v."""
    group, state, grad = known.group, known.state, known.grad.float()
    if "beta2_decay" not in group or not ("variance" in state or "row_var" in state):
        return None
    weight = float(state["step"]) ** float(group["beta2_decay"])
    own = group["eps"][0]
    own = torch.finfo(known.before.dtype).eps if own is None else float(own)

    def update(arithmetic: torch.dtype, moments: torch.dtype, eps: float | None) -> _Tensor:
        guard = own if eps is None else eps
        if "row_var" in state:
            row, column = (_kept(state[key], weight * grad.square().mean(dim, keepdim=True), moments).to(arithmetic)
                           for key, dim in (("row_var", -1), ("col_var", -2)))
            square = row @ column / row.mean(-2, keepdim=True).clamp(min=guard)
        else:
            square = _kept(state["variance"], weight * grad.square(), moments).to(arithmetic)
        made = square.clamp(min=guard * guard).rsqrt() * grad.to(arithmetic)
        size = float(made.float().norm()) / (made.numel() ** 0.5 * float(group["d"]))
        return made * (float(group["lr"]) / max(1.0, size))
    return update
