# SPDX-License-Identifier: Apache-2.0
"""The boundary of a step on a device: everything is read there, and judged when the numbers have come.

They come for free where a loss scaler reads its own flag: what was launched before it is known after it. Elsewhere the
run goes on, and the step is judged while the next one runs. Waited for is the first step, and any whose operations are
copied to the host.
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
from nanhunt._step_judge import TRAINED
from nanhunt._step_mode import StepMode
from nanhunt._steps.reading import Here

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._steps.bad_steps import StepSnapshot
    from nanhunt._steps.step_watch import StepWatch

_Tensor = torch.Tensor
SCALER, LATE, SYNC = "the loss scaler's own read", "deferred", "sync"
WAITS = "waits for the device that the watch has added: in steps that are judged when they end, one each"
CAPTURED = "steps that are captured into a CUDA graph"


class DeviceBoundary:
    def __init__(self, session: Session, steps: StepWatch) -> None:
        self.session, self._steps = session, steps
        self._grows = False   # gradients did when they were last known
        self._noted: set[str] = set()
        self.is_capturing = _device.is_capturing
        self.begin()

    def begin(self) -> None:
        """Of a step."""
        self.passed = False
        self._losses_read = 0
        self.older: Readings | None = None
        self._as_older: dict[str, tuple[int, int]] = {}  # gradients, when they were read
        self._were_bad: set[str] = set()  # of them, once that is known

    def read_older(self, away: Sequence[tuple[str, _Tensor]], scaler: Any) -> None:
        """Gradients that were there before the first backward: only with a scaler it matters whether they are bad."""
        if away and scaler is not None:
            readings = Readings(self.session)
            readings.add(away)
            self.older = readings if readings.send() else None
            self._as_older = self._steps.gradient_versions()

    def pass_boundary(self, snapshot: StepSnapshot, optimizer: torch.optim.Optimizer | None, here: Here,
                      away: Sequence[tuple[str, _Tensor]]) -> None:
        session, steps, facts = self.session, self._steps, snapshot.facts
        if self.is_capturing():
            session.note(CAPTURED)
            facts.unread = True
            return
        self.passed = True
        readings = Readings(session)
        readings.add(away)
        facts.unread = facts.unread or readings.unread
        weights: Here | None = None
        if steps.weights_are_due(snapshot.step, self._grows):
            weights, more = steps.read_weights()
            readings.add(more)
        without_loss = not session.judge.facts() & TRAINED
        losses = self._add_losses(readings)
        boundary = self._choose(snapshot, optimizer, away)
        if not readings.send():
            facts.unread = True
            return
        older, self.older = self.older, None
        left, were_bad = steps.left_alone(self._as_older, optimizer), self._were_bad
        others = steps.of_others(optimizer) if session.tracker.passed else set()
        fetches = [*(older.fetches if older is not None else ()), *readings.fetches]

        def judge() -> None:
            try:
                readings.take()
                if older is not None:
                    older.take()
                    were_bad.update(r.name for r in older.lists[0] if r.bad)
                    if were_bad:
                        session.judge.note_kept(snapshot.step)
                with session.as_of(snapshot.step, snapshot.micro_batch):
                    self._judge(snapshot, here, readings, weights, losses, without_loss, left & were_bad | others)
            except Exception:
                facts.unread = True
                raise

        def lost() -> None:
            facts.unread = True

        session.pending.expect(fetches, judge, lost)
        if boundary == SYNC:
            session.note(WAITS)
            session.pending.drain()

    def _add_losses(self, readings: Readings) -> list[str]:
        """Paths of the losses that came since the boundary before."""
        paths = []
        for path, t in self._steps.losses[self._losses_read:]:
            if t is not None and t.numel() == 1 and t.is_floating_point() and _device.is_away(t):
                readings.number(t)
                paths.append(path)
        self._losses_read = len(self._steps.losses)
        return paths

    def _choose(self, snapshot: StepSnapshot, optimizer: torch.optim.Optimizer | None,
                away: Sequence[tuple[str, _Tensor]]) -> str:
        kind = away[0][1].device.type
        if self.session.pending.holds:
            return self._note(kind, LATE, "steps are judged while the next one runs, nothing is waited for")
        if any(_device.lane_of(d).waits for d in dict.fromkeys(t.device for _, t in away)):
            return self._note(kind, SYNC, "nothing else is known there")
        if snapshot.scaler is not None and snapshot.scaled:
            its = [optimizer] if optimizer is not None else self.session._keep
            if not any(reads_flag_itself(one) for one in its):
                return self._note(kind, SCALER, "nothing is waited for")
        if self.session.mode is not StepMode.UNHEARD:
            return self._note(kind, SYNC, "what becomes of the operations of the step is decided at its end")
        return self._note(kind, LATE, "steps are judged while the next one runs, nothing is waited for")

    def _note(self, kind: str, boundary: str, why: str) -> str:
        if boundary not in self._noted:
            self._noted.add(boundary)
            self.session.note(f"the boundary on {kind}: {boundary} ({why})")
        return boundary

    def _judge(self, snapshot: StepSnapshot, here: Here, readings: Readings, weights: Here | None,
               losses: Sequence[str], without_loss: bool, left: set[str]) -> None:
        """`left`: gradients that come to no update: an earlier step or another optimizer's loss left them bad."""
        steps, facts, note = self._steps, snapshot.facts, self.session.judge.note
        lists = iter(readings.lists)
        for number, path in zip(readings.numbers, losses):
            if facts.loss is None or math.isnan(facts.loss):
                facts.loss = number
            if not math.isfinite(number):
                note(snapshot.step, lib.MARK_LOSS, False, path.encode())
        gradients = [*_readings(here), *next(lists)]
        paths, words = _words(gradients)
        self._grows = steps.weigh(facts, snapshot.step, paths, words, snapshot.scaled)
        if weights is not None:
            snapshot.weights = [*_readings(weights), *next(lists)]
            paths, words = _words(snapshot.weights)
            steps.keep_weights(snapshot.step, paths, words, [r.name for r in snapshot.weights if r.bad])
        bad = [r.name for r in gradients if r.bad and r.name not in left]
        steps.note_gradients(snapshot.step, facts, bad)
        if self.session.judge.bad(snapshot.step) or without_loss and any(r.bad for r in snapshot.weights or ()):
            steps.bad_steps.judge(snapshot)


def _readings(here: Here) -> list[Reading]:
    paths, (norms, amaxes), bad = here
    wrong = set(bad)
    return [Reading(path, norm, amax, path in wrong) for path, norm, amax in zip(paths, norms, amaxes)]


def _words(readings: Sequence[Reading]) -> tuple[list[str], tuple[list[float], list[float]]]:
    return [r.name for r in readings], ([r.norm for r in readings], [r.amax for r in readings])
