# SPDX-License-Identifier: Apache-2.0
"""Level ops: what lasts from step to step, and changed although nothing that is watched wrote it."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import torch

from nanhunt import _device
from nanhunt import _library as lib
from nanhunt._listener import Listener
from nanhunt._values import PLAIN, _holds

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._values import Values

_Tensor = torch.Tensor
UNWATCHED = "writes to parameters, state or buffers that no watched operation made"


class LastingWatch(Listener):
    """Level ops: parameters, state and buffers that became bad although no watched op wrote them and torch's own count
    of writes stands still. Whoever writes by torch is heard, or at least counted, and did nothing in secret.

    What the host can read is compared here. What lies on a device the library compares there (`ROW_CHECK`) with what
    the last op or mark saw, and tells when that has come."""

    def __init__(self, session: Session, values: Values) -> None:
        self.session, self.values = session, values
        # id -> torch's count of writes, word, address, checksum, step: as they were last looked at
        self._seen: dict[int, tuple[int, int, int, int, int]] = {}
        self.room = 8192  # entries of _seen before those of tensors that are gone are dropped
        self._bad: set[int] = set()  # of those that were read last
        self._graphs = False         # CUDA graphs, whose replays write past torch's count, are captured or replayed

    def on_root_enter(self, call: Any) -> None:
        if not self._graphs and _device.is_capturing():
            self.on_graph()
        if call.index == 0:
            self._look([*call.module.parameters(), *call.module.buffers()])

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._look(self._of(optimizer))

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._note(self._of(optimizer))

    def on_root_exit(self, call: Any, output: Any) -> None:
        self._note(list(call.module.buffers()))

    def on_graph(self) -> None:
        """A CUDA graph is being captured, or replayed."""
        if not self._graphs:
            self._graphs = True
            self.session.note("writes past PyTorch to tensors of a device, once a CUDA graph was captured")

    def on_resized(self, storage: Any) -> None:
        """Its memory went or came back, and then nothing of what it held is there: sharded training does so."""
        identity = getattr(storage, self.values.key, None)
        if identity is not None:
            self.values.bump(identity)

    def _of(self, optimizer: torch.optim.Optimizer) -> list[_Tensor]:
        tensors: list[_Tensor] = []
        for group in optimizer.param_groups:
            for p in group["params"]:
                state = optimizer.state.get(p, {})
                tensors += [p, *[t for t in state.values() if isinstance(t, _Tensor) and t.numel() > 1]]
        return tensors

    def _read(self, tensors: list[_Tensor]) -> list[tuple[_Tensor, tuple[int, int, int, int]]]:
        """What can be read of them: torch's count of writes, word, address, checksum."""
        recorder, quad = self.session.recorder, self.values.quad
        kept: list[tuple[_Tensor, int, int]] = []
        pairs: list[int] = []
        for t in tensors:
            try:
                if self._lies_there(t) and t.is_cpu:
                    data, word, _, layout = quad(t)
                    pairs += (data, layout)
                    kept.append((t, word, data))
            except Exception:
                continue
        if recorder is None or not kept:
            return []
        readings, bad = recorder.read(pairs, lib.READ_NORM | lib.READ_CHECKSUM)
        self._bad = {id(t) for (t, *_), r in zip(kept, readings) if r.bad} if bad else set()
        return [(t, (t._version, word, data, r.checksum)) for (t, word, data), r in zip(kept, readings)]

    @staticmethod
    def _lies_there(t: _Tensor) -> bool:
        return type(t) in PLAIN and t.is_floating_point() and t.numel() > 0 and _holds(t.untyped_storage(), t)

    def _away(self, tensors: list[_Tensor]) -> list[tuple[_Tensor, tuple[int, int, int, int]]]:
        """Those on a device: torch's count of writes, word, address, no checksum."""
        found: list[tuple[_Tensor, tuple[int, int, int, int]]] = []
        for t in tensors:
            try:
                if not t.is_cpu and self._lies_there(t):
                    found.append((t, (t._version, self.values.identity(t), t.data_ptr(), 0)))
            except Exception:
                continue
        return found

    def _note(self, tensors: list[_Tensor]) -> None:
        step = self.session.step
        for t, now in [*self._read(tensors), *self._away(tensors)]:
            self._seen[id(t)] = (*now, step)
        if len(self._seen) > self.room:  # an optimizer may make its state anew in each step
            self._seen = {key: seen for key, seen in self._seen.items() if seen[4] >= step - 1}
            self.room = max(self.room, 2 * len(self._seen))

    def _look(self, tensors: list[_Tensor]) -> None:
        recorder, values, step = self.session.recorder, self.values, self.session.step
        if recorder is None:
            return
        for t, now in self._read(tensors):
            before = self._seen.get(id(t))
            self._seen[id(t)] = (*now, step)
            if before is None or before[1] != now[1]:
                continue  # new, another storage (p.data = q), or written by what is watched
            if before[0] != now[0] or before[2] != now[2]:
                self._written(t, now)  # by torch, where nothing is watched: compiled code, another thread
            elif before[3] != now[3] and id(t) in self._bad:
                value = values.describe(t.detach())
                if value is not None:
                    recorder.changed(step, value, before[4])
            elif before[3] != now[3]:
                # Through NumPy, or a memory error: PyTorch's users do the first on purpose, so it is no finding.
                values.written(t)
                self._seen[id(t)] = (now[0], values.identity(t), *now[2:], step)
                self.session.note("writes to parameters, state or buffers past PyTorch, which left them finite")
        values.release_hosts()
        self._look_there(tensors)

    def _look_there(self, tensors: list[_Tensor]) -> None:
        recorder, values, step = self.session.recorder, self.values, self.session.step
        away = self._away(tensors)
        if recorder is None or not away:
            return
        if not self._graphs and (_device.is_capturing() or recorder.device_counts().captured > 0):
            self.on_graph()
        words: list[int] = []
        for t, now in away:
            before = self._seen.get(id(t))
            self._seen[id(t)] = (*now, step)
            if before is None or before[1] != now[1]:
                continue  # as on the host
            if before[0] != now[0] or before[2] != now[2]:
                self._written(t, now)
            elif not self._graphs:
                try:
                    words += (lib.ROW_CHECK, step, *values.quad(t))
                except Exception:
                    continue  # the library cannot read there
        if words:
            recorder.rows(words)

    def _written(self, t: _Tensor, now: tuple[int, int, int, int]) -> None:
        self.values.written(t)
        self._seen[id(t)] = (now[0], self.values.identity(t), *now[2:], self.session.step)
        self.session.note(UNWATCHED)


def listen(patch: Callable[..., None]) -> None:
    """`patch`: of _taps."""
    patch(torch.UntypedStorage, "resize_", _storage_resized)
    patch(torch.cuda.CUDAGraph, "replay", _graph_replayed)


def _storage_resized(session: Session, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    before = args[0].nbytes()
    result = original(*args, **kwargs)
    if before == 0 or args[0].nbytes() < before:  # one that only grows keeps what it holds
        session.tell("on_resized", args[0])
    return result


def _graph_replayed(session: Session, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    session.tell("on_graph")
    return original(*args, **kwargs)
