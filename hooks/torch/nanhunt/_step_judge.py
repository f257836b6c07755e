# SPDX-License-Identifier: Apache-2.0
"""The judge of steps (src/hunt/step_judge.h): how far the step at hand has come, what is bad in it, how much harm that
is, and whether its operations are wanted."""
from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from functools import partial

from nanhunt import _library as lib
from nanhunt._step_mode import StepMode

# How far a step has come.
SUSPECT, FORWARD, SCALE_APPLIED, LOSS, BACKWARD, UNSCALED, CLIPPED, RAISED, OPTIMIZER, UPDATED = range(1, 11)
TRAINED, HAS_GRADIENTS, SCALED, USUAL, AMID, LEFT_BATCH_OUT = 1, 2, 4, 8, 16, 32  # facts
READS_AGAIN = 2
GIVES_UP, GIVES_UP_IF_BAD_NUMBER = 1, 2
NOTHING, TAKEN = 0, 2  # what follows of what is bad; between them: it is told without its operations
DROPPED, KEPT = 0, 2   # what becomes of operations that were held; between them: an example of healthy ones


class StepJudge:
    """Attributes are the functions nanhunt_step_... of c_adapter.h: no frame of Python's is in between."""

    _NAMES = ("is_open", "pass", "restart", "facts", "reads_gradients", "gives_up", "note", "note_kept", "bad",
              "boundary", "judge_bad", "judge_harm", "keeps", "end_held", "shows", "was_left_out", "end",
              "carry_over", "record")

    is_open: Callable[[], int]
    enter: Callable[[int], int]
    restart: Callable[[], int]
    facts: Callable[[], int]
    reads_gradients: Callable[[int, bool, bool], int]
    gives_up: Callable[[], int]
    note: Callable[[int, int, bool, bytes], int]
    note_kept: Callable[[int], int]
    bad: Callable[[int], int]
    boundary: Callable[[int], int]
    judge_bad: Callable[[int, bool], int]
    judge_harm: Callable[[int], int]
    keeps: Callable[[int, bool, bool], int]
    end_held: Callable[[int, bool, bool], int]
    shows: Callable[[int, bool], int]
    was_left_out: Callable[[], int]
    end: Callable[[int, bool], int]
    carry_over: Callable[[int], int]
    record: Callable[[object, int, bool, bool, float, int], int]

    def __init__(self, max_taken: int, distance: int) -> None:
        fast = lib.load_library().fast
        of = fast.nanhunt_step_judge_new(max_taken, distance)
        self.handle = of
        weakref.finalize(self, fast.nanhunt_step_judge_free, of).atexit = False
        for name in self._NAMES:
            setattr(self, "enter" if name == "pass" else name, partial(getattr(fast, f"nanhunt_step_{name}"), of))


class StepFacts:
    """What is known of one step. Where a device computes it, some of it comes when the next one runs."""

    loss: float | None = None  # unscaled, where it could be read without waiting
    factor: float | None = None  # by which the program itself multiplied the loss last
    skipped = False
    gradients_are_bad = False
    unread = False  # a boundary was not judged: what is not known to be bad is not known to be healthy
    is_read_further = False  # what is read of bad steps only was read
    gradient_norm = math.nan
    weight_checksum = 0  # of all parameters at its end; 0: not read
    mode: StepMode | None = None  # how it was heard, once it is over
