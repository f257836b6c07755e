# SPDX-License-Identifier: Apache-2.0
"""The boundary of a step on a device: everything is read there, and judged when the numbers have come.

They come for free where a loss scaler reads its own flag: what was launched before it is known after it. Elsewhere the
run goes on (deferred), and what the step was computed from is kept meanwhile, or the device is waited for (sync).
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _device
from nanhunt import _library as lib
from nanhunt._device_reader import Reading, Readings
from nanhunt._hooks.scaler import reads_flag_itself
from nanhunt._sentinel.shadow import Shadows

if TYPE_CHECKING:
    from nanhunt._sentinel.buffers import Buffers
    from nanhunt._sentinel.sentinel import Sentinel
    from nanhunt._sentinel.trigger import Look
    from nanhunt._session import Session
    from nanhunt._tap.values import Values

_Tensor = torch.Tensor
Here = tuple[list[str], tuple[Sequence[float], Sequence[float]], list[str]]  # gradients of the CPU, as they were read
SCALER, LATE, SYNC = "the loss scaler's own read", "deferred", "sync"
WAITS = "waits for the device that the watch has added: boundary=sync, one a step"
SAMPLED = "waits for the device that the watch has added: in steps that were replayed though they were healthy"
CAPTURED = "steps that are captured into a CUDA graph"


class DeviceBoundary:
    def __init__(self, session: Session, values: Values, sentinel: Sentinel) -> None:
        self.session, self._sentinel = session, sentinel
        self._shadows = Shadows(session, values)
        self._grows = False   # gradients did when they were last known
        self._told: set[str] = set()
        self.is_capturing = _device.is_capturing
        self.begin()

    def begin(self) -> None:
        """Of a step."""
        self.passed = False
        self._losses_read = 0
        self._older: Readings | None = None

    def look_for_older(self, away: Sequence[tuple[str, _Tensor]], scaler: Any) -> None:
        """Gradients that were there before the first backward: only with a scaler it matters whether they are bad."""
        if away and scaler is not None:
            readings = Readings(self.session)
            readings.add(away)
            self._older = readings if readings.send() else None

    def pass_boundary(self, look: Look, optimizer: torch.optim.Optimizer | None, here: Here,
                  away: Sequence[tuple[str, _Tensor]]) -> None:
        session, sentinel = self.session, self._sentinel
        if self.is_capturing():
            session.note(CAPTURED)
            look.found.unread = True
            return
        self.passed = True
        readings = Readings(session)
        readings.add(away)
        look.found.unread = look.found.unread or readings.unread
        weights: Here | None = None
        if sentinel.weights_are_due(look.step, self._grows):
            weights, more = sentinel.read_weights()
            readings.add(more)
        without_loss = sentinel.is_without_loss()
        hot = self._add_buffers(readings, look)
        losses = self._add_losses(readings)
        look.losses = list(look.losses)
        boundary = self._choose(look, optimizer, away)
        if not readings.send():
            look.found.unread = True
            return
        at_once = boundary == SYNC or sentinel.replays(look.step)
        if at_once:
            session.note(WAITS if boundary == SYNC else SAMPLED)
        elif boundary == LATE:
            look.slot, look.why_no_slot = self._shadows.take(look.parameters, look.tape)
        else:
            look.why_no_slot = "the optimizer had changed what it was computed from when its readings came"
        older, self._older = self._older, None
        fetches = [*(older.fetches if older is not None else ()), *readings.fetches]

        def judge() -> None:
            try:
                readings.take()
                if older is not None:
                    older.take()
                    look.kept = look.kept or any(r.bad for r in older.lists[0])
                with session.as_of(look.step, look.micro_batch):
                    self._judge(look, here, readings, weights, hot, losses, without_loss)
            except Exception:
                look.found.unread = True
                raise
            finally:
                self._shadows.give(look.slot)

        def lost() -> None:
            look.found.unread = True
            self._shadows.give(look.slot)

        session.pending.expect(fetches, judge, lost)
        if at_once:
            session.pending.drain()

    def _add_losses(self, readings: Readings) -> list[str]:
        """Paths of the losses that came since the boundary before."""
        paths = []
        for path, t, _ in self._sentinel.losses[self._losses_read:]:
            if t is not None and t.numel() == 1 and t.is_floating_point() and _device.is_away(t):
                readings.number(t)
                paths.append(path)
        self._losses_read = len(self._sentinel.losses)
        return paths

    def _add_buffers(self, readings: Readings, look: Look) -> list[Buffers]:
        hot = self._sentinel.hot_buffers()
        tensors: list[_Tensor] = []
        if hot:
            with _device.alone():
                tensors = [t for buffers in hot for t in buffers.to_read()]
        readings.add([("", t) for t in tensors if _device.is_away(t)])
        here = [(lib.MARK_BUFFER, "", t) for t in tensors if not _device.is_away(t)]
        if here and self._sentinel.is_one_bad(here):
            self._sentinel.tell_buffers(look.found, hot)
        return hot

    def _choose(self, look: Look, optimizer: torch.optim.Optimizer | None, away: Sequence[tuple[str, _Tensor]]) -> str:
        asked = self.session.options.boundary
        device = away[0][1].device
        kind = device.type
        if asked == "sync":
            return self._tell(kind, SYNC, "as asked for")
        if any(_device.lane_of(d).waits for d in dict.fromkeys(t.device for _, t in away)):
            return self._tell(kind, SYNC, "nothing else is known there")
        if look.scaler is not None and look.scaled and getattr(look.scaler, "_enabled", True):
            its = [optimizer] if optimizer is not None else self.session._keep
            if not any(reads_flag_itself(one) for one in its):
                return self._tell(kind, SCALER, "nothing is waited for")
        if asked == "deferred":
            return self._tell(kind, LATE, "as asked for; steps are judged while the next one runs")
        if self._shadows.fits(look.parameters):
            return self._tell(kind, LATE, "steps are judged while the next one runs, nothing is waited for")
        return self._tell(kind, SYNC, "a shadow copy for boundary=deferred does not fit, so each step is waited for")

    def _tell(self, kind: str, boundary: str, why: str) -> str:
        if boundary not in self._told:
            self._told.add(boundary)
            self.session.note(f"the boundary on {kind}: {boundary} ({why})")
        return boundary

    def _judge(self, look: Look, here: Here, readings: Readings, weights: Here | None, hot: Sequence[Buffers],
               losses: Sequence[str], without_loss: bool) -> None:
        sentinel, found, facts = self._sentinel, look.found, look.facts
        lists = iter(readings.lists)
        for number, path in zip(readings.numbers, losses):
            if facts.loss is None or math.isnan(facts.loss):
                facts.loss = number
            if not math.isfinite(number):
                found.note(lib.MARK_LOSS, path)
        look.measured = [*_readings(here), *next(lists)]
        paths, words = _words(look.measured)
        _, amaxes = sentinel.weigh(found, look.step, paths, words, look.scaled)
        self._grows = sentinel.grows(found.gradient_norm)
        if weights is not None:
            look.weights = [*_readings(weights), *next(lists)]
            paths, words = _words(look.weights)
            sentinel.keep_weights(found, look.step, paths, words, [r.name for r in look.weights if r.bad])
        bad = [r.name for r in look.measured if r.bad]
        facts.largest_gradient = max(amaxes) if not bad else math.inf
        sentinel.tell_gradients(found, facts, bad)
        if any(r.bad for r in next(lists)):
            sentinel.tell_buffers(found, hot)
        if found.bad or without_loss and any(r.bad for r in look.weights or ()):
            sentinel.trips.trip(look)
        elif sentinel.replays(look.step):
            sentinel.trips.replay(look)


def _readings(here: Here) -> list[Reading]:
    paths, (norms, amaxes), bad = here
    wrong = set(bad)
    return [Reading(path, norm, amax, path in wrong) for path, norm, amax in zip(paths, norms, amaxes)]


def _words(readings: Sequence[Reading]) -> tuple[list[str], tuple[list[float], list[float]]]:
    return [r.name for r in readings], ([r.norm for r in readings], [r.amax for r in readings])
