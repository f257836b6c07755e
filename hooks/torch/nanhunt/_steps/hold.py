# SPDX-License-Identifier: Apache-2.0
"""A step whose operations a device has not told yet: the recorder holds them until it is known what becomes of them."""
from __future__ import annotations

from typing import TYPE_CHECKING

from nanhunt import _library as lib
from nanhunt._device import Fetch

if TYPE_CHECKING:
    from nanhunt._recorder import Recorder
    from nanhunt._step_judge import StepFacts
    from nanhunt._tap.tap import Tap


class Hold(Fetch):
    """Here once the step is over and all of its operations have come. As a context: rows are of that step."""

    def __init__(self, recorder: Recorder, tap: Tap) -> None:
        self._recorder, self._tap = recorder, tap
        self.is_over = False
        self.is_lost = False  # the recorder knows nothing of it
        self.is_late = False  # its rows are with the tap
        self.is_wanted = False  # ... and went to the recorder
        self.left_bad = False  # badness began in what it leaves behind, as far as the tap knows
        self.facts: list[StepFacts] = []  # of the step, and of those before it that went on as they began

    def add(self, facts: StepFacts, left_bad: int) -> None:
        """A step that is over, of which the device has not told all."""
        self.facts.append(facts)
        self.left_bad |= bool(left_bad)

    def end(self, told: int) -> None:
        """The step is over; `told`: as Tap.hold() says."""
        self.is_lost, self.is_late, self.is_over = not told & 1, bool(told & 2), True

    def is_here(self) -> bool:
        if not self.is_over or self.is_late and not self._tap.is_late_here():
            return False
        return self.is_lost or self._recorder.hold_is_due()

    def deliver(self, all_rows: bool = False) -> None:
        """Rows of the step come before what else is told of it, once a device says that they are wanted."""
        if self.is_late and not self.is_wanted and not self.is_lost:
            told = self._tap.deliver_late(all_rows)
            self.is_wanted = bool(told)
            self.left_bad |= bool(told & 2)

    def decide(self, action: int, healthy: bool) -> None:
        if action == lib.KEEP:
            self.deliver(all_rows=True)
        if self.is_late:
            self._tap.drop_late(healthy)
        if not self.is_lost:
            self._recorder.decide_hold(action)

    def wait(self) -> None:
        if self.is_over:
            self._recorder.settle()

    def numbers(self) -> list[list[float]]:
        return []

    def __enter__(self) -> None:
        self._recorder.add_to_hold(True)

    def __exit__(self, *_: object) -> None:
        self._recorder.add_to_hold(False)
