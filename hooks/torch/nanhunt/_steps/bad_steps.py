# SPDX-License-Identifier: Apache-2.0
"""What follows when a step is bad: what else is, the norms of the steps before, and whether its operations are kept."""
from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._step_judge import NOTHING, TAKEN
from nanhunt._step_mode import StepMode
from nanhunt._steps import elsewhere

if TYPE_CHECKING:
    from nanhunt._device_reader import Reading
    from nanhunt._session import Session
    from nanhunt._step_judge import StepFacts
    from nanhunt._steps.reading import Reader
    from nanhunt._tap.values import Values

_Tensor = torch.Tensor
LEFT_OUT = "operations of further bad steps: those of a few are kept"
Norms = deque[tuple[int, list[str], Sequence[float], Sequence[float]]]


class StepSnapshot:
    """A step as it was at its boundary: what judging it needs, now or when its readings have come."""

    __slots__ = ("facts", "step", "micro_batch", "inputs", "parameters", "scaler", "scaled", "weights", "updates")

    def __init__(self, facts: StepFacts, step: int, micro_batch: int, inputs: list[weakref.ref[_Tensor]],
                 parameters: list[tuple[_Tensor, str]], scaler: Any, scaled: bool, updates: int) -> None:
        self.facts, self.step, self.micro_batch = facts, step, micro_batch
        self.inputs, self.parameters = inputs, parameters
        self.scaler, self.scaled = scaler, scaled  # gradients are multiplied by its scale
        self.updates = updates  # optimizer steps that had run
        self.weights: list[Reading] | None = None  # of parameters on a device, where they were read


class BadSteps:
    """Which bad steps have their operations in the trace: a few of each run of them (src/hunt/step_judge.h)."""

    def __init__(self, session: Session, values: Values, reader: Reader, norms: Norms, weights: Norms) -> None:
        self.session, self.values, self.reader = session, values, reader
        self._norms, self._weights = norms, weights
        self._judge = session.judge
        self.updates = 0  # optimizer steps that have run, ever
        self._looked_elsewhere = False
        self.last_bad: int | None = None  # step

    def may_keep(self, step: int) -> bool:
        """Of a step that does harm. Asking counts."""
        return self._judge.judge_harm(step) == TAKEN

    def judge(self, snapshot: StepSnapshot) -> None:
        """Of a step that is bad."""
        session, step = self.session, snapshot.step
        self.last_bad = step
        if not snapshot.facts.is_read_further:
            self._read_further(snapshot)
        # A scaler of the program's own drops gradients, as likely as not.
        answer = self._judge.judge_bad(step, snapshot.scaled or session.drops.drops)
        if answer == NOTHING:
            return
        self.write_norms()
        over = snapshot.facts.mode
        if (over or session.mode) is StepMode.UNHEARD:
            self._not_heard(snapshot)
        elif answer == TAKEN and over is not None:
            snapshot.facts.mode = StepMode.KEPT
        elif answer == TAKEN:
            self.keep()

    def keep(self) -> None:
        """The operations of the step that runs will be in the trace: those that come are read as they come."""
        self.session.mode = StepMode.KEPT
        if self.session.tap is not None and self.session.state.held:
            self.session.tap.hand_over()
            self.session.notify("on_kept")

    def write_norms(self) -> None:
        recorder = self.session.recorder
        assert recorder is not None
        for kind, ring in ((lib.MARK_PARAMETER, self._weights), (lib.MARK_GRADIENT, self._norms)):
            for step, paths, norms, amaxes in ring:
                for path, norm, amax in zip(paths, norms, amaxes):
                    recorder.norm(step, kind, path, norm, amax)
            ring.clear()

    def _is_over(self, snapshot: StepSnapshot) -> bool:
        """An optimizer has run since: parameters and gradients are those of a later step."""
        return snapshot.updates != self.updates

    def _read_further(self, snapshot: StepSnapshot) -> None:
        """What is read of bad steps only: parameters, optimizer state, the batch."""
        step = snapshot.step
        snapshot.facts.is_read_further = True
        over = self._is_over(snapshot)
        items = []
        if not over:
            items = [(lib.MARK_PARAMETER, path, p) for p, path in snapshot.parameters]
            for optimizer in self.session._keep:
                for p, path in self.session.parameters_of(optimizer):
                    for name, state in optimizer.state.get(p, {}).items():
                        if isinstance(state, _Tensor) and state.is_floating_point() and state.numel() > 1:
                            items.append((lib.MARK_STATE, f"{path}.{name}", state))
        else:
            for reading in snapshot.weights or ():
                if reading.bad:
                    self._judge.note(step, lib.MARK_PARAMETER, True, reading.name.encode())
        for kind, path in self.reader.bad_among(items):
            self._judge.note(step, kind, True, path.encode())
        given = [t for t in [reference() for reference in snapshot.inputs] if t is not None]
        batch = [(lib.MARK_BATCH, f"input {i}", t) for i, t in enumerate(given)] if not over else []
        bad = list(self.reader.bad_among(batch))
        for kind, path in bad:
            self._judge.note(step, kind, True, path.encode())
        self._look_elsewhere([t for kind, path, t in batch if (kind, path) in bad])

    def _look_elsewhere(self, batch: list[_Tensor]) -> None:
        """Who else may have made the batch: where part of it is bad, and else once."""
        if elsewhere.came_from_process(batch):
            self.session.notes[elsewhere.PROCESS] = 1
        elif not self._looked_elsewhere:
            self._looked_elsewhere = True
            beside = elsewhere.beside()
            if beside:
                self.session.notes[beside] = 1

    def _not_heard(self, snapshot: StepSnapshot) -> None:
        """Without operations the analyzer has at least what is bad now."""
        self.report_not_heard(snapshot.step)
        if not self._is_over(snapshot):  # what is there now is another step's; the health row says what was bad
            self._mark_bad(snapshot)

    def report_not_heard(self, step: int) -> None:
        session, recorder = self.session, self.session.recorder
        assert recorder is not None
        recorder.not_heard(session.state.step, self.why_not_heard())

    def why_not_heard(self) -> str:
        options = self.session.options
        if options.level == "steps":
            return "The step was not heard: level steps reads steps alone. `--level live` hears every operation."
        if self.values.tap is None:
            return "The step was not heard: operations cannot be watched here."
        return ("The step was not heard: the budget had no room for it. The next ones are heard; without `--budget` "
                "all are.")

    def written_last(self, snapshot: StepSnapshot, buffers: Sequence[tuple[int, str, _Tensor]]) -> None:
        """Parameters and `buffers` are bad that no later step will read: nothing of the step made them so."""
        if self.session.mode is not StepMode.UNHEARD:  # who wrote them is held
            self.keep()
        self._mark_bad(snapshot)
        self.mark(buffers)

    def _mark_bad(self, snapshot: StepSnapshot) -> None:
        items: list[tuple[int, str, _Tensor]] = [(lib.MARK_PARAMETER, path, p) for p, path in snapshot.parameters]
        items += [(lib.MARK_GRADIENT, path, p.grad) for p, path in snapshot.parameters if p.grad is not None]
        bad = set(self.reader.bad_among(items))
        self.mark([one for one in items if one[:2] in bad])

    def mark(self, items: Sequence[tuple[int, str, _Tensor]]) -> None:
        session, recorder = self.session, self.session.recorder
        assert recorder is not None
        for kind, path, t in items:
            if session.mode is StepMode.UNHEARD:
                self.values.renew(t)
            value = self.values.describe(t.detach())
            if value is not None:
                recorder.rows([lib.ROW_MARK, kind, session.state.step, session.state.micro_batch, recorder.text(path),
                               *value])
        self.values.release_hosts()
