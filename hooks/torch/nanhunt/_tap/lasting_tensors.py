# SPDX-License-Identifier: Apache-2.0
"""What lasts from step to step, as the tap takes it: an optimizer's parameters and state, a module's parameters and
buffers."""
from __future__ import annotations

import weakref
from array import array
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from operator import attrgetter, is_not
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._names import plain_path
from nanhunt._pytorch import no_torch_function
from nanhunt._tap.plain import DTYPES, PLAIN, local
from nanhunt._tap.tap import Named, TensorSet

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.tap import Tap


# What runs for each tensor or module is C alone.
_address, _parameters, _buffers = attrgetter("_cdata"), attrgetter("_parameters"), attrgetter("_buffers")
_is_some = partial(is_not, None)
FULL_LOOK = 16  # uses: as often it is looked whether a tensor took another's place though that lives on


class OptimizerTensors:
    """Parameters and state of one optimizer. They are not kept alive: whoever uses it looks first whether they are
    there."""

    __slots__ = ("owned", "marked", "kinds", "parameters", "plain", "sharded", "_names", "_addresses",
                 "_sizes", "_uses")

    def __init__(self, session: Session, tap: Tap, optimizer: torch.optim.Optimizer) -> None:
        text, states = tap.text, optimizer.state
        self._names = session.parameter_names.changes
        now = _all(optimizer)
        self._addresses = _addresses(now)
        self._sizes, self._uses = _sizes(optimizer), 0
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
            if p.requires_grad and not _is_read(tap, tensors[-1]):
                session.note("unread parameters: their numbers are not in memory as strided tensors")
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
            self.kinds = array("q", [lib.MARK_PARAMETER] * len(tensors) + [lib.MARK_STATE] * len(more))
            lasting = [*tensors, *[t for t, _, _ in more]]
            self.marked = Named(lasting, [*owners, *[text(path) for _, _, path in more]], keep=False)
            self.plain = Named([t for t in lasting if type(t) in PLAIN], keep=False)
            self.owned = TensorSet([*lasting, *[t for t, _ in single]],
                                   [*owners, *[owner for _, owner, _ in more], *[owner for _, owner in single]])

    def is_current(self, session: Session, optimizer: torch.optim.Optimizer) -> bool:
        self._uses += 1
        groups = optimizer.param_groups
        sizes = [len(optimizer.state), len(groups[0]["params"])] if len(groups) == 1 else _sizes(optimizer)
        if self._names != session.parameter_names.changes or self._sizes != sizes or not self.owned.is_alive():
            return False
        # Tensors can be swapped.
        return self._uses % FULL_LOOK != 0 or _addresses(_all(optimizer)) == self._addresses


def _is_read(tap: Tap, t: torch.Tensor) -> bool:
    if type(t) in PLAIN and t.dtype in DTYPES and t.layout is torch.strided:
        return True
    with no_torch_function():
        return tap.describe(t, False) is not None


def _sizes(optimizer: torch.optim.Optimizer) -> list[int]:
    sizes = [len(optimizer.state)]
    for group in optimizer.param_groups:
        sizes.append(len(group["params"]))
    return sizes


def _all(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    states: Any = optimizer.state
    found: list[Any] = []
    for group in optimizer.param_groups:
        found += group["params"]
    found += _values_of([state for state in states.values() if type(state) is dict or isinstance(state, dict)])
    if PLAIN.issuperset(map(type, found)):
        return found
    return [t if type(t) in PLAIN else local(t) for t in found if type(t) in PLAIN or isinstance(t, torch.Tensor)]


def _addresses(tensors: Iterable[torch.Tensor]) -> list[int]:
    return [*map(_address, tensors)]


def _values_of(held: Iterable[Any]) -> Iterator[Any]:
    """Of dictionaries, or of what a scripted module has in their place."""
    return chain.from_iterable([d.values() for d in held])


class ModuleTensors:
    """Parameters and buffers of a root and of all modules below it. They are not kept alive either."""

    __slots__ = ("plain", "marked", "kinds", "at_kinds", "buffers", "marked_buffers", "_root", "_addresses",
                 "_addresses_of_buffers", "_all", "_modules", "_uses")

    def __init__(self, session: Session, tap: Tap, root: torch.nn.Module, name: str) -> None:
        modules = _modules_of(root)
        held = _buffers_of(modules)
        now = [*_parameters_of(modules), *held]
        self._root, self._uses = weakref.ref(root), 0
        self._all, self._addresses, self._addresses_of_buffers = TensorSet(now), _addresses(now), _addresses(held)
        self._modules = [*map(weakref.ref, modules)]
        names = session.parameter_names
        parameters = [(p, names.get(id(p), path)) for path, p in root.named_parameters()]
        buffers = [(b, plain_path(name, path)) for path, b in root.named_buffers() if b.is_floating_point()]
        with no_torch_function():
            self.kinds = array("q", [lib.MARK_PARAMETER] * len(parameters) + [lib.MARK_BUFFER] * len(buffers))
            self.at_kinds = self.kinds.buffer_info()
            named = [*parameters, *buffers]
            self.marked = TensorSet([local(t) for t, _ in named], [tap.text(path) for _, path in named])
            self.marked_buffers = _named(tap, buffers)
            self.buffers = Named([t for t in root.buffers() if type(t) in PLAIN], keep=False)
            self.plain = Named([t for t in now if type(t) in PLAIN], keep=False)

    def is_current(self, root: torch.nn.Module) -> bool:
        self._uses += 1
        if self._root() is not root or not self._all.is_alive():
            return False
        if self._uses % FULL_LOOK == 0:
            modules = _modules_of(root)
            return _addresses([*_parameters_of(modules), *_buffers_of(modules)]) == self._addresses
        if not self._addresses_of_buffers:
            return True
        alive = [*filter(_is_some, map(weakref.ref.__call__, self._modules))]
        # Buffers are assigned anew by many a module.
        return len(alive) == len(self._modules) and _addresses(_buffers_of(alive)) == self._addresses_of_buffers


def _named(tap: Tap, items: list[tuple[torch.Tensor, str]]) -> Named:
    return Named([local(t) for t, _ in items], [tap.text(path) for _, path in items], keep=False)


def _modules_of(root: torch.nn.Module) -> list[torch.nn.Module]:
    """Looked for without a call for each module."""
    todo, seen = [root], {id(root)}
    for module in todo:
        inner = module.__dict__["_modules"]
        if inner:
            parts = inner.values()
            for key, part in zip(map(id, parts), parts):
                if part is not None and key not in seen:
                    seen |= {key}
                    todo += part,
    return todo


def _parameters_of(modules: Iterable[Any]) -> list[torch.Tensor]:
    return [*filter(_is_some, _values_of(map(_parameters, modules)))]


def _buffers_of(modules: Iterable[Any]) -> list[torch.Tensor]:
    return [*filter(_is_some, _values_of(map(_buffers, modules)))]
