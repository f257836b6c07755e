# SPDX-License-Identifier: Apache-2.0
"""Level ops: what lasts from step to step, and changed although nothing that is watched wrote it. The tap compares."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import torch

from nanhunt import _device
from nanhunt._listener import Listener, RootCall
from nanhunt._pytorch import accelerator
from nanhunt._tap.plain import PLAIN
from nanhunt._tap.tap import Named

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.tap import Tap
    from nanhunt._tap.values import Values

_WRITTEN, _LOOK, _LOOK_AT_HOST = range(3)
_EVERY = 8  # steps in which contents are compared at level live; so are those of the first so many


class LastingWatch(Listener):
    """Which tensors last, and when the tap reads them: not in a step between others that were not heard, which has
    nothing to be compared with."""

    def __init__(self, session: Session, values: Values) -> None:
        self.session, self.values = session, values
        session.at_open.append(self._look_for_a_device)
        self._seen_in = -2           # the last step in which any were read
        self._graphs = False         # CUDA graphs, whose replays write past torch's count, are captured or replayed
        self.looks_for_graphs = False  # there is a device, and no such graph was met so far
        # Whether contents are compared in the step that runs, with what they were when they were written last, and
        # whether it writes down what those of the next one are compared with.
        self.compares = self.prepares = True

    def _look_for_a_device(self) -> None:
        self.looks_for_graphs = bool(accelerator()) and not self._graphs

    def look_for_graphs(self) -> None:
        if _device.is_capturing():
            self.on_graph()

    def look_at_root(self, call: RootCall) -> None:
        self._pass_on(self.values.tensors_of_root(call.module, call.name).plain, _LOOK)

    def begin_held_step(self, step: int) -> None:
        self.prepares = self.session.hears_exits = step < _EVERY or (step + 1) % _EVERY == 0
        self.compares = (step <= _EVERY or step % _EVERY == 0) and (
            self.session.options.budget is None or self._seen_in >= step - 1)

    def look_at(self, optimizer: torch.optim.Optimizer) -> None:
        self._pass_on(self.values.tensors_of(optimizer).plain, _LOOK)

    def leave_step(self, tap: Tap, optimizer: torch.optim.Optimizer) -> None:
        tensors = self.values.tensors_of(optimizer)
        if tap.misses_subclasses and tensors.sharded:
            tap.were_written(tensors.owned)
        if self.prepares:
            self._pass_on(tensors.plain, _WRITTEN)

    def on_root_exit(self, call: RootCall, output: Any) -> None:
        if self.prepares and self.session.places is not None:
            self._pass_on(self.values.tensors_of_root(call.module, call.name).buffers, _WRITTEN)

    def look_at_leaves(self) -> None:
        self._pass_on(self._leaves(), _LOOK)

    def before_last_end(self) -> None:
        """What was written past PyTorch after the last op that was heard is read by nobody else. At level live
        StepWatch reads it."""
        session, values = self.session, self.values
        if session.tap is None or session.options.level != "ops":
            return
        for optimizer in session._keep:
            self.look_at(optimizer)
        for reference, name in list(session.roots.values()):
            root = reference()
            if root is not None:
                self._pass_on(values.tensors_of_root(root, name).plain, _LOOK)
        self._pass_on(self._leaves(), _LOOK)
        session.tap.look_at_copies()

    def _leaves(self) -> Named:
        """What the program trains without a module or an optimizer."""
        return Named([leaf for leaf in self.session.alive_leaves() if type(leaf) in PLAIN])

    def on_graph(self) -> None:
        """A CUDA graph is being captured, or replayed."""
        if not self._graphs:
            self._graphs, self.looks_for_graphs = True, False
            self.session.note("writes past PyTorch to tensors of a device, once a CUDA graph was captured")

    def on_resized(self, storage: Any) -> None:
        """Its memory went or came back, and then nothing of what it held is there: sharded training does so."""
        tap = self.session.tap
        if tap is not None and tap.known_word(storage._cdata):
            tap.written(storage._cdata)

    def _pass_on(self, tensors: Named, how: int) -> None:
        tap, recorder = self.session.tap, self.session.recorder
        if tap is None or recorder is None or not tensors.count:
            return
        if how == _LOOK and self.looks_for_graphs and (
                _device.is_capturing() or recorder.device_counts().captured > 0):
            self.on_graph()
        self._seen_in = self.session.state.step
        tap.lasting(tensors, _LOOK_AT_HOST if how == _LOOK and self._graphs else how)


def listen(patch: Callable[..., None]) -> None:
    """`patch`: of hooks."""
    patch(torch.UntypedStorage, "resize_", _storage_resized, trains=False)
    for name in ("capture_begin", "replay"):
        patch(torch.cuda.CUDAGraph, name, _graph_used, trains=False)


def _storage_resized(session: Session, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    before = args[0].nbytes()
    result = original(*args, **kwargs)
    if before == 0 or args[0].nbytes() < before:  # one that only grows keeps what it holds
        session.notify("on_resized", args[0])
    return result


def _graph_used(session: Session, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    session.notify("on_graph")
    return original(*args, **kwargs)
