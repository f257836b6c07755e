# SPDX-License-Identifier: Apache-2.0
"""What is known of one root module: what its calls write, draw from and set."""
from __future__ import annotations

import random
import sys
import weakref
from typing import Any

import torch

_MAX_BUFFER_COPY = 64 << 20
LEARNING = 3  # calls of a root in which is found out what forward changes


class RootInfo:
    """What is known of one root module."""

    __slots__ = ("module", "device", "generators", "buffers", "buffer_paths", "hot", "versions", "copied_in", "writes",
                 "python_rng", "draws", "calls", "attributes", "before")

    def __init__(self, module: torch.nn.Module, name: str) -> None:
        from nanhunt._session import plain_module, plain_path

        self.module = weakref.ref(module)
        parameter = next(module.parameters(), None)
        self.device = parameter.device if parameter is not None else torch.device("cpu")
        self.generators = [g for part in module.modules() for g in vars(part).values()
                           if isinstance(g, torch.Generator)]
        named = list(plain_module(module).named_buffers())
        self.buffers = [b for _, b in named]
        self.buffer_paths = [plain_path(name, path) for path, _ in named]
        # The first call copies all that fits; later ones what was seen to be written.
        size = sum(b.numel() * b.element_size() for b in self.buffers)
        self.hot: set[int] = set(range(len(named))) if size <= _MAX_BUFFER_COPY else set()
        self.versions: list[int] = []        # of buffers when the last call ended
        self.copied_in = (-1, -1)            # step and segment of the last copy
        self.writes = False                  # forward writes its inputs
        self.python_rng = True               # random and numpy.random are saved
        self.draws = False                   # ... for forward draws from them
        self.calls = 0
        self.attributes: list[tuple[dict[str, Any], str]] = []  # that forward sets: counters, hidden states
        self.before: Any = None              # attributes before a call of the first few

    def save_attributes(self) -> list[tuple[dict[str, Any], str, Any]]:
        """Those that forward is known to set, as they are before the call."""
        if self.calls < LEARNING:
            module = self.module()
            self.before = [] if module is None else [(m.__dict__, dict(m.__dict__)) for m in module.modules()]
            return [(held, name, value) for held, before in self.before for name, value in before.items()
                    if not isinstance(value, dict)]
        return [(held, name, held.get(name)) for held, name in self.attributes]

    def learn_attributes(self) -> None:
        if self.before is None:
            return
        known = {(id(held), name) for held, name in self.attributes}
        for held, before in self.before:
            self.attributes += [(held, name) for name, value in before.items()
                                if held.get(name) is not value and (id(held), name) not in known]
        self.before = None


def python_rng() -> Any:
    numpy = sys.modules.get("numpy")
    return random.getstate(), numpy.random.get_state() if numpy is not None else None


def same_rng(a: Any, b: Any) -> bool:
    if a is None or a[0] != b[0] or (a[1] is None) != (b[1] is None):
        return False
    return a[1] is None or (a[1][2:] == b[1][2:] and bool((a[1][1] == b[1][1]).all()))
