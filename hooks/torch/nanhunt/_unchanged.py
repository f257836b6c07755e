# SPDX-License-Identifier: Apache-2.0
"""What a replay must leave as it was: random states, attributes of modules, hooks, modes, autocast."""
from __future__ import annotations

import copy
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from nanhunt._tape import BackwardEntry, RootEntry

if TYPE_CHECKING:
    from nanhunt._places import Places
    from nanhunt._session import Session

_Tensor = torch.Tensor


@contextmanager
def quiet(session: Session) -> Iterator[None]:
    session.replaying = True
    phase, micro_batch = session.phase, session.micro_batch
    try:
        yield
    finally:
        session.replaying = False
        session.phase, session.micro_batch = phase, micro_batch


@contextmanager
def no_mode() -> Iterator[None]:
    """Our own computing is not recorded."""
    with torch.utils._python_dispatch._disable_current_modes():
        yield


@contextmanager
def random_states(needed: Sequence[Any]) -> Iterator[None]:
    cpu = torch.get_rng_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    cuda = [torch.cuda.get_rng_state(d) for d in devices]
    own = [(g, g.get_state()) for entry in needed if not isinstance(entry, BackwardEntry)
           for g, _ in entry.generators]
    python = random.getstate()
    numpy = sys.modules.get("numpy")
    numpys = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        for d, state in zip(devices, cuda):
            torch.cuda.set_rng_state(state, d)
        for g, state in own:
            g.set_state(state)
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(numpys)


def set_python_rng(state: Any) -> None:
    if state is None:
        return
    random.setstate(state[0])
    numpy = sys.modules.get("numpy")
    if numpy is not None and state[1] is not None:
        numpy.random.set_state(state[1])


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


class _Contents:
    """What forward may change in place: containers, three deep, and random generators of its own."""

    def __init__(self) -> None:
        self._saved: dict[int, tuple[Any, Any]] = {}

    def save(self, value: Any, depth: int = 0) -> None:
        if id(value) in self._saved or depth > 3:
            return
        kind = type(value)
        if kind in (list, dict, set, deque) or isinstance(value, dict):
            self._saved[id(value)] = value, copy.copy(value) if kind is not dict else dict(value)
            for item in list(value.values() if isinstance(value, dict) else value)[:10000]:
                self.save(item, depth + 1)
        elif isinstance(value, random.Random):
            self._saved[id(value)] = value, value.getstate()
        elif kind.__module__.startswith("numpy.random") and hasattr(value, "bit_generator"):
            self._saved[id(value)] = value, copy.deepcopy(value.bit_generator.state)
        elif isinstance(value, torch.Generator):
            self._saved[id(value)] = value, value.get_state()

    def restore(self) -> None:
        for value, before in self._saved.values():
            if isinstance(value, random.Random):
                value.setstate(before)
            elif isinstance(value, torch.Generator):
                value.set_state(before)
            elif hasattr(value, "bit_generator"):
                value.bit_generator.state = before
            elif isinstance(value, dict):
                if len(value) != len(before) or any(value.get(k, value) is not v for k, v in before.items()):
                    value.clear()
                    value.update(before)
            elif isinstance(value, set):
                if value != before:
                    value.clear()
                    value.update(before)
            elif len(value) != len(before) or any(a is not b for a, b in zip(value, before)):
                value.clear()
                value.extend(before)


_MAX_COPIES = 4 << 30  # bytes of parameters


class _Weights:
    """Parameters that forward may write: averages of other weights, codebooks."""

    def __init__(self) -> None:
        self._saved: dict[int, tuple[Any, _Tensor, _Tensor, int]] = {}
        self._bytes = 0

    def save(self, p: Any) -> None:
        if not isinstance(p, _Tensor) or id(p) in self._saved or p.layout is not torch.strided:
            return
        size = p.numel() * p.element_size()
        if p.requires_grad and self._bytes + size > _MAX_COPIES:
            return
        self._bytes += size
        data = p.data
        self._saved[id(p)] = p, data, data.clone(), p._version

    def restore(self) -> None:
        for p, data, before, version in self._saved.values():
            if p.data_ptr() != data.data_ptr() or p.shape != data.shape:
                p.data = data
            if not torch.equal(data.contiguous().view(-1).view(torch.uint8) if data.numel() else data,
                               before.contiguous().view(-1).view(torch.uint8) if data.numel() else before):
                data.copy_(before)
            if p._version != version:
                torch._C._autograd._unsafe_set_version_counter((p,), (version,))


@contextmanager
def attributes_of(needed: Sequence[Any]) -> Iterator[None]:
    """Attributes of the modules (counters, caches, generators) and parameters that forward itself writes."""
    saved: list[tuple[Any, dict[str, Any]]] = []
    contents, weights = _Contents(), _Weights()
    seen: set[int] = set()
    with no_mode(), torch.no_grad():
        for entry in needed:
            if isinstance(entry, RootEntry):
                for module in modules_in(entry.module):
                    if id(module) not in seen:
                        seen.add(id(module))
                        saved.append((module.__dict__, dict(module.__dict__)))
                        for value in module.__dict__.values():
                            contents.save(value)
                        for p in module._parameters.values():
                            weights.save(p)
    try:
        yield
    finally:
        contents.restore()
        with no_mode(), torch.no_grad():
            weights.restore()
        for attributes, before in saved:
            for name in [n for n in attributes if n not in before]:
                del attributes[name]
            for name, value in before.items():
                if attributes.get(name, attributes) is not value:
                    attributes[name] = value


@contextmanager
def no_accumulation_hooks(parameters: Sequence[_Tensor]) -> Iterator[None]:
    """Hooks that run after a gradient was accumulated belong to the run: optimizers in backward, reducers."""
    saved = []
    for p in parameters:
        hooks = getattr(p, "_post_accumulate_grad_hooks", None)
        if hooks:
            saved.append((hooks, dict(hooks)))
            hooks.clear()
    try:
        yield
    finally:
        for hooks, before in saved:
            hooks.update(before)


@contextmanager
def eagerly() -> Iterator[None]:
    """Compiled code runs as it was written."""
    if "torch._dynamo" not in sys.modules or not hasattr(torch.compiler, "set_stance"):
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def module_hooks(places: Places, in_backward: Callable[[], bool]) -> Iterator[None]:
    """Which module runs, during the replay. What runs in backward is run again by a checkpoint."""
    from torch.nn.modules import module as modules

    depth = 0

    def enter(module: torch.nn.Module, args: Any) -> None:
        nonlocal depth
        if in_backward():
            places.enter(module)
            return
        depth += 1
        if depth > 1:  # the root itself was entered by the replay
            places.enter(module)

    def leave(module: torch.nn.Module, args: Any, output: Any) -> None:
        nonlocal depth
        if in_backward():
            places.exit()
            return
        if depth > 1:
            places.exit()
        depth -= 1

    handles = [modules.register_module_forward_pre_hook(enter),
               modules.register_module_forward_hook(leave, always_call=True)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Autocast:
    """The state of autocast. In a replay it is set by hand: leaving and entering would drop its cache between calls of
    a module that share a region, and gradients would be added up in another order."""

    nested = False

    @staticmethod
    def get(device: str) -> Any:
        if device != "cpu" and not torch.is_autocast_enabled(device) and not torch.is_autocast_enabled("cpu"):
            return None
        state = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in dict.fromkeys(("cpu", device))]
        if not any(on for _, on, _ in state):
            return None
        return state, torch.is_autocast_cache_enabled()

    @classmethod
    @contextmanager
    def saved(cls) -> Iterator[None]:
        devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
        before = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices]
        cache = torch.is_autocast_cache_enabled()
        cls.nested = torch.autocast_increment_nesting() > 1  # the run is inside autocast: its cache is not ours to use
        try:
            yield
        finally:
            if torch.autocast_decrement_nesting() == 0:
                torch.clear_autocast_cache()
            for d, on, dtype in before:
                torch.set_autocast_enabled(d, on)
                torch.set_autocast_dtype(d, dtype)
            torch.set_autocast_cache_enabled(cache)

    @classmethod
    def set(cls, state: Any) -> None:
        if state is None:
            torch.set_autocast_enabled("cpu", False)
            if torch.cuda.is_available():
                torch.set_autocast_enabled("cuda", False)
            return
        for d, on, dtype in state[0]:
            torch.set_autocast_dtype(d, dtype)
            torch.set_autocast_enabled(d, on)
        torch.set_autocast_cache_enabled(state[1] and not cls.nested)

    @classmethod
    def end_region(cls) -> None:
        if not cls.nested:
            torch.clear_autocast_cache()
