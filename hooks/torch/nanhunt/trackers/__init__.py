# SPDX-License-Identifier: Apache-2.0
"""Experiment trackers that the program uses already: what a watch knows of its run is written to them as well.

Every 16 steps `nanhunt/bad_steps` and `nanhunt/skipped_steps` (counts since the start), `nanhunt/loss_scale`,
`nanhunt/gradient_headroom_bits` and `nanhunt/watching` (share of the time, from 0 to 1); at the first fault one alert
with the headline and where its report is. A module of this package is one tracker.
"""
from __future__ import annotations

import math
import os
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from nanhunt._faults import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from nanhunt._load import Finding
    from nanhunt._session import Session

AUTO, OFF = "auto", "off"
KINDS = ("wandb_run", "mlflow_run", "trackio_run", "tensorboard_writer", "logger", "function")
_LARGEST = {True: 65504.0, False: 3.4028234663852886e38}  # finite number, of fp16 and of the wider formats


class Tracker(Protocol):
    def log(self, numbers: dict[str, float], step: int) -> None:
        """Finite numbers by name."""

    def alert(self, headline: str, text: str, step: int) -> None: ...


def tracker_of(given: Any) -> Tracker:
    """What an object of the program's is. Raises TypeError where nothing knows it."""
    for kind in KINDS:
        tracker = import_module(f"nanhunt.trackers.{kind}").take(given)
        if tracker is not None:
            return tracker  # type: ignore[no-any-return]
    raise TypeError("log_to: expected 'auto', 'off', a W&B, MLflow or trackio run, a SummaryWriter, a logger with "
                    f"log_metrics, or a function of numbers and step, got {type(given).__name__}")


def _finder(kind: str) -> Callable[[], list[Tracker]]:
    """What gives those of a kind that the program has open, of one session."""
    module = import_module(f"nanhunt.trackers.{kind}")
    return getattr(module, "Search", lambda: getattr(module, "find", list))()  # type: ignore[no-any-return]


class Trackers:
    """Of one session."""

    def __init__(self, session: Session, log_to: Any) -> None:
        self.session = session
        self._spent_ns, self._since = 0, time.perf_counter_ns()
        self._warned = False
        self._finders: list[Callable[[], list[Tracker]]] = []
        self._open: list[Tracker] = []  # when they were looked for last
        self.in_use = False  # there was one: read at every step, so it is no call
        self.use(log_to)

    def use(self, log_to: Any) -> None:
        """AUTO, OFF, or what is written to instead of what could be found."""
        if not isinstance(log_to, str):
            given = [tracker_of(one) for one in (log_to if isinstance(log_to, (list, tuple)) else [log_to])]
            self._find_all: Callable[[], list[Tracker]] = lambda: given
        elif log_to == OFF or os.environ.get("NANHUNT_LOG_TO") == OFF:
            self._find_all = list
        else:
            self._find_all = self._find_open

    def _find_open(self) -> list[Tracker]:
        if not self._finders:
            self._finders = [_finder(kind) for kind in KINDS]
        return [one for find in self._finders for one in find()]

    def _each(self, act: Callable[[Tracker], None]) -> None:
        try:
            for tracker in self._open:
                act(tracker)
        except Exception as error:  # the program's own calls will say so as well
            if not self._warned:
                self._warned = True
                self.session.note(f"an experiment tracker refused: {type(error).__name__}: {error}"[:300])
        self._open = []  # the program's own: nothing of ours keeps it

    def _find(self) -> bool:
        """Whether there is one to write to, now."""
        try:
            self._open = self._find_all()
        except Exception as error:
            self.session.failed(error, "looking for experiment trackers")
        self.in_use = bool(self._open)
        return self.in_use

    def log(self, step: int) -> None:
        if self._find():
            numbers = self.numbers()
            self._each(lambda tracker: tracker.log(numbers, step))

    def numbers(self) -> dict[str, float]:
        session, now = self.session, time.perf_counter_ns()
        passed, self._since = now - self._since, now
        spent, self._spent_ns = session.watch_ns - self._spent_ns, session.watch_ns
        numbers = {"bad_steps": float(session.faults.bad_steps), "skipped_steps": float(session.faults.skipped_steps),
                   "watching": min(spent / max(passed, 1), 1.0)}
        if session.has_scaler:
            numbers["loss_scale"] = float(session.last_scale)
        if (bits := self._headroom()) is not None:
            numbers["gradient_headroom_bits"] = bits
        return {f"nanhunt/{name}": number for name, number in numbers.items() if math.isfinite(number)}

    def _headroom(self) -> float | None:
        """How often the gradients of the last step could double, as they were computed, before the first one overflows
        in the format that they are computed in: of the layer that has the least. None: not known."""
        session = self.session
        given, is_half = session.newest_gradients()
        amaxes = [a for a in given if math.isfinite(a) and a > 0]
        if not amaxes:
            return None
        scale = session.last_scale if session.has_scaler and session.last_scale > 0 else 1.0
        return math.log2(_LARGEST[session.has_scaler or is_half]) - math.log2(max(amaxes)) - math.log2(scale)

    def alert(self, finding: Finding) -> None:
        """Of a fault that was found while the run goes on."""
        place = self.session.options.place
        headline = printable(finding.title)[:300]
        text = f"{headline}\n\nnanhunt report {place}\n{place}/report.html"
        if self._find():
            self._each(lambda tracker: tracker.alert(headline, text, finding.step))
            self.log(finding.step)
