# SPDX-License-Identifier: Apache-2.0
"""What is recorded of a loss scaler, and of the steps that it makes."""
from __future__ import annotations

import math
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import nanhunt
import torch
from saved import records_of


@dataclass
class Seen:
    """Filled when the watch ends; nothing is there where nothing was recorded."""

    rows: list = field(default_factory=list)
    steps: list = field(default_factory=list)
    notes: list = field(default_factory=list)

    @property
    def actions(self):
        return [row["action"] for row in self.rows]


@contextmanager
def watched_scalers(level="steps"):
    seen = Seen()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        with nanhunt.watch(out=run, level=level, quiet=True) as watch:
            yield seen
        seen.notes = list(watch.notes)
        if run.exists():
            seen.rows, seen.steps = records_of(run, "scaler"), records_of(run, "steps")
    assert not [note for note in seen.notes if note.startswith("errors inside")], seen.notes


def bare_optimizer(count=1, cls=torch.optim.SGD, dtype=torch.float32, **options):
    parameters = [torch.nn.Parameter(torch.zeros(2, dtype=dtype)) for _ in range(count)]
    return cls(parameters, lr=0.0, **options), parameters


def give_gradients(parameters, bad=False):
    for p in parameters:
        p.grad = torch.full_like(p, math.inf if bad else 1.0)
