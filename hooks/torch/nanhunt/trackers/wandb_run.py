# SPDX-License-Identifier: Apache-2.0
"""Weights & Biases. Numbers join the row that the program is about to log: it gets no row of its own, so the program's
steps stay as they are. A row may come later than the step that they are of: `nanhunt/step` says which that is, and W&B
is told to draw them over it."""
from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass, field
from typing import Any

STEP = "nanhunt/step"


@dataclass
class _Row:
    """That is not logged yet, of one run."""

    number: int = -1
    names: set[str] = field(default_factory=set)  # that we put into it


_rows: weakref.WeakKeyDictionary[Any, _Row] = weakref.WeakKeyDictionary()  # by run


class WandbRun:
    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, numbers: dict[str, float], step: int) -> None:
        if self._run.step == 0:
            return  # the program has logged nothing yet, and the row would be ours
        row = _rows.get(self._run)
        if row is None:
            row = _rows[self._run] = _Row()
            self._run.define_metric(STEP, hidden=True)
            self._run.define_metric("nanhunt/*", step_metric=STEP)
        if row.number != self._run.step:
            row.number, row.names = self._run.step, set()
        # What an earlier step put into the same row and this one has not would stand beside this one's step.
        stale = dict.fromkeys(row.names - set(numbers))
        row.names |= set(numbers)
        self._run.log({**stale, **numbers, STEP: step}, commit=False)

    def alert(self, headline: str, text: str, step: int) -> None:
        self._run.alert(title=f"nanhunt: step {step}", text=text, level="ERROR")
        self._run.summary["nanhunt/fault"] = headline


def take(given: Any) -> WandbRun | None:
    return WandbRun(given) if type(given).__module__.startswith("wandb.") and hasattr(given, "alert") else None


def find() -> list[WandbRun]:
    run = getattr(sys.modules.get("wandb"), "run", None)
    return [] if run is None else [WandbRun(run)]
