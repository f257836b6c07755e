# SPDX-License-Identifier: Apache-2.0
"""What is known of one root module: what its calls write, draw from and set."""
from __future__ import annotations

import random
import sys
import weakref
from typing import TYPE_CHECKING, Any

import torch

from nanhunt._names import first_parameter, plain_module
from nanhunt._random import other_devices, random_state
from nanhunt._sentinel.buffers import Buffers
from nanhunt._sentinel.contents import Picture, is_container, state_of
from nanhunt._sentinel.tape import Held, version_of

if TYPE_CHECKING:
    from nanhunt._sentinel.tape import RootEntry

LEARNING = 3             # calls of a root in which is found out what forward changes
_MAX_TENSORS = 1 << 20   # bytes that are copied in each call of what forward writes and is no buffer
_MAX_ITEMS = 10000       # of a container that is copied in each call


class RootInfo:
    """What is known of one root module."""

    __slots__ = ("module", "devices", "generators", "buffers", "writes", "python_rng", "draws", "calls", "attributes",
                 "things", "_before", "_chances", "_first_device")

    def __init__(self, module: torch.nn.Module, name: str) -> None:
        self.module = weakref.ref(module)
        self.devices: set[torch.device] = set()  # where its parameters and buffers are, beside the CPU
        self.generators = [g for part in module.modules() for g in vars(part).values()
                           if isinstance(g, torch.Generator)]
        self.buffers = Buffers(plain_module(module), name)
        self.writes = False                  # forward writes its inputs
        self.python_rng = True               # random and numpy.random are saved
        self.draws = False                   # ... for forward draws from them
        self.calls = 0
        # What forward changes: attributes, buffers and parameters that it replaces; containers, generators and tensors.
        self.attributes: list[tuple[dict[str, Any], str]] = []
        self.things: list[Any] = []
        self._before: Picture | None = None  # a call of the first few
        self._chances = 3
        self._first_device = _device_of(module)

    def is_of(self, module: torch.nn.Module) -> bool:
        """Whether it is what is known of this module. One that has moved to another device has other buffers."""
        return self.module() is module and self._first_device == _device_of(module)

    def learn_again(self) -> None:
        """What was learnt was not enough: its next calls are looked at as its first ones were."""
        module = self.module()
        if module is not None and self._chances:
            self._chances -= 1
            self.calls = 0
            self.buffers.find(plain_module(module))

    def before_call(self, entry: RootEntry) -> None:
        """What forward is known to change, as it is before the call."""
        module = self.module()
        if self.calls < LEARNING and module is not None:
            self.devices = other_devices([*module.parameters(), *module.buffers()])
        entry.rng = random_state(self.devices | other_devices([held.tensor for held in entry.inputs]))
        if self.calls < LEARNING and module is not None:
            self._before = Picture(module)
            self._save_things(entry)
        elif self.attributes or self.things:
            entry.attributes = [(held, name, _kept(held[name])) for held, name in self.attributes if name in held]
            self._save_things(entry)

    def _save_things(self, entry: RootEntry) -> None:
        size = 0
        with torch.no_grad():
            for thing in self.things:
                if isinstance(thing, torch.Tensor):
                    size += thing.numel() * thing.element_size()
                    if size > _MAX_TENSORS:
                        continue
                elif is_container(thing) and len(thing) > _MAX_ITEMS:
                    continue
                entry.things.append((thing, state_of(thing)))

    def after_call(self, entry: RootEntry) -> str:
        """Learns what forward changed. Why the call cannot be done again; "": it can."""
        self.calls += 1
        before, self._before = self._before, None
        if before is None:
            return ""
        for held, name, _ in before.replaced():
            self.add_attribute(held, name)
        known = {id(held): was for held, was in before.attributes}
        entry.attributes = [(held, name, _kept(known[id(held)][name])) for held, name in self.attributes
                            if name in known.get(id(held), ())]
        new = [(thing, was) for thing, was in before.contents.changed() if self.add_thing(thing)]
        entry.things += new
        written = [t for t in before.written() if self.add_thing(t)]
        return "a tensor that is no buffer was written by forward; from now on it is copied before the call" if (
            written) else ""

    def add_attribute(self, held: dict[str, Any], name: str) -> None:
        if not any(known is held and other == name for known, other in self.attributes):
            self.attributes.append((held, name))

    def add_thing(self, thing: Any) -> bool:
        """Whether it was not known."""
        if any(known is thing for known in (*self.things, *self.generators)):
            return False
        self.things.append(thing)
        return True


def _device_of(module: torch.nn.Module) -> torch.device | None:
    parameter = first_parameter(module)
    return parameter.device if parameter is not None else None


def _kept(value: Any) -> Any:
    """A tensor with its version: it must not be written before it is needed."""
    return Held(value, version_of(value)) if isinstance(value, torch.Tensor) else value


def python_rng() -> Any:
    numpy = sys.modules.get("numpy")
    return random.getstate(), numpy.random.get_state() if numpy is not None else None


def same_rng(a: Any, b: Any) -> bool:
    if a is None or a[0] != b[0] or (a[1] is None) != (b[1] is None):
        return False
    return a[1] is None or (a[1][2:] == b[1][2:] and bool((a[1][1] == b[1][1]).all()))
