# SPDX-License-Identifier: Apache-2.0
"""What must be said of a fault, and what is right: as tests/campaign/score.h has it for the bundled engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LOSS, STATE, SEEN = "<loss>", "<state>", "where a plain dispatch mode saw it"
LEVELS = ("default", "ops")


@dataclass(frozen=True)
class Expected:
    """Stated with the fault, before nanhunt is run. What is None is not scored: it is arbitrary there."""

    cls: str
    phases: tuple[str, ...]
    ops: tuple[str, ...] | None = None  # of these, the one that the plain dispatch mode saw, where it can see it
    module: Callable[[Any], str] | str | None = None  # of the training
    step: int | None = None  # counted from `at`
    from_start: bool = False  # the fault is there from step 0 on
    seen: bool = True  # an op makes the first bad number: a plain dispatch mode must see it there
    why: str = ""  # where the answer is not what one would guess


@dataclass(frozen=True)
class Place:
    step: int | None
    phases: tuple[str, ...]
    module: str | None
    op: str | None


@dataclass(frozen=True)
class Answer:
    """The headline of a report; `cls` None: nothing but information was given."""

    cls: str | None = None
    step: int | None = None
    phase: str | None = None
    module: str | None = None
    op: str | None = None


def answer_of(report: dict[str, Any]) -> Answer:
    origin = report["verdict"]["origin"]
    for f in report["findings"]:
        if f["id"] == origin and f["severity"] != "info":
            return Answer(f["class"], f["step"], f["phase"], f["module"], f["op"])
    return Answer()


def origin_right(place: Place, answer: Answer) -> bool:
    return (
        answer.cls is not None
        and answer.phase in place.phases
        and (place.step is None or answer.step == place.step)
        and (place.op is None or answer.op == place.op)
        and (place.module is None or answer.module == place.module)
    )


def faults_of(report: dict[str, Any]) -> list[str]:
    """What a healthy run must not have."""
    return [f["title"] for f in report["findings"] if f["severity"] == "fault"]
