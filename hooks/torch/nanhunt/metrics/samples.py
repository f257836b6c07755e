# SPDX-License-Identifier: Apache-2.0
"""From one line of `nanhunt watch --json` to numbers with labels."""
from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

WHOLE = "all"         # the label `group` of a whole run
MOST_GROUPS = 65      # 64 that `nanhunt watch` names, and "other"


@dataclass(frozen=True)
class Metric:
    """`name` as OpenTelemetry has it, without the namespace; Prometheus writes "_" for "." and appends _total."""

    name: str
    counts: bool
    unit: str
    description: str
    labels: tuple[str, ...] = ("run", "group")

    @property
    def prometheus_name(self) -> str:
        return "nanhunt_" + self.name.replace(".", "_")


@dataclass(frozen=True)
class Sample:
    labels: tuple[str, ...]  # values, in the order of Metric.labels
    value: float


METRICS = (
    Metric("bad_steps", True, "{step}", "Steps whose loss, gradients, parameters or state were not finite, but for "
                                        "those that a loss scaler skipped; of the rank with the most"),
    Metric("skipped_steps", True, "{step}", "Steps that a loss scaler skipped; of the rank with the most"),
    Metric("loss_scale", False, "1", "The loss scale; the lowest of the ranks"),
    Metric("step", False, "1", "The last step, numbered from 0; the highest of the ranks"),
    Metric("clean_through_step", False, "1", "The last step before anything that did harm; the lowest of the ranks. "
                                             "Absent where none is known"),
    Metric("ranks", False, "{rank}", "Ranks by what they do", ("run", "group", "state")),
    Metric("faults", False, "{fault}", "Kinds of fault that were found", ("run",)),
    Metric("loss", False, "1", "The loss of the last step, of the lowest rank that shows it", ("run",)),
    Metric("watching_ratio", False, "1", "Share of the time of the last steps that watching took of the thread that "
                                         "trains, estimated; of the lowest rank that shows it", ("run",)),
    Metric("quiet_seconds", False, "s", "Time since anything new came from the run", ("run",)),
)


def _number(value: object) -> float | None:
    """JSON has no word for NaN and infinities: those are strings."""
    if value is None or isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _of_ranks(row: dict[str, Any], run: str, group: str) -> Iterator[tuple[str, Sample]]:
    at = (run, group)
    values = {"bad_steps": row.get("bad_steps"), "skipped_steps": row.get("skipped_steps"),
              "loss_scale": row.get("scale"), "step": (row.get("step") or {}).get("highest"),
              "clean_through_step": row.get("clean_through")}
    for name, value in values.items():
        number = _number(value)
        if number is not None:
            yield name, Sample(at, number)
    for state in ("training", "quiet", "ended"):
        number = _number((row.get("ranks") or {}).get(state))
        if number is not None:
            yield "ranks", Sample((*at, state), number)


def samples_of(line: dict[str, Any]) -> dict[str, list[Sample]]:
    """By Metric.name. A run that has not begun has none."""
    found: dict[str, list[Sample]] = {metric.name: [] for metric in METRICS}
    if line.get("state") == "not_begun":
        return found
    run = str(line.get("run", ""))
    groups = [(WHOLE, line)]
    for row in (line.get("groups") or [])[:MOST_GROUPS]:
        name = f"{row['dimension']}={row['value']}" if row.get("dimension") else str(row.get("value"))
        groups.append((name, row))
    for group, row in groups:
        for name, sample in _of_ranks(row, run, group):
            found[name].append(sample)
    found["faults"].append(Sample((run,), float(len(line.get("faults") or []))))
    for name, key in (("loss", "loss"), ("watching_ratio", "watching"), ("quiet_seconds", "quiet_seconds")):
        number = _number(line.get(key))
        if number is not None:
            found[name].append(Sample((run,), number))
    return found


class Latest:
    """The newest samples: whoever sends them slowly leaves out those in between."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._samples: dict[str, list[Sample]] = {metric.name: [] for metric in METRICS}
        self._number = 0
        self._ended = False

    def put(self, samples: dict[str, list[Sample]]) -> None:
        with self._changed:
            self._samples = samples
            self._number += 1
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def samples(self) -> dict[str, list[Sample]]:
        with self._changed:
            return self._samples

    def numbers(self) -> Iterator[int]:
        """Of each that is the newest when it is asked for, until the end."""
        seen = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._number > seen)  # noqa: B023
                if self._number == seen:
                    return
                seen = self._number
            yield seen
