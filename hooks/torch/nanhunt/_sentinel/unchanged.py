# SPDX-License-Identifier: Apache-2.0
"""What a replay must leave as it was: random states, attributes of modules, hooks, modes, autocast."""
from __future__ import annotations

import logging
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from nanhunt._hooks import calls
from nanhunt._pytorch import accelerator, is_autocast_on
from nanhunt._random import devices_in_use, random_state, set_random_state
from nanhunt._sentinel.contents import OWN, Contents, Tensors, modules_in
from nanhunt._sentinel.tape import BackwardEntry, RootEntry
from nanhunt._tap.tap_library import unheard

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.places import Places

_Tensor = torch.Tensor


@contextmanager
def quiet(session: Session) -> Iterator[None]:
    session.replaying = True
    phase, micro_batch = session.phase, session.micro_batch
    mode, calls.follow.mode = calls.follow.mode, calls.STRAIGHT  # a program may end inside of a root
    try:
        yield
    finally:
        session.replaying, calls.follow.mode = False, mode
        session.phase, session.micro_batch = phase, micro_batch


@contextmanager
def no_mode() -> Iterator[None]:
    """Our own computing is not recorded."""
    with unheard(), torch.utils._python_dispatch._disable_current_modes():
        yield


class _Hushed:
    """A stream that is deaf to one thread."""

    def __init__(self, stream: Any, thread: int) -> None:
        self._stream, self._thread = stream, thread

    def _is_deaf(self) -> bool:
        return threading.get_ident() == self._thread

    def write(self, text: Any) -> Any:
        return len(text) if self._is_deaf() else self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        if not self._is_deaf():
            self._stream.writelines(lines)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._stream)


@contextmanager
def hushed() -> Iterator[None]:
    """What Python code of this thread prints or logs, the step has told before. Streams that were taken earlier, as
    progress bars do, and what is printed past Python are not held off."""
    thread = threading.get_ident()
    before = sys.stdout, sys.stderr
    ours = [_Hushed(stream, thread) if stream is not None else None for stream in before]
    handle = logging.Logger.handle

    def handle_of_others(logger: logging.Logger, record: logging.LogRecord) -> None:
        if threading.get_ident() != thread:
            handle(logger, record)

    sys.stdout, sys.stderr = ours  # type: ignore[assignment]
    logging.Logger.handle = handle_of_others  # type: ignore[assignment]
    try:
        yield
    finally:
        logging.Logger.handle = handle  # type: ignore[method-assign]
        for one in ours:
            if one is not None:
                one._thread = 0  # whoever took it meanwhile is heard
        sys.stdout, sys.stderr = before


@contextmanager
def random_states(needed: Sequence[Any]) -> Iterator[None]:
    before = random_state(devices_in_use())
    own = [(g, g.get_state()) for entry in needed if not isinstance(entry, BackwardEntry)
           for g, _ in entry.generators]
    python = random.getstate()
    numpy = sys.modules.get("numpy")
    numpys = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        set_random_state(before)
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


class Hanging:
    """What hangs on the modules of a replay, as the run left it."""

    def __init__(self, needed: Sequence[Any], restores: bool) -> None:
        self._restores = restores
        self._attributes: list[tuple[dict[str, Any], dict[str, Any], Any]] = []  # of a module: now, before; its root
        self._contents, self._own, self.tensors = Contents(), Contents(), Tensors(restores)
        roots = {id(e.module): e for e in needed if isinstance(e, RootEntry)}
        modules = {id(m): (m, e.info) for e in roots.values() for m in modules_in(e.module)}
        for module, info in modules.values():
            held = module.__dict__
            self._attributes.append((held, dict(held), info))
            for name, value in held.items():
                (self._own if name in OWN else self._contents).save(value)
        for t in self._contents.tensors.values():
            self.tensors.save(t)
        for module, _ in modules.values():
            for p in module._parameters.values():
                self.tensors.save(p)

    def unforeseen(self, needed: Sequence[Any]) -> str:
        """What the replay has changed although what it was before the call is not known: the name of one; "": nothing.
        From the next step on it is known."""
        entries = [entry for entry in needed if isinstance(entry, RootEntry)]
        attributes = {(id(held), name) for entry in entries for held, name, _ in entry.attributes}
        things = {id(thing) for entry in entries for thing, _ in entry.things}
        found = ""
        for held, before, info in self._attributes:
            parameters = held["_parameters"]
            for now, was in ((held, before), (parameters, self._own.before(parameters))):
                for name, value in was.items():
                    if now.get(name, now) is not value and (id(now), name) not in attributes:
                        found = found or f"the attribute {name}"
                        if info is not None:
                            info.add_attribute(now, name)
        changed = [thing for thing, _ in self._contents.changed()]
        changed += list(self.tensors.changed())
        for thing in changed:
            if id(thing) not in things:
                found = found or f"a {type(thing).__name__}"
                for info in {id(entry.info): entry.info for entry in entries if entry.info is not None}.values():
                    info.add_thing(thing)
        return found

    def restore(self) -> None:
        if not self._restores:
            return
        self._contents.restore()
        self._own.restore()
        with no_mode(), torch.no_grad():
            self.tensors.restore()
        for attributes, before, _ in self._attributes:
            for name in [n for n in attributes if n not in before]:
                del attributes[name]
            for name, value in before.items():
                if attributes.get(name, attributes) is not value:
                    attributes[name] = value


@contextmanager
def attributes_of(needed: Sequence[Any], restores: bool) -> Iterator[Hanging]:
    """Attributes of the modules (counters, caches, generators) and tensors that forward itself writes."""
    with no_mode(), torch.no_grad():
        hanging = Hanging(needed, restores)
    try:
        yield hanging
    finally:
        hanging.restore()


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
    def devices() -> list[str]:
        other = accelerator()
        return ["cpu", other] if other and torch.amp.is_autocast_available(other) else ["cpu"]

    @staticmethod
    def get() -> Any:
        if not is_autocast_on():
            return None
        state = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in Autocast.devices()]
        return state, torch.is_autocast_cache_enabled()

    @classmethod
    @contextmanager
    def saved(cls) -> Iterator[None]:
        before = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in cls.devices()]
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
            for d in cls.devices():
                torch.set_autocast_enabled(d, False)
            return
        for d, on, dtype in state[0]:
            torch.set_autocast_dtype(d, dtype)
            torch.set_autocast_enabled(d, on)
        torch.set_autocast_cache_enabled(state[1] and not cls.nested)

    @classmethod
    def end_region(cls) -> None:
        if not cls.nested:
            torch.clear_autocast_cache()
