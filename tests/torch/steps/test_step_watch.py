# SPDX-License-Identifier: Apache-2.0
"""Each step is read: its losses, gradients and weights. The op of what went bad is named, and the run is as alone."""
from __future__ import annotations

import torch
from step_runs import Root, batch, watched
from torch import nn
from torch.nn import functional as F


class Roots(nn.Module):
    """A root of what exceeds 10 is NaN."""

    def __init__(self):
        super().__init__()
        self.fc1, self.inner, self.fc2 = nn.Linear(6, 8), Root(), nn.Linear(8, 3)

    def forward(self, x):
        return self.fc2(self.inner(self.fc1(x)))


def amp_loop(bad=(3,)):
    def build():
        model = Roots()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

        def step(i):
            x, y = batch()
            if i in bad:
                x = x * 100
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()

        return step, model, opt, lambda: scaler.state_dict()

    return build


def test_a_fault_in_forward_under_autocast_and_a_scaler_is_named(tmp_path, library):
    run = watched(amp_loop(), tmp_path)
    assert run.unheard == []
    assert run.report["verdict"]["status"] == "fault"
    found = run.headline
    assert (found["op"], found["module"], found["phase"], found["step"]) == ("aten::sqrt", "inner", "forward", 3)


def test_the_same_run_without_the_fault_is_clean(tmp_path, library):
    run = watched(amp_loop(bad=()), tmp_path)
    assert run.unheard == []
    assert run.report["verdict"]["status"] == "clean"
    assert [row["bad"] for row in run.records("health")] == [[]] * 5


def test_lists_written_between_calls_count_as_written(tmp_path, library):
    def build():
        model, average = nn.Linear(6, 3), [torch.zeros(3, 6), torch.zeros(3)]
        opt = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(i):
            x, y = batch()
            opt.zero_grad()
            out = model(x)
            torch._foreach_lerp_(average, [p.detach() for p in model.parameters()], 0.5)
            F.cross_entropy(out, y).backward()
            opt.step()

        return step, model, average, lambda: [t._version for t in average]

    watched(build, tmp_path)


def test_norms_of_the_steps_before_are_written_of_a_bad_step(tmp_path, library):
    run = watched(amp_loop(), tmp_path, keep=2)
    norms = run.records("norms")
    gradients = [row for row in norms if row["mark"] == "boundary_gradient"]
    assert {row["step"] for row in gradients} == {2, 3}
    assert {row["step"] for row in norms if row["mark"] == "parameter"} == {1, 2}
    assert {row["path"] for row in gradients} == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}
