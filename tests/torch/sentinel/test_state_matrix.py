# SPDX-License-Identifier: Apache-2.0
"""Whatever a model keeps, and wherever: a run that is watched ends with the same weights, and keeps the same."""
from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from sentinel_runs import digest_of, run_once

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "neutral"))

from states import KINDS  # noqa: E402

STEPS = 12
BAD = 9  # just past the first steps, which the default watches as they run
HOW = {"default": {"budget": 3.0}, "replayed": {"budget": 0.0}, "ops": {"level": "ops", "budget": 3.0}}


def training(kind, calibrates):
    """A healthy run whose loss scale grows until it is too high; or one in which a batch gives NaN."""

    def build():
        model = kind()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**115, growth_interval=1, enabled=calibrates)

        def step(i):
            x, y = torch.randn(8, 6), torch.randn(8, 3)
            if i == BAD and not calibrates:
                x[0, 0] = float("nan")
            optimizer.zero_grad()
            loss = (model(x) - y).square().sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        # Last: what a pipe holds is read once.
        return step, list(model.parameters()), lambda: str(model.state())

    return build


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("calibrates", [True, False], ids=["calibrates", "bad"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_a_model_keeps_is_the_same_watched_and_alone(tmp_path, kind, calibrates, how):
    # Given a model with a state of its own,
    build = training(kind, calibrates)
    alone = run_once(build, STEPS)
    # when it trains watched, and a step that was not watched as it ran is computed again,
    watched = run_once(build, STEPS, tmp_path / "run", **HOW[how])
    # then weights, state and random states are those of the run alone.
    assert watched.digest == alone.digest
    assert (BAD in [step for step, result in watched.results]) == (how != "ops"), watched.replays


def test_a_forward_more_is_seen():
    """The matrix would notice it: each kind's state differs after one call more."""
    for kind in KINDS:
        ends = []
        for more in (0, 1):
            torch.manual_seed(1)
            model = kind()
            for i in range(2 + more):
                torch.manual_seed(2 + i)
                model(torch.randn(8, 6)).sum().backward()
            ends.append(digest_of(str(model.state())))
        assert ends[0] != ends[1], kind.__name__
