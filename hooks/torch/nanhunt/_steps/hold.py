# SPDX-License-Identifier: Apache-2.0
"""A step whose operations a device has not told yet: the recorder holds them until it is known what becomes of them."""
from __future__ import annotations

from typing import TYPE_CHECKING

from nanhunt._device import Fetch

if TYPE_CHECKING:
    from nanhunt._recorder import Recorder
    from nanhunt._step_judge import StepFacts


class Hold(Fetch):
    """Here once the step is over and all of its operations have come. As a context: rows are of that step."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.is_over = False
        self.is_lost = False  # the recorder knows nothing of it
        self.left_bad = False  # badness began in what it leaves behind, as far as the tap knows
        self.facts: list[StepFacts] = []  # of the step, and of those before it that went on as they began

    def add(self, facts: StepFacts, left_bad: int) -> None:
        """A step that is over, of which the device has not told all."""
        self.facts.append(facts)
        self.left_bad |= bool(left_bad)

    def is_here(self) -> bool:
        return self.is_over and (self.is_lost or self._recorder.hold_is_due())

    def wait(self) -> None:
        if self.is_over:
            self._recorder.settle()

    def numbers(self) -> list[list[float]]:
        return []

    def __enter__(self) -> None:
        self._recorder.add_to_hold(True)

    def __exit__(self, *_: object) -> None:
        self._recorder.add_to_hold(False)
