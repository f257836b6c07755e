# SPDX-License-Identifier: Apache-2.0
"""What is known of objects, found by their identity for as long as they live."""
from __future__ import annotations

import weakref
from typing import Any, TypeVar

T = TypeVar("T")


class WeakIdDict(dict[int, T]):
    """By id(object). An entry ends with its object, for a dead one's id is soon another's. Reading costs what a dict
    costs. Identity, not equality: a module may define what it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0  # how often entries came or went
        self._alive: dict[int, weakref.ref[Any]] = {}

    def set(self, thing: Any, what: T) -> None:
        key = id(thing)
        if key not in self._alive:
            self._alive[key] = weakref.ref(thing, lambda _: self._ended(key))
        self[key] = what
        self.changes += 1

    def set_new(self, thing: Any, what: T) -> None:
        """Only where nothing is known of it yet."""
        if id(thing) not in self:
            self.set(thing, what)

    def items_alive(self) -> list[tuple[Any, T]]:
        found = [(alive(), self.get(key)) for key, alive in list(self._alive.items())]
        return [(thing, what) for thing, what in found if thing is not None and what is not None]

    def _ended(self, key: int) -> None:
        self.pop(key, None)
        self._alive.pop(key, None)
        self.changes += 1
