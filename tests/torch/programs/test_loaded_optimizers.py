# SPDX-License-Identifier: Apache-2.0
"""An optimizer that goes on from a state that was saved broken: nothing of the run has made what it reads."""

from __future__ import annotations

import io

import pytest
import torch
from own_programs import Net, assert_silent, data, told
from torch.nn import functional as F

WAYS = {"one by one": {"foreach": False}, "in lists": {"foreach": True}, "fused": {"fused": True}}


def resumed(spoil, **how):
    """`spoil(state)` is what was wrong with the state of the first weight when another run saved it."""
    saved = torch.optim.AdamW(Net().parameters(), lr=1e-3, **how)
    kept = saved.state_dict()
    for i, p in enumerate(saved.param_groups[0]["params"]):
        mean, squares = torch.full_like(p.detach(), 1e-3), torch.full_like(p.detach(), 1e-4)
        kept["state"][i] = {"step": torch.tensor(3.0), "exp_avg": mean, "exp_avg_sq": squares}
    spoil(kept["state"][0])
    checkpoint = io.BytesIO()
    torch.save(kept, checkpoint)

    def build():
        net = Net()
        opt = torch.optim.AdamW(net.parameters(), lr=1e-3, **how)
        checkpoint.seek(0)
        opt.load_state_dict(torch.load(checkpoint))

        def step(i):
            x, y = data()
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            opt.step()

        return step, net, opt

    return build


def spoil_mean(state):
    state["exp_avg"][0, 1] = float("nan")


def spoil_squares(state):
    state["exp_avg_sq"][0, 1] = -0.01


@pytest.mark.parametrize("level", ["live", "ops"])
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("spoil", [spoil_mean, spoil_squares])
def test_state_that_was_loaded_broken_is_named_and_what_cures_it(spoil, how, level, tmp_path):
    said = told(resumed(spoil, **WAYS[how]), tmp_path, level, steps=3)
    assert said.status == "fault" and said.first["class"] == "bad_state", said.show()
    assert said.first["phase"] == "optimizer" and said.first["step"] == 0, said.show()
    assert "when the run began" in said.first["title"], said.show()
    assert [a["id"] for a in said.first["advice"]] == ["sound-state"], said.show()


@pytest.mark.parametrize("how", WAYS)
def test_a_sound_state_that_was_loaded_is_silent(how, tmp_path):
    assert_silent(resumed(lambda state: None, **WAYS[how]), tmp_path, "live")
