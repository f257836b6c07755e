# SPDX-License-Identifier: Apache-2.0
"""The line of an operation that only a replay shows: where the program called it, and never where the replay began."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from own_programs import assert_silent, told
from torch import nn

BAD = 2
MARK = "# the line to be named"
LINE = next(i for i, line in enumerate(Path(__file__).read_text(encoding="utf-8").splitlines(), 1)
            if line.endswith(f"  {MARK}"))
SCALED = ("unscale", "clip after unscale", "scaler's step", "loss")


def casting(end, large):
    """A layer of PyTorch's own, which autocast gives an input beyond fp16. Nothing below the call is the program's."""

    def build():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 4), nn.ReLU() if end == "loss" else nn.Tanh(), nn.Linear(4, 1))
        opt = torch.optim.SGD(net.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0, enabled=end in SCALED)

        def step(i):
            x = torch.ones(8, 4) * (1e6 if large and i == BAD else 1.0)
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                out = net(x)  # the line to be named
            scaler.scale(out.float().square().mean()).backward()
            if end in ("unscale", "clip after unscale"):
                scaler.unscale_(opt)
            if end in ("clip", "clip after unscale"):
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()

        return step, net, opt

    return build


@pytest.mark.parametrize("end", [*SCALED, "clip", "step"])
def test_it_is_the_line_that_called_the_model(end, tmp_path):
    lines = {}
    for level in ("sentinel", "ops"):
        said = told(casting(end, True), tmp_path / level, level, steps=4, budget=0.0)
        assert (said.first["class"], said.first["op"], said.first["module"]) == ("overflow", "aten::_to_copy", "0")
        assert said.first["phase"] == "forward" and said.first["step"] == BAD, said.show()
        lines[level] = said.first["call_site"]
    assert lines["sentinel"] == lines["ops"] == f"test_replayed_lines.py:{LINE}"
    assert_silent(casting(end, False), tmp_path / "twin", "sentinel", steps=4, budget=0.0)
