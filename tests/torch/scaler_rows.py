# SPDX-License-Identifier: Apache-2.0
"""A session whose recorder keeps scaler rows and steps in lists, for tests of what is told of a scaler."""
from __future__ import annotations

import math
from contextlib import contextmanager

import torch
from nanhunt import _library as lib
from nanhunt._hooks import hooks
from nanhunt._hooks.scaler import ScalerWatch
from nanhunt._options import Options
from nanhunt._session import Session

ACTIONS = ["create", "scale", "unscale", "clip", "step", "skip", "update", "set", "refused"]


class KeptRows:
    """Stands for a recorder."""

    def __init__(self):
        self.scaler_rows, self.steps, self.notes = [], [], []

    def scaler(self, **fields):
        fields["action"] = ACTIONS[fields["action"]]
        self.scaler_rows.append(fields)

    def step(self, step, skipped, loss, lr, scale, ending=0, message=""):
        self.steps.append({"step": step, "skipped": skipped, "loss": loss, "scale": scale})

    def note(self, step, text, count):
        self.notes.append(text)

    def next_seq(self):
        return 0

    def bad_since(self, seq):
        return 0

    def close(self):
        pass


@contextmanager
def watched_scalers():
    session = Session(Options(level="ops", quiet=True))
    session.listeners = [ScalerWatch(session)]
    session.recorder = KeptRows()
    hooks.install(session)
    try:
        yield session
    finally:
        session.close()
        assert not [n for n in session.notes if n.startswith("errors inside")], session.last_error


def bare_optimizer(count=1, cls=torch.optim.SGD, dtype=torch.float32, **options):
    parameters = [torch.nn.Parameter(torch.zeros(2, dtype=dtype)) for _ in range(count)]
    return cls(parameters, lr=0.0, **options), parameters


def give_gradients(parameters, bad=False):
    for p in parameters:
        p.grad = torch.full_like(p, math.inf if bad else 1.0)


def actions(session):
    return [row["action"] for row in session.recorder.scaler_rows]


__all__ = ["KeptRows", "actions", "bare_optimizer", "give_gradients", "lib", "watched_scalers"]
