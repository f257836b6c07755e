# SPDX-License-Identifier: Apache-2.0
import enum


class StepMode(enum.Enum):
    """How the operations of the step that runs are heard."""

    UNHEARD = 0  # not at all
    HELD = 1     # as they run, in memory: they are forgotten where the step is healthy
    KEPT = 2     # as they run, and they are in the trace
