# SPDX-License-Identifier: Apache-2.0
"""What lasts from step to step, as the tap takes it: an optimizer's parameters and state, a module's parameters and
buffers."""
from __future__ import annotations

import operator
import weakref
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._tap.plain import PLAIN, local, no_torch_function
from nanhunt._tap.tap import Named

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.tap import Tap


class OptimizerTensors:
    """Parameters and state of one optimizer. They are not kept alive: whoever uses it looks first whether they are
    there."""

    __slots__ = ("owned", "marked", "kinds", "parameters", "plain", "sharded", "_names", "_seen", "_addresses")

    def __init__(self, session: Session, tap: Tap, optimizer: torch.optim.Optimizer) -> None:
        text, states = tap.text, optimizer.state
        self._names = session.parameter_names.changes
        now = _all(optimizer)
        self._seen, self._addresses = [weakref.ref(t) for t in now], [t._cdata for t in now]
        tensors: list[torch.Tensor] = []
        owners: list[int] = []
        self.sharded: list[tuple[torch.Tensor, str]] = []  # the tap does not see their gradients; they last
        more: list[tuple[torch.Tensor, int, str]] = []
        single: list[tuple[torch.Tensor, int]] = []
        for p, path in session.parameters_of(optimizer):
            owner = text(path)
            tensors.append(local(p))
            if tensors[-1] is not p:
                self.sharded.append((p, path))
            owners.append(owner)
            if p not in states:
                continue
            for name, t in states[p].items():
                if isinstance(t, torch.Tensor):
                    t = local(t)
                    if t.numel() > 1:
                        more.append((t, owner, f"{path}.{name}"))
                    else:
                        single.append((t, owner))
        with no_torch_function():
            self.parameters = len(tensors)
            self.kinds = [lib.MARK_PARAMETER] * len(tensors) + [lib.MARK_STATE] * len(more)
            lasting = [*tensors, *[t for t, _, _ in more]]
            self.marked = Named(lasting, [*owners, *[text(path) for _, _, path in more]], keep=False)
            self.plain = Named([t for t in lasting if type(t) in PLAIN], keep=False)
            self.owned = Named([*lasting, *[t for t, _ in single]],
                               [*owners, *[owner for _, owner, _ in more], *[owner for _, owner in single]], keep=False)

    def is_current(self, session: Session, optimizer: torch.optim.Optimizer) -> bool:
        now = _all(optimizer)
        return (self._names == session.parameter_names.changes and len(now) == len(self._seen)
                and all(map(operator.is_, now, [seen() for seen in self._seen]))
                and [t._cdata for t in now] == self._addresses)  # tensors can be swapped


def _all(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    states: Any = optimizer.state
    found: list[Any] = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            found.append(p)
            state = states.get(p)
            if state:
                found += state.values()
    return [local(t) for t in found if isinstance(t, torch.Tensor)]


def tensors_of(root: torch.nn.Module, parameters: bool = True) -> list[torch.Tensor]:
    """Parameters and buffers of a module and all below it, each module once."""
    found: list[torch.Tensor] = []
    todo, seen = [root], {id(root)}
    while todo:
        held = todo.pop().__dict__
        if parameters:
            found += [p for p in held["_parameters"].values() if p is not None]
        found += [b for b in held["_buffers"].values() if b is not None]
        for module in held["_modules"].values():
            if module is not None and id(module) not in seen:
                seen.add(id(module))
                todo.append(module)
    return found
