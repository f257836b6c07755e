# SPDX-License-Identifier: Apache-2.0
"""What hangs on modules and changes without being replaced: containers three deep, random generators, tensors."""
from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from nanhunt._pytorch import set_version

_Tensor = torch.Tensor
_MAX_ITEMS = 10000
_MAX_COPIES = 4 << 30  # bytes
# What every module has: torch's own business.
OWN = frozenset(vars(torch.nn.Module())) - {"training"}


def modules_in(root: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """All modules of a root, those in plain lists and dicts of its modules included."""
    seen: set[int] = set()
    todo: list[Any] = [root]
    while todo:
        module = todo.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield module
        for value in module.__dict__.values():
            items = value.values() if isinstance(value, dict) else value
            if not isinstance(value, (dict, list, tuple)):
                items = (value,)
            todo += [item for item in items if isinstance(item, torch.nn.Module)]


def is_container(value: Any) -> bool:
    return type(value) in (list, dict, set, deque) or isinstance(value, dict)


def is_generator(value: Any) -> bool:
    return isinstance(value, (random.Random, torch.Generator)) or (
        type(value).__module__.startswith("numpy.random") and hasattr(value, "bit_generator"))


def state_of(value: Any) -> Any:
    """What `put` needs to make it again as it is now."""
    if isinstance(value, _Tensor):
        return value.detach().clone()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.Generator):
        return value.get_state()
    if hasattr(value, "bit_generator"):
        return copy.deepcopy(value.bit_generator.state)
    return dict(value) if type(value) is dict else copy.copy(value)


def is_as(value: Any, before: Any) -> bool:
    """Of containers and generators: whether their state is this one."""
    if isinstance(value, random.Random):
        return bool(value.getstate() == before)
    if isinstance(value, torch.Generator):
        return torch.equal(value.get_state(), before)
    if hasattr(value, "bit_generator"):
        return str(value.bit_generator.state) == str(before)
    if isinstance(value, dict):
        return len(value) == len(before) and all(value.get(k, value) is v for k, v in before.items())
    if isinstance(value, set):
        return bool(value == before)
    return len(value) == len(before) and all(a is b for a, b in zip(value, before))


def put(value: Any, before: Any) -> None:
    if isinstance(value, _Tensor):
        value.data.copy_(before)
    elif isinstance(value, random.Random):
        value.setstate(before)
    elif isinstance(value, torch.Generator):
        value.set_state(before)
    elif hasattr(value, "bit_generator"):
        value.bit_generator.state = before
    elif not is_as(value, before):
        value.clear()
        if isinstance(value, (dict, set)):
            value.update(before)
        else:
            value.extend(before)


class Contents:
    """Containers and generators as they were, and the plain tensors that were met on the way."""

    def __init__(self) -> None:
        self._saved: dict[int, tuple[Any, Any]] = {}
        self.tensors: dict[int, _Tensor] = {}

    def save(self, value: Any, depth: int = 0) -> None:
        if isinstance(value, _Tensor):
            self.tensors[id(value)] = value
        elif is_container(value):
            if id(value) in self._saved or depth > 3:
                return
            self._saved[id(value)] = value, state_of(value)
            for item in list(value.values() if isinstance(value, dict) else value)[:_MAX_ITEMS]:
                self.save(item, depth + 1)
        elif is_generator(value):
            self._saved.setdefault(id(value), (value, state_of(value)))

    def before(self, value: Any) -> Any:
        return self._saved[id(value)][1]

    def changed(self) -> Iterator[tuple[Any, Any]]:
        """Those that are no longer as they were, and how they were."""
        for value, before in self._saved.values():
            if not is_as(value, before):
                yield value, before

    def restore(self) -> None:
        for value, before in self._saved.values():
            put(value, before)


class Tensors:
    """Tensors that are written in place: averages of other weights, codebooks, queues. Those that nobody will put back
    are not copied."""

    def __init__(self, restores: bool) -> None:
        self._restores = restores
        self._saved: dict[int, tuple[Any, _Tensor, _Tensor, int]] = {}
        self._bytes = 0
        self.left_out = 0  # bytes of tensors that are no parameters and too large

    def save(self, p: Any) -> None:
        if not isinstance(p, _Tensor) or id(p) in self._saved or not has_contents(p):
            return
        size = p.numel() * p.element_size() if self._restores else 0
        if self._bytes + size > _MAX_COPIES:
            if not isinstance(p, torch.nn.Parameter):
                self.left_out += size
            if p.requires_grad or self.left_out:
                return
        self._bytes += size
        data = p.data
        self._saved[id(p)] = p, data, data.clone() if self._restores else data, p._version

    def changed(self) -> Iterator[_Tensor]:
        for p, data, _, version in self._saved.values():
            if p._version != version or p.data_ptr() != data.data_ptr():
                yield p

    def restore(self) -> None:
        for p, data, before, version in self._saved.values():
            if p.data_ptr() != data.data_ptr() or p.shape != data.shape:
                p.data = data
            if not same_bits(data, before):
                data.copy_(before)
            if p._version != version:
                set_version(p, version)


def has_contents(t: _Tensor) -> bool:
    return t.layout is torch.strided and not t.is_meta and not t.is_inference()


def same_bits(a: _Tensor, b: _Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.numel():
        return True
    return torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))


class Picture:
    """Everything that a call of a root may change on its modules, as it is now."""

    def __init__(self, root: torch.nn.Module) -> None:
        self.attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.contents = Contents()
        for module in modules_in(root):
            held = module.__dict__
            self.attributes.append((held, dict(held)))
            self.attributes += [(part, dict(part)) for part in (module._buffers, module._parameters)]
            for name, value in held.items():
                if name not in OWN:
                    self.contents.save(value)
            for p in module._parameters.values():
                self.contents.save(p)
        self._tensors = [(t, t._version, t.data_ptr()) for t in self.contents.tensors.values() if has_contents(t)]

    def replaced(self) -> Iterator[tuple[dict[str, Any], str, Any]]:
        """Attributes, buffers and parameters that are others now: where, their names, what they were."""
        for held, before in self.attributes:
            for name, value in before.items():
                if held.get(name, held) is not value:
                    yield held, name, value

    def written(self) -> Iterator[_Tensor]:
        for t, version, data in self._tensors:
            if t._version != version or t.data_ptr() != data:
                yield t
