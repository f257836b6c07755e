# SPDX-License-Identifier: Apache-2.0
"""Boundaries on the device of device/: the host dies of reading its memory, copies come late, and waits are counted."""
from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from nanhunt import _levels
from nanhunt._hooks import hooks
from nanhunt._options import Options
from nanhunt._session import Session
from on_device import on_device
from planted import blow_up, nan_batch, overflow
from sentinel_runs import run_once

DEVICE = "walled"
BUILDS = {
    "fp16 overflow": (overflow, {}),
    "fp16 overflow, fused": (overflow, {"fused": True}),
    "learning rate": (blow_up, {}),
    "batch with a NaN": (nan_batch, {}),
}


# A scaler's own read ends what was launched before it: late events are for runs without.
@pytest.mark.parametrize(("case", "boundary", "lag"), [
    ("fp16 overflow", "auto", 0), ("fp16 overflow", "sync", 3), ("fp16 overflow, fused", "auto", 3),
    ("learning rate", "deferred", 3), ("batch with a NaN", "auto", 0), ("batch with a NaN", "deferred", 3),
    ("batch with a NaN", "sync", 3)])  # fmt: skip
@on_device
def test_a_fault_there_gets_the_verdict_that_it_gets_on_the_cpu(case, boundary, lag):
    import walled

    make, options = BUILDS[case]
    with tempfile.TemporaryDirectory() as folder:
        here = run_once(make(**options), 6, Path(folder) / "cpu")
        plain = run_once(make(**options, device=DEVICE), 6)
        walled.set_lag(lag)
        try:
            away = run_once(make(**options, device=DEVICE), 6, Path(folder) / DEVICE, boundary=boundary)
        finally:
            walled.set_lag(0)
    assert away.digest == plain.digest, "the run was changed"
    assert [row[:4] for row in away.health] == [row[:4] for row in here.health], away.notes
    assert away.results == here.results, (away.texts, away.notes)
    keys = ("class", "severity", "step", "op", "module", "phase")
    assert {k: away.headline[k] for k in keys} == {k: here.headline[k] for k in keys}


@pytest.mark.parametrize(("case", "boundary", "more"), [
    ("fp16 overflow", "auto", 0), ("fp16 overflow, fused", "auto", 0), ("batch with a NaN", "auto", 0),
    ("batch with a NaN", "deferred", 0), ("batch with a NaN", "sync", 1)])  # fmt: skip
@on_device
def test_a_healthy_step_waits_no_more_than_alone(case, boundary, more):
    import walled

    make, options = BUILDS[case]

    def waits(**watching):
        session = None
        with tempfile.TemporaryDirectory() as folder:
            if watching:
                session = Session(Options(out=folder + "/run", **watching))
                _levels.add_listeners(session)
                hooks.install(session)
            try:
                step, *_ = make(**({} if case == "learning rate" else {"bad": ()}), **options, device=DEVICE)()
                for i in range(3):
                    step(i)
                before = walled.waits()
                for i in range(3, 23):
                    step(i)
                return walled.waits() - before
            finally:
                if session is not None:
                    session.close()
                    assert not session.errors, session.last_error

    assert waits(boundary=boundary) - waits() == 20 * more
