# SPDX-License-Identifier: Apache-2.0
"""What a program writes to its parameters after its last step is in no step's numbers: it is read when the run ends."""
from __future__ import annotations

import pytest
import torch
from sentinel_runs import batch, net, watched
from torch.nn import functional as F

STEPS = 20


def loop(last):
    """`last` is done to the parameters after the last step."""
    def build():
        model = net()
        model.mask = torch.nn.Parameter(torch.full((3,), -torch.inf), requires_grad=False)
        model.spare = torch.nn.Parameter(torch.full((3,), torch.nan))  # trained by nobody
        opt = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(i):
            x, y = batch()
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
            if i == STEPS - 1:
                with torch.no_grad():
                    for p in model[0].parameters():
                        last(p)

        return step, model, opt

    return build


@pytest.mark.parametrize("budget", [0.0, 100.0])
def test_weights_that_the_program_ruins_at_its_end_are_a_fault(tmp_path, library, budget):
    run = watched(loop(lambda p: p.div_(0)), tmp_path, STEPS, budget=budget)
    assert run.report["verdict"]["status"] == "fault"
    if budget:
        assert run.headline["op"] == "aten::div_"


@pytest.mark.parametrize("budget", [0.0, 100.0])
def test_weights_that_it_scales_are_clean(tmp_path, library, budget):
    run = watched(loop(lambda p: p.div_(2)), tmp_path, STEPS, budget=budget)
    assert (run.report["verdict"]["status"], run.report["findings"]) == ("clean", [])
