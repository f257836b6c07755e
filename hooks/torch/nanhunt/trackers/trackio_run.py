# SPDX-License-Identifier: Apache-2.0
"""trackio. Numbers go to the step that the program has logged last: one of their own would move its count. Its alert
prints, which a watch never does, so the headline is logged as a text."""
from __future__ import annotations

import sys
from typing import Any


class TrackioRun:
    def __init__(self, run: Any) -> None:
        self._run = run

    def _log(self, row: dict[str, Any]) -> None:
        following = getattr(self._run, "_next_step", 0)
        if following > 0:  # else the program has logged nothing yet
            self._run.log(row, step=following - 1)

    def log(self, numbers: dict[str, float], step: int) -> None:
        self._log({**numbers, "nanhunt/step": step})

    def alert(self, headline: str, text: str, step: int) -> None:
        self._log({"nanhunt/fault": text})


def take(given: Any) -> TrackioRun | None:
    return TrackioRun(given) if type(given).__module__.startswith("trackio.") and hasattr(given, "log") else None


def find() -> list[TrackioRun]:
    current = getattr(sys.modules.get("trackio.context_vars"), "current_run", None)
    run = None if current is None else current.get(None)
    return [] if run is None else [TrackioRun(run)]
