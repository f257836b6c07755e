# SPDX-License-Identifier: Apache-2.0
"""Level ops: what lasts from step to step, and changed although nothing that is watched wrote it. The tap compares."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import torch

from nanhunt import _device
from nanhunt._listener import Listener
from nanhunt._pytorch import accelerator
from nanhunt._tap.plain import PLAIN
from nanhunt._tap.tap import Named

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.values import Values

_WRITTEN, _LOOK, _LOOK_AT_HOST = range(3)
_EVERY = 8  # steps in which contents are compared at level live; so are those of the first so many


class LastingWatch(Listener):
    """Which tensors last, and when the tap reads them: not in a step between others that were not heard, which has
    nothing to be compared with."""

    def __init__(self, session: Session, values: Values) -> None:
        self.session, self.values = session, values
        self._away = False           # there may be tensors on a device
        session.at_open.append(self._look_for_a_device)
        self._seen_in = -2           # the last step in which any were read
        self._graphs = False         # CUDA graphs, whose replays write past torch's count, are captured or replayed
        # Whether contents are compared in the step that runs, with what they were when they were written last, and
        # whether it writes down what those of the next one are compared with.
        self._compares = self._prepares = True

    def _look_for_a_device(self) -> None:
        self._away = bool(accelerator())

    def on_root_enter(self, call: Any) -> None:
        if self._away and not self._graphs and _device.is_capturing():
            self.on_graph()
        if call.index == 0 and self.session.tap is not None:
            if self._compares:
                self._pass_on(self.values.tensors_of_root(call.module, call.name).plain, _LOOK)
            self.session.tap.look_at_copies()

    def on_hold(self) -> None:
        step = self.session.state.step
        self._prepares = step < _EVERY or (step + 1) % _EVERY == 0
        self._compares = (step <= _EVERY or step % _EVERY == 0) and (
            self.session.options.budget is None or self._seen_in >= step - 1)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._compares and self.session.tap is not None:
            self._pass_on(self.values.tensors_of(optimizer).plain, _LOOK)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        tap = self.session.tap
        if tap is not None and not tap.library.hears_python() and self.values.tensors_of(optimizer).sharded:
            tap.were_written(self.values.tensors_of(optimizer).owned)  # in ops on a subclass, which were not heard
        if self._prepares and tap is not None:
            self._pass_on(self.values.tensors_of(optimizer).plain, _WRITTEN)

    def on_root_exit(self, call: Any, output: Any) -> None:
        if self._prepares and self.session.tap is not None:
            self._pass_on(self.values.tensors_of_root(call.module, call.name).buffers, _WRITTEN)

    def before_backward(self, tensors: Any, gradients: Any, kwargs: dict[str, Any]) -> None:
        if self._compares and self.session.leaves:
            self._pass_on(self._leaves(), _LOOK)

    def before_last_end(self) -> None:
        """What was written past PyTorch after the last op that was heard is read by nobody else. At level live
        StepWatch reads it."""
        session, values = self.session, self.values
        if session.tap is None or session.options.level != "ops":
            return
        for optimizer in session._keep:
            self._pass_on(values.tensors_of(optimizer).plain, _LOOK)
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
            self._graphs = True
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
        if how == _LOOK and not self._graphs and self._away and (
                _device.is_capturing() or recorder.device_counts().captured > 0):
            self.on_graph()
        self._seen_in = self.session.step
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
